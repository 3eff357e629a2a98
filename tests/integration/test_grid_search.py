"""A grid search under Spark: rounds, failures, and continuation after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from feature_datasets import write_dataset
from pyspark import SparkContext

from features.dataset import FeatureDataset
from training.gridsearch.results import ranked
from training.gridsearch.settings import GridSearchSettings
from training.gridsearch.spark_job import SearchOutcome, num_trainings, search
from training.gridsearch.trainings import Search
from training.settings import TrainSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SMALL: dict[str, Any] = {"hidden": [[4, 8], [3]], "batch_size": [16, 32], "epochs": [3], "folds": 3}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    rows = {"train": [60, 60], "val": [20], "test": [20]}
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=rows)


def common(dataset: FeatureDataset, **chosen: Any) -> Search:
    settings = GridSearchSettings.model_validate(SMALL | chosen)
    return Search(dataset.folder, settings, TrainSettings.model_validate({"algorithm": "sgd"}))


def run(spark: SparkContext, made: Search, folder: Path, rounds: list[str] | None = None) -> tuple[SearchOutcome, int]:
    """What was found, and what the counter says."""
    folder.mkdir(exist_ok=True)
    done = spark.accumulator(0)
    said = [] if rounds is None else rounds
    return search(spark, made, folder, done=done, num_tasks=lambda jobs: min(jobs, 4), on_round=said.append), done.value


def test_what_is_there_is_not_trained_again(
    spark: SparkContext, dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = common(dataset)
    first, _ = run(spark, made, tmp_path / "found")
    gone = min((tmp_path / "found").glob("*.json"))
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "found").glob("*.json") if path != gone}
    # As an interrupted search leaves it.
    gone.rename(gone.with_name(f".{gone.name}"))
    sent: list[int] = []
    parallelize = spark.parallelize

    def noted(jobs: list[Any], tasks: int) -> Any:
        sent.append(len(jobs))
        return parallelize(jobs, tasks)

    monkeypatch.setattr(spark, "parallelize", noted)
    again, count = run(spark, made, tmp_path / "found")
    assert sent == [1]
    assert count == 4
    assert again.scores == first.scores
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_halving_gives_the_best_more_epochs(spark: SparkContext, dataset: FeatureDataset, tmp_path: Path) -> None:
    made = common(dataset, search="halving", epochs=[6], halving_factor=2, learning_rate=[0.001, 0.01])
    rounds: list[str] = []
    found, count = run(spark, made, tmp_path / "found", rounds)
    assert rounds == [
        "round 1 of 4: 8 settings, 1 epochs",
        "round 2 of 4: 4 settings, 2 epochs",
        "round 3 of 4: 2 settings, 3 epochs",
        "round 4 of 4: 1 settings, 6 epochs",
    ]
    assert count == num_trainings(made) == 8 + 4 + 2 + 1
    # Each setting once, as its last round left it; the winner is of the last one, whatever others had before.
    assert sorted(one.trial.epochs for one in found.scores) == [1] * 4 + [2] * 2 + [3, 6]
    assert ranked(found.scores)[0].trial.epochs == 6
    assert [one.rung for one in ranked(found.scores)] == [3, 2, 1, 1, 0, 0, 0, 0]
    again, _ = run(spark, made, tmp_path / "found")
    assert again.scores == found.scores
