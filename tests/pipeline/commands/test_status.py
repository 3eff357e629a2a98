"""`status` and `plan` of a damaged run folder: all that can be read, and the damage beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import SAMPLES, invoke, small_config
from night_files import Night
from published_by_hand import example_model_manifest, publish
from stages_in_process import run_stages, without_spark

from hep_core.input_errors import UnreachableFileError
from pipeline.runs import own_folders
from pipeline.runs.kernel_cache import KERNELS
from pipeline.runs.model_registry import Registry
from pipeline.runs.outputs import OutputFile
from pipeline.runs.store import StageStore
from pipeline.terminal.exit_codes import Exit


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config with three published stages and a model in use."""
    path = small_config(tmp_path, SAMPLES)
    for stage in ("ingest", "features", "train"):
        publish(tmp_path / "run", stage, text="first")
    registry = Registry(tmp_path / "run", "hlf")
    folder = registry.next_folder("0123456789")
    registry.create(folder)
    registry.commit(folder, example_model_manifest("hlf"))
    return path


def damage_pointer(store: StageStore) -> str:
    """Let the pointer lead to another stage; returns the beginning of the message about it."""
    version = store.current()
    assert version is not None
    store.pointer.write_text(json.dumps({"version": f"../features/{version.name}"}))
    return f"{store.pointer} is damaged: version: "


def damage_manifest(store: StageStore, key: str) -> str:
    """Remove a key of the manifest in use; returns the message about it."""
    version = store.current()
    assert version is not None
    path = version.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[key]
    path.write_text(json.dumps(manifest))
    return f"{path} is damaged: the key '{key}' is missing"


@pytest.mark.parametrize("damaged", ["pointer", "outputs", "fingerprint", "counters"])
def test_status_shows_what_can_be_read_and_the_damage_beside_it(config: Path, damaged: str) -> None:
    store = StageStore(config.parent / "run", "train")
    message = damage_pointer(store) if damaged == "pointer" else damage_manifest(store, damaged)

    result = invoke("status", "--config", config)
    verified = invoke("status", "--verify", "--config", config)
    status = json.loads(invoke("status", "--json", "--config", config).stdout)

    for command_result in (result, verified):
        assert command_result.exit_code == Exit.USER_ERROR
        assert message in command_result.stdout
    for name in ("ingest", "features", "hlf in use"):
        assert f"{name} " in result.stdout
    assert status["train"]["damage"].startswith(message)
    assert (status["train"]["version"] is None) == (damaged == "pointer")
    assert status["features"]["version"].startswith("0001-")
    assert status["in_use"]["hlf"]["promoted"] == "2026-01-01T00:00:00+00:00"


