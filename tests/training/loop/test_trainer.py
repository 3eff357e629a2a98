"""Training on one worker, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from feature_datasets import write_dataset

from features.dataset import FeatureDataset
from models.networks.hlf_settings import HlfSettings
from models.saved_model import load_model
from training.errors import DivergedError, ShardError
from training.launching.launcher import launch
from training.launching.run_spec import RunSpec
from training.loop.progress import Progress
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

ROWS = {"train": [32] * 6, "val": [30, 30], "test": [30]}
STEPS_PER_EPOCH = 12
MEASURED_TIMES = ("seconds", "seconds_by_kind", "wait_seconds")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


def run(dataset: FeatureDataset, out_dir: Path, **settings: Any) -> list[Progress]:
    """Train, and return the progress that was reported."""
    out_dir.mkdir(exist_ok=True)
    reports: list[Progress] = []
    defaults = {"algorithm": "sgd", "epochs": 5, "batch_size": 16, "learning_rate": 0.01}
    train = TrainSettings.model_validate({**defaults, **settings})
    workload = HepSettings(folder=dataset.folder, network=HlfSettings(hidden=[16]))
    launch(RunSpec(workload, train, out_dir), on_progress=reports.append)
    return reports


def read_history(out_dir: Path) -> list[dict[str, Any]]:
    lines = (out_dir / "metrics" / "rank-0.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def drop_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    records_without_times = []
    for record in records:
        names = record.keys() - MEASURED_TIMES
        records_without_times.append({name: record[name] for name in names})
    return records_without_times


def test_reports_of_progress_change_no_numbers(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.progress._SECONDS_BETWEEN_REPORTS", 0.0)
    frequent = run(dataset, tmp_path / "frequent")
    monkeypatch.setattr("training.loop.progress._SECONDS_BETWEEN_REPORTS", 1e9)
    rare = run(dataset, tmp_path / "rare")

    epochs = range(1, 6)
    steps = range(1, STEPS_PER_EPOCH + 1)
    all_steps = [(epoch, step) for epoch in epochs for step in steps]
    assert [(progress.epoch, progress.step) for progress in frequent] == all_steps
    last_steps = [(epoch, STEPS_PER_EPOCH) for epoch in epochs]
    assert [(progress.epoch, progress.step) for progress in rare] == last_steps
    history = read_history(tmp_path / "frequent")
    assert drop_times(history) == drop_times(read_history(tmp_path / "rare"))
    # The records have the results that the ranks have in common.
    assert {"train_loss", "best_epoch"} <= history[0].keys()


@pytest.mark.slow
def test_the_saved_model_has_the_lowest_validation_loss(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run(dataset, tmp_path / "long", epochs=12, learning_rate=0.3)
    losses = [record["val_loss"] for record in read_history(tmp_path / "long")]
    best_epoch = losses.index(min(losses))
    assert best_epoch < 11, "the test needs a run whose last epoch is not its best"

    run(dataset, tmp_path / "short", epochs=best_epoch + 1, learning_rate=0.3)

    long_run = load_model(tmp_path / "long" / "model")[0].state_dict()
    short_run = load_model(tmp_path / "short" / "model")[0].state_dict()
    for name, weights in long_run.items():
        assert torch.equal(short_run[name], weights)
    summary = json.loads((tmp_path / "long" / "summary.json").read_text())
    assert summary["best_epoch"] == best_epoch


def test_fewer_epochs_in_the_same_folder_give_the_model_of_these_epochs(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run(dataset, tmp_path / "short", epochs=2)
    run(dataset, tmp_path / "again", epochs=4)

    run(dataset, tmp_path / "again", epochs=2)

    histories = [read_history(tmp_path / name) for name in ("short", "again")]
    assert drop_times(histories[0]) == drop_times(histories[1])
    summaries = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("short", "again")
    ]
    assert summaries[0]["samples"] == summaries[1]["samples"]
    assert summaries[0]["best_epoch"] == summaries[1]["best_epoch"]


def test_the_error_of_a_divergence_names_the_learning_rate(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    with pytest.raises(DivergedError, match=r"diverged.*train\.learning_rate"):
        run(dataset, tmp_path / "out", optimizer="sgd", learning_rate=1e30)


def test_an_empty_validation_split_is_an_error_before_the_training(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [32], "val": [3], "test": [3]})
    path = dataset.folder / "dataset.json"
    description = json.loads(path.read_text())
    description["splits"]["val"] = []
    path.write_text(json.dumps(description))

    with pytest.raises(ShardError, match=r"the val split of .* has no events"):
        run(dataset, tmp_path / "out")
