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
from training.launching.rank import RunSpec
from training.loop.progress import Progress
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

ROWS = {"train": [32] * 6, "val": [30, 30], "test": [30]}
#: Numbers that no two runs have in common.
TIMES = dict.fromkeys(("seconds", "seconds_by_kind", "wait_seconds"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


def run(dataset: FeatureDataset, out: Path, **settings: Any) -> list[Progress]:
    out.mkdir()
    seen: list[Progress] = []
    train = TrainSettings(
        **({"algorithm": "sgd", "epochs": 5, "batch_size": 16, "learning_rate": 0.01} | settings)
    )
    workload = HepSettings(folder=dataset.folder, network=HlfSettings(hidden=[16]))
    launch(RunSpec(workload, train, out), on_progress=seen.append)
    return seen


def history(out: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (out / "metrics" / "rank-0.jsonl").read_text().splitlines()
    ]


def test_progress_that_is_shown_changes_no_numbers(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, found = [], []
    for name, seconds in (("often", 0.0), ("rarely", 1e9)):
        monkeypatch.setattr("training.loop.progress._SECONDS_BETWEEN", seconds)
        seen.append([(progress.epoch, progress.step) for progress in run(dataset, tmp_path / name)])
        found.append([{**record, **TIMES} for record in history(tmp_path / name)])
    assert seen[0] == [(epoch, step) for epoch in range(1, 6) for step in range(1, 13)]
    assert seen[1] == [(epoch, 12) for epoch in range(1, 6)]
    assert found[0] == found[1]
    assert {"train_loss", "best_epoch"} <= found[0][0].keys(), (
        "what the ranks have in common is in the records"
    )


@pytest.mark.slow
def test_the_model_of_the_lowest_validation_loss_is_kept(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run(dataset, tmp_path / "long", epochs=12, learning_rate=0.3)
    losses = [record["val_loss"] for record in history(tmp_path / "long")]
    best = losses.index(min(losses))
    assert best < 11, "the test needs a run whose last epoch is not its best"
    run(dataset, tmp_path / "short", epochs=best + 1, learning_rate=0.3)
    long, short = (
        load_model(tmp_path / name / "model")[0].state_dict() for name in ("long", "short")
    )
    assert all(torch.equal(long[key], short[key]) for key in long)
    assert json.loads((tmp_path / "long" / "summary.json").read_text())["best_epoch"] == best


def test_divergence_is_said_with_the_learning_rate(dataset: FeatureDataset, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"diverged.*train\.learning_rate"):
        run(dataset, tmp_path / "out", optimizer="sgd", learning_rate=1e30)


def test_a_validation_split_without_events_is_said_before_the_training(tmp_path: Path) -> None:
    small = write_dataset(tmp_path / "set", rows={"train": [32], "val": [3], "test": [3]})
    description = small.folder / "dataset.json"
    content = json.loads(description.read_text())
    content["splits"]["val"] = []
    description.write_text(json.dumps(content))
    with pytest.raises(ShardError, match=r"the val split of .* has no events"):
        run(small, tmp_path / "out")
