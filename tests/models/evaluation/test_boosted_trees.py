"""The boosted trees that networks are measured against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feature_datasets import write_dataset
from sklearn.metrics import roc_auc_score

from features.columns import hlf_names
from models.errors import UndefinedMetricError
from models.evaluation.boosted_trees import (
    FEWEST_TO_STOP_EARLY,
    BoostedTrees,
    boosted_trees,
    fitted_trees,
)

CLASSES = ["QCD", "ttbar", "W+jets"]


def made(num_events: int, *, seed: int = 1, num_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Features in which classes differ by a cut on two of them together, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_events)
    labels[:num_classes] = np.arange(num_classes)
    hlf = rng.normal(size=(num_events, len(hlf_names()))).astype(np.float32)
    hlf[:, 3] = np.abs(hlf[:, 3]) * np.where(labels == 1, 1, -1) * np.sign(hlf[:, 4])
    hlf[:, 5] += 3 * (labels == 2)
    return hlf, labels


@pytest.fixture(scope="module")
def trees() -> BoostedTrees:
    hlf, labels = made(400)
    return fitted_trees(hlf, labels, np.ones(400), classes=CLASSES, seed=1)


def test_they_learn_what_no_linear_model_can_from_400_events(trees: BoostedTrees) -> None:
    hlf, labels = made(1000, seed=2)
    probabilities = trees.probabilities({"hlf": hlf, "particles": np.zeros((1000, 1))})
    assert probabilities.shape == (1000, 3)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    selected = labels != 2
    ratio = probabilities[selected, 1] / (probabilities[selected, 0] + probabilities[selected, 1])
    assert roc_auc_score(labels[selected] == 1, ratio) > 0.9
    assert roc_auc_score(labels == 2, probabilities[:, 2]) > 0.95
    assert trees.inputs == ("hlf",)


def test_a_number_that_is_not_finite_got_a_plausible_class(trees: BoostedTrees) -> None:
    """scikit-learn's trees take NaN for a value, and infinity for a large one."""
    hlf, _ = made(4)
    expected = trees.probabilities({"hlf": hlf})
    hlf[[0, 1, 2], [3, 4, 13]] = np.nan, np.inf, -np.inf
    found = trees.probabilities({"hlf": hlf})
    assert np.isnan(found[:3]).all()
    np.testing.assert_array_equal(found[3], expected[3])
    assert trees.probabilities({"hlf": hlf[:0]}).shape == (0, 3)


def test_weights_are_used() -> None:
    hlf, labels = made(600)
    hlf[:] = 1.0
    weights = np.array([1.0, 2.0, 5.0])[labels]
    found = fitted_trees(hlf, labels, weights, classes=CLASSES, seed=1).probabilities(
        {"hlf": hlf[:1]}
    )
    # Features that say nothing leave the shares of the weight.
    expected = np.bincount(labels, weights) / weights.sum()
    np.testing.assert_allclose(found[0], expected, rtol=1e-3)


@pytest.mark.slow
def test_negative_weights_count_as_none_and_only_ratios_of_weights_matter() -> None:
    hlf, labels = made(600)
    weights = np.ones(600)
    weights[10:60] = -2.0
    clipped = fitted_trees(hlf, labels, weights, classes=CLASSES, seed=1)
    # A power of two, so that ratios are exact.
    small = fitted_trees(hlf, labels, np.maximum(weights, 0) * 2.0**-20, classes=CLASSES, seed=1)
    np.testing.assert_array_equal(
        clipped.probabilities({"hlf": hlf}), small.probabilities({"hlf": hlf})
    )


@pytest.mark.slow
def test_large_samples_stop_early_by_the_seed_and_small_ones_do_not(trees: BoostedTrees) -> None:
    assert trees.trees.n_iter_ == 100
    num_events = 2 * FEWEST_TO_STOP_EARLY + 200
    hlf, labels = made(num_events, num_classes=2)
    fitted = [
        fitted_trees(hlf, labels, np.ones(num_events), classes=CLASSES[:2], seed=seed)
        for seed in (1, 1, 2)
    ]
    assert 10 < fitted[0].trees.n_iter_ < 1000
    first, repeated, second = (model.probabilities({"hlf": hlf}) for model in fitted)
    assert first.shape == (num_events, 2)
    np.testing.assert_array_equal(first, repeated)
    assert (first != second).any()


def test_a_class_that_is_not_there_is_said() -> None:
    hlf, labels = made(100)
    with pytest.raises(UndefinedMetricError, match=r"cannot learn \['W\+jets'\]"):
        fitted_trees(hlf, np.minimum(labels, 1), np.ones(100), classes=CLASSES, seed=1)
    with pytest.raises(UndefinedMetricError, match=r"cannot learn \['QCD', 'ttbar'\]"):
        fitted_trees(hlf, labels, np.array([0.0, -1.0, 1.0])[labels], classes=CLASSES, seed=1)


def test_events_to_which_the_trees_are_not_fitted_were_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [60, 60], "val": [3], "test": [3]})
    (path, _), output = dataset.files("train"), list[str]()
    table = pq.read_table(path)
    weights = table["weight"].to_numpy() * np.where(np.arange(60) < 4, -1, 1)
    field_index = table.schema.get_field_index("weight")
    pq.write_table(
        table.set_column(
            field_index,
            table.schema.field(field_index),
            pa.array(weights, table.schema.field(field_index).type),
        ),
        path,
    )
    arguments = (dataset.files("train"), dataset.classes, dataset.class_weights)
    boosted_trees(*arguments, seed=1, report=output.append)
    assert output == [
        "boosted trees: 4 of 120 training events have negative weights and count as none"
    ]
    monkeypatch.setattr("models.evaluation.boosted_trees.FEWEST_TO_STOP_EARLY", 5)
    boosted_trees(*arguments, seed=1, report=output.append)
    assert output[2:] == [
        "boosted trees: 10% of the 120 training events only decide when the training stops"
    ]
