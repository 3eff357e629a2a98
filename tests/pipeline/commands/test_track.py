"""MLflow gets the records of a training; the tests read them from the files of its store."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from command_line import SAMPLES, small_config
from feature_datasets import write_dataset
from minimal_configs import write_config
from published_by_hand import publish
from rich.console import Console

from pipeline.commands.track import track
from pipeline.config import load_config
from pipeline.configuration.shell_sections import MlflowSettings
from pipeline.errors import ConfigError, TrackingError
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.store import StageStore
from training.gridsearch.settings import Trial
from training.loop.records import read_records

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

BEST = Trial(hidden=(6, 4), batch_size=20, learning_rate=0.02, epochs=3)
CONDITIONS = {"abs(flavour) == 5": 1, "abs(flavour) < 5": 2}
CONFIG: dict[str, Any] = {
    "samples": [
        {"name": "qcd", "label": 0, "files": [f"{SAMPLES}/qcd*.root"]},
        {"name": "top", "label_by": CONDITIONS, "files": [f"{SAMPLES}/ttbar*.root"]},
    ],
    "model": {
        "names": ["hlf", "particles"],
        "hlf": {"from_gridsearch": True},
        "particles": {"gru_width": 4},
    },
    "train": {"workers": 1, "epochs": 40, "batch_size": 8},
    "train_by_network": {"particles": {"epochs": 2}},
    "report": {"title": "x" * 600},
    "spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "hush-1b2c", "spark.executor.cores": "4"}},
}


class Finished(NamedTuple):
    """A run folder in which two networks were trained; the other stages are published by hand."""

    run_folder: RunFolder
    earliest: float
    """A time before the training [s since 1970]."""
    latest: float
    """A time after the training [s since 1970]."""

    @property
    def trained(self) -> Path:
        version = StageStore(self.run_folder.config.run_dir, "train").current()
        assert version is not None
        return version.folder


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as module_patch:
        yield module_patch


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Finished:
    folder = tmp_path_factory.mktemp("tracked")
    run_folder = RunFolder(
        load_config(str(small_config(folder, SAMPLES, **CONFIG))), Console(quiet=True)
    )
    run_dir, config = run_folder.config.run_dir, run_folder.config.model_dump(mode="json")
    publish(run_dir, "ingest", config=config)
    store = StageStore(run_dir, "features")
    version = store.next_folder("ff" * 8)
    write_dataset(version, rows={"train": [60], "val": [12], "test": [12]}, max_particles=2)
    second = {**config, "features": {**config["features"], "min_lepton_pt": 27.0}}
    publish(run_dir, "features", version, counters={}, config=second)
    store = StageStore(run_dir, "gridsearch")
    version = store.next_folder("bb" * 8)
    version.mkdir(parents=True)
    BEST.save(version / "best.json")
    publish(run_dir, "gridsearch", version, config=config)
    patch.setattr(
        sys,
        "argv",
        ["train", "--set", "spark.conf={my.token: hush-1b2c}", "--set", "report.title=password"],
    )
    earliest = time.time()
    Runner(run_folder).run(["train"])
    latest = time.time()
    store = StageStore(run_dir, "train")
    trained = store.current()
    assert trained is not None
    # As where both networks were taken over by a later version.
    store.update_manifest(trained, created="2100-01-01T00:00:00+00:00", seconds=1e6)
    estimate = {"value": 0.9, "error": 0.01}
    runs = {
        name: {"accuracy": estimate, "auc": {"W+jets": estimate}} for name in ("hlf", "particles")
    }
    version = StageStore(run_dir, "evaluate").next_folder("ee" * 8)
    version.mkdir(parents=True)
    (version / "metrics.json").write_text("{}")
    publish(
        run_dir,
        "evaluate",
        version,
        counters={"runs": runs},
        config=config,
        code_version="commit abc",
    )
    return Finished(run_folder, earliest, latest)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> MlflowClient:
    # A server is what MLflow wants; the client is the same.
    patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    # The command sets these too, for its own process.
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        patch.setenv(name, "1")
    # Its import takes a second, which tests that are not run here need not pay.
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path_factory.mktemp("mlflow") / "all runs").as_uri())
    patch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    return client


@pytest.fixture(scope="module")
def runs(finished: Finished, client: MlflowClient) -> dict[str, Run]:
    """By network."""
    return {
        logged_run.network: client.get_run(logged_run.run_id)
        for logged_run in track(finished.run_folder)
    }


def records(finished: Finished, network: str) -> list[dict[str, Any]]:
    return read_records(finished.trained / network)[0]


def test_params_are_the_settings_of_the_network_and_of_each_stage(
    finished: Finished, runs: dict[str, Run]
) -> None:
    params = runs["hlf"].data.params
    # What the search found, and the stages' own.
    expected = {
        "model.name": "hlf",
        "model.hidden": "[6, 4]",
        "train.epochs": "3",
        "train.batch_size": "20",
    }
    expected |= {
        "train.learning_rate": "0.02",
        "features.min_lepton_pt": "27.0",
        "ingest.min_lepton_pt": "23.0",
    }
    # MLflow takes no longer values.
    expected |= {"report.title": "x" * 500, "spark.conf.spark.executor.cores": "4"}
    assert expected.items() <= params.items()
    params = runs["particles"].data.params
    expected = {
        "model.name": "particles",
        "model.gru_width": "4",
        "train.epochs": "2",
        "train.batch_size": "8",
    }
    assert expected.items() <= params.items()
    assert len(records(finished, "particles")) == 2
    assert not [name for name in params if "hidden" in name and name.startswith("model")]
    assert not [name for name in params if name.startswith("train_by_network")]


def test_conditions_that_mlflow_refuses_as_names_are_one_parameter(runs: dict[str, Run]) -> None:
    params = runs["hlf"].data.params

    assert json.loads(params["samples.1.label_by"]) == CONDITIONS
    assert params["samples.1.name"] == "top"


def test_each_network_has_the_time_of_its_own_training(
    finished: Finished, client: MlflowClient, runs: dict[str, Run]
) -> None:
    for network, run in runs.items():
        history = records(finished, network)
        seconds = sum(record["seconds"] for record in history)
        assert run.data.metrics["training_seconds"] == pytest.approx(seconds)
        length = run.info.end_time - run.info.start_time
        assert length == pytest.approx(1000 * seconds, abs=2)
        # Times are kept to the second.
        assert 1000 * (finished.earliest - 1) <= run.info.end_time <= 1000 * finished.latest
        points = client.get_metric_history(run.info.run_id, "val_loss")
        assert [point.value for point in points] == [record["val_loss"] for record in history]
        assert points[-1].timestamp == pytest.approx(run.info.end_time, abs=2)
        assert points[0].timestamp == pytest.approx(
            run.info.start_time + 1000 * history[0]["seconds"], abs=2
        )
    assert (
        runs["hlf"].data.metrics["training_seconds"]
        != runs["particles"].data.metrics["training_seconds"]
    )


def test_results_and_files_of_the_evaluation_are_logged(
    client: MlflowClient, runs: dict[str, Run]
) -> None:
    run = runs["hlf"]
    assert (run.data.metrics["test_accuracy"], run.data.metrics["test_auc/W_jets_error"]) == (
        0.9,
        0.01,
    )
    assert run.data.tags["code_version"] == "commit abc"
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id, "evaluate")] == [
        "evaluate/metrics.json"
    ]


def test_finished_runs_stay_and_unfinished_ones_are_logged_again(
    finished: Finished, client: MlflowClient, runs: dict[str, Run]
) -> None:
    repeated = track(finished.run_folder)
    assert {logged_run.network: logged_run.run_id for logged_run in repeated} == {
        name: run.info.run_id for name, run in runs.items()
    }
    assert not any(logged_run.is_new for logged_run in repeated)
    config = finished.run_folder.config.model_copy(
        update={"mlflow": MlflowSettings(experiment="killed")}
    )
    run_folder = RunFolder(config, Console(quiet=True))
    half = {logged_run.network: logged_run.run_id for logged_run in track(run_folder)}["particles"]
    client.update_run(half, status="RUNNING")
    complete = {logged_run.network: logged_run for logged_run in track(run_folder)}
    assert (complete["hlf"].is_new, complete["particles"].is_new) == (False, True)
    assert client.get_run(half).info.lifecycle_stage == "deleted"


@pytest.mark.parametrize("address", ["mlruns", "file:mlruns"])
def test_mlflow_keeps_runs_of_a_relative_address_beside_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: MlflowClient, address: str
) -> None:
    here, folder = tmp_path / "here", tmp_path / "a b%20c"
    here.mkdir()
    folder.mkdir()
    monkeypatch.chdir(here)
    config = load_config(write_config(folder, mlflow={"uri": address}))

    type(client)(tracking_uri=config.mlflow.uri).create_experiment("night")

    experiment_files = (folder / "mlruns").glob("*/meta.yaml")
    assert any("name: night" in path.read_text() for path in experiment_files)
    assert not list(here.iterdir())


def test_an_unreachable_server_is_named_without_its_password(
    finished: Finished, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://physicist:hush@127.0.0.1:9")
    with pytest.raises(
        TrackingError, match=r"MLflow at http://\*\*\*@127\.0\.0\.1:9: .*failed"
    ) as caught:
        track(finished.run_folder)
    assert "hush" not in str(caught.value)

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match=r"mlflow\.uri or MLFLOW_TRACKING_URI"):
        track(finished.run_folder)


def test_no_file_holds_a_secret(
    finished: Finished, client: MlflowClient, runs: dict[str, Run]
) -> None:
    folders = (
        finished.run_folder.config.run_dir,
        Path(url2pathname(urlparse(client.tracking_uri).path)),
    )
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert {"manifest.json", "meta.yaml"} < {path.name for path in files}
    assert [path for path in files if b"hush" in path.read_bytes()] == []
    command = json.loads((finished.trained / "manifest.json").read_text())["command"]
    assert command == ["train", "--set", "spark.conf=***", "--set", "report.title=password"]
