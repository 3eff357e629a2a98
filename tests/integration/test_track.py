"""`track`: the record of a training on MLflow, read back from the files of its store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from undisturbed_run import Finished, Undisturbed

from pipeline.configuration.yaml_text import read_yaml
from pipeline.runs.store import StageStore

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
