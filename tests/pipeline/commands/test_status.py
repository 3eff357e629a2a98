"""`status` and `plan` of a damaged run folder: all that can be read, and the damage beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from night_files import Night
from published_by_hand import example_model_manifest, publish
from stages_in_process import run_stages, without_spark
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore
from pipeline.terminal.exit_codes import Exit

STAGES = ("ingest", "features", "train")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config with three published stages and a model in use."""
    path = small_config(tmp_path, SAMPLES)
    for stage in STAGES:
        publish(tmp_path / "run", stage, text="first")
    registry = Registry(tmp_path / "run", "hlf")
    folder = registry.next_folder("0123456789")
    registry.create(folder)
    registry.commit(folder, example_model_manifest("hlf"))
    return path


def spoil(store: StageStore, spoiled_key: str) -> str:
    """Damage a version or its pointer; returns the words that name the damage."""
    version = store.current()
    assert version is not None
    manifest = version.folder / "manifest.json"
    if spoiled_key == "pointer":
        store.pointer.write_text(json.dumps({"version": f"../features/{version.name}"}))
        return f"{store.pointer} is damaged: version: "
    document = json.loads(manifest.read_text())
    if spoiled_key == "outputs":
        document["outputs"] = [{"path": "data"}]
        manifest.write_text(json.dumps(document))
        return f"{manifest} is damaged: the key 'outputs.0.size' is missing"
    del document[spoiled_key]
    manifest.write_text(json.dumps(document))
    return f"{manifest} is damaged: the key '{spoiled_key}' is missing"


@pytest.mark.parametrize("spoiled_key", ["pointer", "outputs", "fingerprint", "counters"])
def test_status_shows_what_can_be_read_and_the_damage_beside_it(
    config: Path, spoiled_key: str
) -> None:
    run_dir = config.parent / "run"
    message = spoil(StageStore(run_dir, "train"), spoiled_key)
    result = CliRunner().invoke(app, ["status", "--config", str(config)])
    assert result.exit_code == Exit.USER_ERROR
    assert message in result.stdout
    for stage in ("ingest", "features", "hlf in use"):
        assert f"{stage} " in result.stdout
    document = json.loads(
        CliRunner().invoke(app, ["status", "--json", "--config", str(config)]).stdout
    )
    assert document["train"]["damage"].startswith(message)
    assert (document["train"]["version"] is None) == (spoiled_key == "pointer")
    assert document["features"]["version"].startswith("0001-")
    assert document["in_use"]["hlf"]["promoted"] == "2026-01-01T00:00:00+00:00"
    verified = CliRunner().invoke(app, ["status", "--verify", "--config", str(config)])
    assert message in verified.stdout
    assert verified.exit_code == Exit.USER_ERROR


def test_status_names_a_damaged_model(config: Path) -> None:
    message = spoil(Registry(config.parent / "run", "hlf"), "train")
    result = CliRunner().invoke(app, ["status", "--json", "--config", str(config)])
    document = json.loads(result.stdout)
    assert document["in_use"]["hlf"]["damage"].startswith(message)
    assert document["train"]["version"].startswith("0001-")
    assert result.exit_code == Exit.USER_ERROR


def test_plan_says_that_a_damaged_version_is_made_again(config: Path) -> None:
    message = spoil(StageStore(config.parent / "run", "features"), "counters")
    result = CliRunner().invoke(app, ["plan", "--json", "--config", str(config)])
    assert result.exit_code == Exit.OK, result.output
    plans = {plan["stage"]: plan for plan in json.loads(result.stdout)}
    assert (plans["features"]["state"], plans["features"]["would_run"]) == ("stale", True)
    assert plans["features"]["reasons"][0].startswith(message)
    assert "features would run, and its result may change" in plans["train"]["reasons"]
    assert plans["ingest"]["state"] == "stale"


@pytest.mark.parametrize("command", ["train", "promote", "clean"])
def test_a_damaged_version_is_an_error_of_the_run_folder(config: Path, command: str) -> None:
    message = spoil(StageStore(config.parent / "run", "features"), "fingerprint")
    result = CliRunner().invoke(app, [command, "--config", str(config)])
    assert result.exit_code == Exit.USER_ERROR, result.output
    assert message in " ".join(result.stderr.split())


def test_run_makes_a_damaged_version_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch, tmp_path)
    night = Night(tmp_path)
    night.run("ingest")
    message = spoil(night.runner().run_folder.store("ingest"), "counters")
    stages = run_stages(tmp_path / "config.yaml", "ingest")
    assert f"ingest: {message}" in stages
    assert night.version("ingest").name.startswith("0002-")
    assert "ingest: up to date" in run_stages(tmp_path / "config.yaml", "ingest")