def test_status_claims_the_versions_whose_files_it_reads(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: dict[str, bool] = {}

    def changed_files(folder: Path, _files: object) -> list[OutputFile]:
        claims[folder.parent.name] = own_folders.is_claimed(folder)
        return []

    monkeypatch.setattr("pipeline.commands.status.changed_files", changed_files)

    invoke("status", "--verify", "--config", config)

    assert claims == dict.fromkeys(("ingest", "features", "train", "hlf"), True)
    for stage in ("ingest", "features", "train"):
        (version,) = (config.parent / "run" / stage).glob("0001-*")
        assert not own_folders.is_claimed(version)


def test_status_names_a_damaged_model(config: Path) -> None:
    message = damage_manifest(Registry(config.parent / "run", "hlf"), "train")

    result = invoke("status", "--json", "--config", config)

    assert result.exit_code == Exit.USER_ERROR
    status = json.loads(result.stdout)
    assert status["in_use"]["hlf"]["damage"].startswith(message)
    assert status["train"]["version"].startswith("0001-")


def break_files(run_dir: Path) -> dict[str, Path]:
    """Damage three files, each in another way; returns them by what is wrong."""
    paths = {}
    for stage, name in (("ingest", "events/a"), ("features", "events/a"), ("train", "hlf/model/a")):
        version = StageStore(run_dir, stage).current()
        assert version is not None
        paths[stage] = version.folder / name
    paths["ingest"].unlink()
    with paths["features"].open("a") as file:
        file.write("more")
    # Of the same size, it is seen only where the file is read.
    paths["train"].write_text("fIrst")
    return paths


@pytest.mark.parametrize("options", [[], ["--json"], ["--verify"], ["--verify", "--json"]])
def test_every_view_shows_the_damaged_files_that_plan_finds(
    config: Path, options: list[str]
) -> None:
    paths = break_files(config.parent / "run")

    result = invoke("status", *options, "--config", config)
    plans = json.loads(invoke("plan", "--json", "--config", config).stdout)

    assert result.exit_code == Exit.USER_ERROR
    if "--json" in options:
        state = json.loads(result.stdout)
        damaged_files = {stage: state[stage].get("damaged_files", []) for stage in paths}
        assert damaged_files == {stage: [str(path)] for stage, path in paths.items()}
        assert state["ingest"]["created"] == "2026-01-01T00:00:00+00:00"
        assert state["in_use"]["hlf"]["improvement"] is None
        assert "damage" not in state["in_use"]["hlf"]
    else:
        lines = result.stdout.splitlines()
        assert {f"gone or damaged: {path}" for path in paths.values()} <= set(lines)
    stale = {plan["stage"] for plan in plans if "gone or damaged" in " ".join(plan["reasons"])}
    assert paths.keys() - stale == set()


def test_status_lists_the_first_damaged_files_and_verify_all(config: Path) -> None:
    run_dir = config.parent / "run"
    store = StageStore(run_dir, "train")
    folder = store.next_folder("12345678")
    store.create(folder)
    for index in range(10):
        (folder / f"{index}.txt").write_text("text")
    publish(run_dir, "train", folder)
    for path in folder.glob("*.txt"):
        path.unlink()

    state = invoke("status", "--config", config).stdout
    verified = invoke("status", "--verify", "--config", config).stdout

    assert "10 files of" in state
    assert state.count("gone or damaged: ") == 8
    assert "and 2 more; `status --verify` lists all" in state
    assert verified.count("gone or damaged: ") == 10


def test_files_on_a_silent_server_are_named_as_not_checked(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UnreachableFileError("s3://bucket/x: its server does not answer")

    monkeypatch.setattr("pipeline.commands.status.damaged_files", fail)
    result = invoke("status", "--json", "--config", config)

    assert result.exit_code == Exit.USER_ERROR
    state = json.loads(result.stdout)
    assert "cannot be checked: s3://bucket/x: its server" in state["train"]["damage"]
    assert state["train"]["version"].startswith("0001-")


def test_damaged_kernel_outputs_are_a_note_since_no_result_depends_on_them(config: Path) -> None:
    run_dir = config.parent / "run"
    outputs = [
        {"lies_in": "0001-00000000", "name": f"{name}.parquet", "file_digest": "recorded"}
        for name in ("changed", "gone")
    ]
    publish(run_dir, "features", text="first", counters={"kernel_outputs": outputs})
    kernels = run_dir / "features" / KERNELS / "0001-00000000"
    own_folders.make(kernels)
    (kernels / "changed.arrow").write_text("another content")

    result = invoke("status", "--verify", "--config", config)

    assert result.exit_code == Exit.OK, result.output
    assert "2 cached outputs of the kernels are gone or damaged" in result.stdout
    assert str(kernels / "changed.arrow") in result.stdout
    assert "`features` computes them again when it runs next" in result.stdout
    assert "every file is unchanged" not in result.stdout


def test_plan_says_that_a_damaged_version_is_made_again(config: Path) -> None:
    message = damage_manifest(StageStore(config.parent / "run", "features"), "counters")

    result = invoke("plan", "--json", "--config", config)

    assert result.exit_code == Exit.OK, result.output
    plans = {plan["stage"]: plan for plan in json.loads(result.stdout)}
    assert (plans["features"]["state"], plans["features"]["would_run"]) == ("stale", True)
    assert plans["features"]["reasons"][0].startswith(message)
    assert "features would run, and its result may change" in plans["train"]["reasons"]
    assert plans["ingest"]["state"] == "stale"


@pytest.mark.parametrize("command", ["train", "promote", "clean"])
def test_a_damaged_version_is_an_error_of_the_run_folder(config: Path, command: str) -> None:
    message = damage_manifest(StageStore(config.parent / "run", "features"), "fingerprint")

    result = invoke(command, "--config", config)

    assert result.exit_code == Exit.USER_ERROR, result.output
    assert message in " ".join(result.stderr.split())


def test_run_makes_a_damaged_version_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch, tmp_path)
    night = Night(tmp_path)
    night.run("ingest")
    message = damage_manifest(night.runner().run_folder.store("ingest"), "counters")

    output = run_stages(tmp_path / "config.yaml", "ingest")

    assert f"ingest: {message}" in output
    assert night.version("ingest").name.startswith("0002-")
    assert "ingest: up to date" in run_stages(tmp_path / "config.yaml", "ingest")
