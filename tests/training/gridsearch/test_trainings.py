"""Jobs of a search on a real features dataset."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from feature_datasets import write_dataset
from spark_in_process import InProcessSpark

from features.columns import hlf_names
from features.dataset import FeatureDataset
from training.errors import TrainingError
from training.gridsearch import trainings
from training.gridsearch.search import Curves, Search, load_result
from training.gridsearch.settings import GridSearchSettings, Trial
from training.gridsearch.spark_job import SearchOutcome, count_trainings, run_search
from training.gridsearch.trainings import Fold, make_folds, run_job
from training.readers.batch import Rows
from training.settings import TrainSettings

TRIAL = Trial((6, 4), 16, 0.01, 2)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    rows = {"train": [50, 50, 50], "val": [20], "test": [20]}
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=rows)


def make_search(
    dataset: FeatureDataset, grid: dict[str, Any] | None = None, **train: Any
) -> Search:
    grid_section = {"folds": 3} | (grid or {})
    train_section = {"algorithm": "sgd"} | train
    grid_settings = GridSearchSettings.model_validate(grid_section)
    train_settings = TrainSettings.model_validate(train_section)
    return Search(dataset.folder, grid_settings, train_settings)


def run_in_process(search: Search, folder: Path) -> SearchOutcome:
    """The outcome of a search without Spark."""
    spark = cast("Any", InProcessSpark())
    return run_search(spark, search, folder, num_done=spark, num_tasks=lambda _: 1)


def test_a_job_learns_and_its_result_can_be_read_again(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    trial = TRIAL._replace(epochs=15)

    result = run_job(make_search(dataset), trial, tmp_path)

    assert result.error == ""
    epochs_of_folds = [len(curves.val_loss) for curves in result.folds]
    last_accuracies = [curves.val_accuracy[-1] for curves in result.folds]
    assert epochs_of_folds == [15, 15, 15]
    assert np.mean(last_accuracies) > 0.6
    # Weights and biases of layers of 6, 4 and 3 nodes.
    num_inputs = len(hlf_names())
    parameters_of_layers = [num_inputs * 6 + 6, 6 * 4 + 4, 4 * 3 + 3]
    assert result.num_parameters == sum(parameters_of_layers)
    assert load_result(tmp_path, trial) == result
    assert load_result(tmp_path, TRIAL) is None


def test_scaling_and_balance_do_not_depend_on_the_validation_rows(dataset: FeatureDataset) -> None:
    rows, classes = trainings._load(dataset.folder, 1)
    labels = rows.labels.numpy()
    fold = make_folds(labels, 3, seed=1)[0]
    features = rows.inputs[0].clone()
    features[fold.val] *= 100
    changed_weights = rows.weights.clone()
    changed_weights[fold.val] *= 5
    changed = rows._replace(inputs=(features,), weights=changed_weights)

    balanced = trainings.balance_classes(rows, fold, classes)
    balanced_of_changed = trainings.balance_classes(changed, fold, classes)

    assert trainings.fit_scaler(changed, fold) == trainings.fit_scaler(rows, fold)
    weights = balanced.weights.numpy()[fold.train]
    weights_of_changed = balanced_of_changed.weights.numpy()[fold.train]
    np.testing.assert_array_equal(weights, weights_of_changed)
    class_sums = np.bincount(labels[fold.train], weights=weights)
    expected_sum = len(fold.train) / len(classes)
    np.testing.assert_allclose(class_sums, expected_sum, rtol=1e-5)


def test_each_fold_has_its_own_scaling_balance_and_seed(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    means: list[tuple[float, ...]] = []
    seeds: list[int] = []

    def note_training(
        make_network: Any, _: Any, rows: Rows, fold: Fold, *, seed: int, num_steps: int
    ) -> Curves:
        class_sums = np.bincount(rows.labels[fold.train], weights=rows.weights[fold.train])
        np.testing.assert_allclose(class_sums, len(fold.train) / 3, rtol=1e-5)
        assert num_steps == 7
        means.append(tuple(make_network().scaling.mean.tolist()))
        seeds.append(seed)
        return Curves([0.1], [0.1], [0.9])

    monkeypatch.setattr(trainings, "train_on_fold", note_training)

    result = run_job(make_search(dataset, seed=7), TRIAL, tmp_path)

    assert result.error == ""
    assert seeds == [7, 8, 9]
    assert len(set(means)) == 3


def test_a_failed_job_is_listed_with_its_reason_and_run_again(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = {"hidden": [[6], [4]], "learning_rate": [0.01], "epochs": [2]}
    failing = make_search(dataset, {**grid, "batch_size": [16]})
    search = make_search(dataset, {**grid, "batch_size": [16, 32]})
    train = trainings._train

    def fail_for_small_batches(search: Search, trial: Trial) -> Any:
        if trial.batch_size == 16:
            raise MemoryError("no room")
        return train(search, trial)

    with monkeypatch.context() as patch:
        patch.setattr(trainings, "_train", fail_for_small_batches)
        message = r"all 1 settings .* 6-4_batch-16_rate-0.01_.*: MemoryError: no room"
        with pytest.raises(TrainingError, match=message):
            run_in_process(failing, tmp_path)
        partial = run_in_process(search, tmp_path)
    complete = run_in_process(search, tmp_path)

    assert list(partial.failed.values()) == ["MemoryError: no room"]
    assert [score.trial.batch_size for score in partial.scores] == [32]
    assert len(complete.scores) == 2
    assert complete.num_reused == 1


def test_features_that_a_task_cannot_read_are_no_result_of_a_trial(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = {"hidden": [[6], [4]], "learning_rate": [0.01], "epochs": [2], "batch_size": [16, 32]}
    search = make_search(dataset, grid)
    load = trainings._load
    num_loads = 0

    def fail_at_first(folder: Path, seed: int) -> Any:
        nonlocal num_loads
        num_loads += 1
        if num_loads == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return load(folder, seed)

    monkeypatch.setattr(trainings, "_load", fail_at_first)
    with pytest.raises(OSError, match="Stale file handle"):
        run_in_process(search, tmp_path)

    assert list(tmp_path.iterdir()) == []
    assert len(run_in_process(search, tmp_path).scores) == 2


def test_every_axis_of_the_grid_changes_the_losses(dataset: FeatureDataset, tmp_path: Path) -> None:
    search = make_search(dataset)
    trials = [
        TRIAL,
        TRIAL._replace(hidden=(7, 4)),
        TRIAL._replace(batch_size=32),
        TRIAL._replace(learning_rate=0.02),
        TRIAL._replace(epochs=3),
    ]

    results = [run_job(search, trial, tmp_path) for trial in trials]

    losses = {tuple(result.folds[0].val_loss) for result in results}
    assert len(losses) == len(trials)


@pytest.mark.parametrize(
    ("decay", "trained_epochs"),
    # A rate that falls until the last epoch makes 6 epochs no beginning of 9.
    [("constant", [9]), ("cosine", [6, 9])],
)
def test_trials_that_differ_in_epochs_share_a_training_only_at_a_constant_rate(
    dataset: FeatureDataset, tmp_path: Path, decay: str, trained_epochs: list[int]
) -> None:
    grid = {"hidden": [[6]], "batch_size": [16], "learning_rate": [0.01], "epochs": [6, 9]}
    search = make_search(dataset, grid, schedule={"decay": decay})

    outcome = run_in_process(search, tmp_path)

    assert sorted(score.trial.epochs for score in outcome.scores) == [6, 9]
    trials = [Trial((6,), 16, 0.01, epochs) for epochs in (6, 9)]
    trained = [trial.epochs for trial in trials if load_result(tmp_path, trial) is not None]
    assert trained == trained_epochs
    assert count_trainings(search) == len(trained_epochs)
