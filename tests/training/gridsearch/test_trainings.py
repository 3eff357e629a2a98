"""Jobs of a search on a real features dataset: done once, with a message if they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from feature_datasets import write_dataset
from spark_in_process import Here

from features.columns import hlf_names
from features.dataset import FeatureDataset
from training.errors import TrainingError
from training.gridsearch import trainings as running
from training.gridsearch.results import ranked
from training.gridsearch.settings import GridSearchSettings, Trial
from training.gridsearch.spark_job import SearchOutcome, num_trainings, search
from training.gridsearch.trainings import (
    Curves,
    Fold,
    Search,
    finished,
    make_folds,
    run_job,
)
from training.readers.batch import Rows
from training.settings import TrainSettings

TRIAL = Trial((6, 4), 16, 0.01, 2)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    rows = {"train": [50, 50, 50], "val": [20], "test": [20]}
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=rows)


def search_on(dataset: FeatureDataset, **train: Any) -> Search:
    return Search(
        dataset.folder,
        GridSearchSettings(folds=3),
        TrainSettings.model_validate({"algorithm": "sgd", **train}),
    )


def searched(common: Search, folder: Path, **chosen: Any) -> SearchOutcome:
    """A search in this process."""
    common = common._replace(settings=GridSearchSettings.model_validate({"folds": 3, **chosen}))
    return search(
        cast("Any", Here()), common, folder, done=cast("Any", Here()), num_tasks=lambda _: 1
    )


def test_a_job_learns_and_is_written_and_read_again(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    longer = TRIAL._replace(epochs=15)
    found = run_job(search_on(dataset), longer, tmp_path)
    assert found.error == ""
    assert len(found.folds) == 3
    assert all(len(curves.val_loss) == 15 for curves in found.folds)
    assert np.mean([curves.val_accuracy[-1] for curves in found.folds]) > 0.6
    assert found.num_parameters == len(hlf_names()) * 6 + 6 + 6 * 4 + 4 + 4 * 3 + 3
    assert finished(tmp_path, longer) == found
    assert finished(tmp_path, TRIAL) is None


def test_scaling_and_balance_never_see_the_judged_fold(dataset: FeatureDataset) -> None:
    rows, classes = running._load(dataset.folder, 1)
    fold = make_folds(rows.labels.numpy(), 3, seed=1)[0]
    spoiled = rows._replace(inputs=(rows.inputs[0].clone(),), weights=rows.weights.clone())
    spoiled.inputs[0][fold.val] *= 100
    spoiled.weights[fold.val] *= 5
    assert running.fitted_scaler(spoiled, fold) == running.fitted_scaler(rows, fold)
    weights, others = (
        running.balanced(each, fold, classes).weights.numpy() for each in (rows, spoiled)
    )
    np.testing.assert_array_equal(weights[fold.train], others[fold.train])
    sums = np.bincount(rows.labels.numpy()[fold.train], weights=weights[fold.train])
    np.testing.assert_allclose(sums, len(fold.train) / len(classes), rtol=1e-5)


def test_a_job_learns_on_fitted_and_balanced_rows_with_a_seed_for_each_fold(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def noted(
        make_network: Any, settings: Any, rows: Rows, fold: Fold, *, seed: int, num_steps: int
    ) -> Curves:
        sums = np.bincount(rows.labels[fold.train], weights=rows.weights[fold.train])
        np.testing.assert_allclose(sums, len(fold.train) / 3, rtol=1e-5)
        seen.append((tuple(make_network().scaling.mean.tolist()), seed))
        return Curves([0.1], [0.1], [0.9])

    monkeypatch.setattr(running, "train_on_fold", noted)
    assert run_job(search_on(dataset, seed=7), TRIAL, tmp_path).error == ""
    means, seeds = zip(*seen, strict=True)
    assert seeds == (7, 8, 9)
    assert len(set(means)) == 3


def test_a_job_that_fails_is_a_result_with_its_reason_beside_the_others_and_is_tried_again(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, grid = running._train, {"hidden": [[6], [4]], "learning_rate": [0.01], "epochs": [2]}

    def fail(common: Search, trial: Trial) -> Any:
        if trial.batch_size == 16:
            raise MemoryError("no room")
        return original(common, trial)

    with monkeypatch.context() as patched:
        patched.setattr(running, "_train", fail)
        with pytest.raises(
            TrainingError,
            match=r"all 1 settings .* 6-4_batch-16_rate-0.01_.*: MemoryError: no room",
        ):
            searched(search_on(dataset), tmp_path, **grid, batch_size=[16])
        found = searched(search_on(dataset), tmp_path, **grid, batch_size=[16, 32])
    assert [*found.failed.values()] == ["MemoryError: no room"]
    assert [each.trial.batch_size for each in found.scores] == [32]
    again = searched(search_on(dataset), tmp_path, **grid, batch_size=[16, 32])
    assert (len(again.scores), again.num_taken_over) == (2, 1)


def test_every_axis_of_a_job_changes_the_losses(dataset: FeatureDataset, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"hidden": (7, 4)},
        {"batch_size": 32},
        {"learning_rate": 0.02},
        {"epochs": 3},
    ]
    trials = [TRIAL._replace(**each) for each in changes]
    losses = {
        tuple(run_job(search_on(dataset), each, tmp_path).folds[0].val_loss) for each in trials
    }
    assert len(losses) == len(trials)


def test_halving_gives_the_best_more_epochs(dataset: FeatureDataset, tmp_path: Path) -> None:
    chosen = {
        "hidden": [[4, 8], [3]],
        "batch_size": [16, 32],
        "learning_rate": [0.001, 0.01],
        "epochs": [6],
    }
    found, again = (
        searched(search_on(dataset), tmp_path, **chosen, search="halving", halving_factor=2)
        for _ in range(2)
    )
    # Each setting once, as its last round left it; the winner is of the last one, whatever others had before.
    assert sorted(one.trial.epochs for one in found.scores) == [1] * 4 + [2] * 2 + [3, 6]
    assert ranked(found.scores)[0].trial.epochs == 6
    assert [one.rung for one in ranked(found.scores)] == [3, 2, 1, 1, 0, 0, 0, 0]
    settings = GridSearchSettings(**chosen, folds=3, search="halving", halving_factor=2)
    assert (
        num_trainings(search_on(dataset)._replace(settings=settings))
        == len(found.training_seconds)
        == 8 + 4 + 2 + 1
    )
    default = GridSearchSettings(batch_size=[64], epochs=[27], search="halving")
    assert num_trainings(search_on(dataset)._replace(settings=default)) == 27 + 9 + 3 + 1
    assert (again.scores, again.num_taken_over) == (found.scores, 15)
    assert sorted(again.training_seconds) == sorted(found.training_seconds)


def test_trials_were_trained_at_a_constant_rate_whatever_the_schedule(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    """Where the rate falls until the last epoch, a training of 6 epochs is no beginning of one of 9."""
    grid = {"hidden": [[6]], "batch_size": [16], "learning_rate": [0.01], "epochs": [6, 9]}
    curves, trials = {}, {}
    for decay in ("constant", "cosine"):
        folder = tmp_path / decay
        folder.mkdir()
        found = searched(search_on(dataset, schedule={"decay": decay}), folder, **grid)
        results = [finished(folder, Trial((6,), 16, 0.01, epochs)) for epochs in (6, 9)]
        curves[decay] = {each.trial.epochs: each.folds[0].val_loss for each in results if each}
        trials[decay] = sorted(each.trial.epochs for each in found.scores)
    assert trials == {"constant": [6, 9], "cosine": [6, 9]}
    assert {decay: sorted(each) for decay, each in curves.items()} == {
        "constant": [9],
        "cosine": [6, 9],
    }
    assert curves["cosine"][6] != curves["cosine"][9][:6] != curves["constant"][9][:6]
