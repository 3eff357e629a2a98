"""`track`: the record of a training on MLflow, read back from the files of its store."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from undisturbed_run import Finished, Undisturbed

from pipeline.commands.track import _params, track
from pipeline.config import load_config
from pipeline.errors import ConfigError, MachineError
from pipeline.run_folder import RunFolder
from pipeline.runs.store import StageStore
from pipeline.yaml_text import read_yaml, write_yaml

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]


class Store:
    """A folder that MLflow keeps its runs in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = folder.as_uri()

    def runs(self) -> list[Path]:
        """Those that were not deleted."""
        metas = {path.parent: read_yaml(path.read_text()) for path in self.folder.glob("*/*/meta.yaml")}
        return [run for run, meta in metas.items() if meta.get("lifecycle_stage") == "active" and "run_id" in meta]

    def metric(self, run: Path, name: str) -> list[float]:
        """All values, by step."""
        lines = [line.split() for line in (run / "metrics" / name).read_text().splitlines()]
        return [float(value) for _, value, _ in sorted(lines, key=lambda line: int(line[2]))]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # A server is what MLflow wants; the client is the same.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return Store(tmp_path / "mlflow runs")


def tracked(undisturbed: Undisturbed, uri: str) -> Finished:
    return undisturbed.run("track", "--set", f"mlflow.uri={uri}")


def manifest(run_dir: Path, stage: str) -> dict[str, Any]:
    current = StageStore(run_dir, stage).current()
    assert current is not None
    return current.manifest


def test_numbers_settings_and_the_model_are_logged_once(undisturbed: Undisturbed, store: Store) -> None:
    run_dir = undisturbed.restore()
    done = tracked(undisturbed, store.uri)
    assert done.returncode == 0, done.stderr
    (run,) = store.runs()
    assert done.stdout == f"hlf: logged as run {run.name}\n"

    trained, evaluated = manifest(run_dir, "train"), manifest(run_dir, "evaluate")
    records = next(run_dir.glob("train/0*/hlf/metrics/rank-0.jsonl")).read_text().splitlines()
    assert store.metric(run, "val_loss") == [json.loads(line)["val_loss"] for line in records]
    assert len(records) == trained["config"]["train"]["epochs"]
    found = evaluated["counters"]["runs"]["hlf"]
    assert store.metric(run, "test_accuracy") == [found["accuracy"]["value"]]
    assert store.metric(run, "test_accuracy_error") == [found["accuracy"]["error"]]
    assert store.metric(run, "test_auc/W_jets") == [found["auc"]["W+jets"]["value"]]

    params = {path.name: path.read_text() for path in (run / "params").iterdir()}
    assert params["train.epochs"] == str(trained["config"]["train"]["epochs"])
    assert params["features.min_lepton_pt"] == str(trained["config"]["features"]["min_lepton_pt"])
    exported = next(run_dir.glob("export/0*/hlf/model.onnx"))
    assert (run / "artifacts" / "export" / "model.onnx").read_bytes() == exported.read_bytes()
    assert (run / "artifacts" / "evaluate" / "metrics.json").exists()
    assert (run / "tags" / "code_version").read_text() == evaluated["code_version"]

    again = tracked(undisturbed, store.uri)
    assert again.stdout == f"hlf: is there already as run {run.name}\n"
    assert store.runs() == [run]
    events = [json.loads(line)["event"] for path in run_dir.glob("logs/*") for line in path.read_text().splitlines()]
    assert events.count("network tracked") == 2


def test_what_a_killed_command_left_half_logged_is_logged_anew(undisturbed: Undisturbed, store: Store) -> None:
    undisturbed.restore()
    assert tracked(undisturbed, store.uri).returncode == 0
    (half,) = store.runs()
    meta = read_yaml((half / "meta.yaml").read_text())
    running = 1
    (half / "meta.yaml").write_text(write_yaml(meta | {"status": running, "end_time": None}))
    assert tracked(undisturbed, store.uri).returncode == 0
    (whole,) = store.runs()
    assert whole != half


def test_a_server_that_is_not_there_is_named_without_its_password(undisturbed: Undisturbed, store: Store) -> None:
    run_dir = undisturbed.restore()
    done = tracked(undisturbed, "http://physicist:hush@127.0.0.1:9")
    assert done.returncode == 1, done.stderr
    assert re.search(r"error: MLflow at http://\*\*\*@127\.0\.0\.1:9: .*failed", done.stderr)
    assert "hush" not in done.stdout + done.stderr
    assert not [path for path in run_dir.rglob("*.json*") if "hush" in path.read_text()]


def test_without_a_server_it_says_where_to_name_one(undisturbed: Undisturbed, store: Store) -> None:
    run_folder = RunFolder(load_config(str(undisturbed.config)), Console(quiet=True))
    with pytest.raises(ConfigError, match=r"mlflow\.uri or MLFLOW_TRACKING_URI"):
        track(run_folder)


def test_without_the_package_it_says_how_to_get_it(
    undisturbed: Undisturbed, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    # The command sets these too, for its own process.
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "1")
    run_folder = RunFolder(load_config(str(undisturbed.config)), Console(quiet=True))
    with pytest.raises(MachineError, match=r"\[mlflow\]"):
        track(run_folder)


def test_secrets_among_the_settings_are_not_logged() -> None:
    config = {"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "hush", "cores": 4}}, "long": "x" * 600}
    params = {each.key: each.value for each in _params(config)}
    assert params["spark.conf.spark.hadoop.fs.s3a.secret.key"] == "***"
    assert params["spark.conf.cores"] == "4"
    assert len(params["long"]) == 500
