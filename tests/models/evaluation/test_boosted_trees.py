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


def labelled_features(
    num_events: int, *, seed: int = 1, num_classes: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Features in which classes differ by a cut on two of them together, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_events)
    labels[:num_classes] = np.arange(num_classes)
    hlf = rng.normal(size=(num_events, len(hlf_names()))).astype(np.float32)
    # Two features have the same sign in class 1, and different ones in the other classes.
    sign_of_product = np.where(labels == 1, 1, -1)
    hlf[:, 3] = np.abs(hlf[:, 3]) * np.sign(hlf[:, 4]) * sign_of_product
    hlf[labels == 2, 5] += 3
    return hlf, labels


@pytest.fixture(scope="module")
def trees() -> BoostedTrees:
    hlf, labels = labelled_features(400)
    return fitted_trees(hlf, labels, np.ones(400), classes=CLASSES, seed=1)


def test_they_learn_what_no_linear_model_can_from_400_events(trees: BoostedTrees) -> None:
    hlf, labels = labelled_features(1000, seed=2)
    columns = {"hlf": hlf, "particles": np.zeros((1000, 1))}

    probabilities = trees.probabilities(columns)

    assert trees.inputs == ("hlf",)
    assert probabilities.shape == (1000, 3)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    qcd, ttbar, wjets = probabilities.T
    is_of_first_two = labels != 2
    score = ttbar / (qcd + ttbar)
    area_of_ttbar = roc_auc_score(labels[is_of_first_two], score[is_of_first_two])
    area_of_wjets = roc_auc_score(labels == 2, wjets)
    assert area_of_ttbar > 0.9
    assert area_of_wjets > 0.95


def test_an_event_with_a_number_that_is_not_finite_has_no_probabilities(
    trees: BoostedTrees,
) -> None:
    """scikit-learn's trees take NaN for a value, and infinity for a large one."""
    hlf, _ = labelled_features(4)
    expected = trees.probabilities({"hlf": hlf})
    hlf[0, 3] = np.nan
    hlf[1, 4] = np.inf
    hlf[2, 13] = -np.inf

    probabilities = trees.probabilities({"hlf": hlf})

    assert np.isnan(probabilities[:3]).all()
    np.testing.assert_array_equal(probabilities[3], expected[3])
    assert trees.probabilities({"hlf": hlf[:0]}).shape == (0, 3)


def test_constant_features_leave_the_shares_of_the_weight() -> None:
    hlf, labels = labelled_features(600)
    hlf[:] = 1.0
    weights = np.array([1.0, 2.0, 5.0])[labels]

    trees = fitted_trees(hlf, labels, weights, classes=CLASSES, seed=1)

    (probabilities,) = trees.probabilities({"hlf": hlf[:1]})
    shares = np.bincount(labels, weights) / weights.sum()
    np.testing.assert_allclose(probabilities, shares, rtol=1e-3)


@pytest.mark.slow
def test_negative_weights_count_as_none_and_only_ratios_of_weights_matter() -> None:
    hlf, labels = labelled_features(600)
    signed = np.ones(600)
    signed[10:60] = -2.0
    # A power of two, so that ratios are exact.
    small = np.maximum(signed, 0) * 2.0**-20

    trees = fitted_trees(hlf, labels, signed, classes=CLASSES, seed=1)

    same_trees = fitted_trees(hlf, labels, small, classes=CLASSES, seed=1)
    probabilities = trees.probabilities({"hlf": hlf})
    expected = same_trees.probabilities({"hlf": hlf})
    np.testing.assert_array_equal(probabilities, expected)


@pytest.mark.slow
def test_large_samples_stop_early_by_the_seed_and_small_ones_do_not(trees: BoostedTrees) -> None:
    num_events = 2 * FEWEST_TO_STOP_EARLY + 200
    hlf, labels = labelled_features(num_events, num_classes=2)

    weights = np.ones(num_events)

    def fit(seed: int) -> BoostedTrees:
        return fitted_trees(hlf, labels, weights, classes=CLASSES[:2], seed=seed)

    first = fit(1)
    probabilities = first.probabilities({"hlf": hlf})
    with_same_seed = fit(1).probabilities({"hlf": hlf})
    with_other_seed = fit(2).probabilities({"hlf": hlf})

    assert trees.trees.n_iter_ == 100
    assert 10 < first.trees.n_iter_ < 1000
    assert probabilities.shape == (num_events, 2)
    np.testing.assert_array_equal(with_same_seed, probabilities)
    assert (with_other_seed != probabilities).any()


@pytest.mark.parametrize(
    ("weight_of_class", "missing"),
    [([1.0, 1.0, 0.0], r"\['W\+jets'\]"), ([0.0, -1.0, 1.0], r"\['QCD', 'ttbar'\]")],
)
def test_a_class_without_positive_weight_is_an_error(
    weight_of_class: list[float], missing: str
) -> None:
    hlf, labels = labelled_features(100)
    weights = np.array(weight_of_class)[labels]

    with pytest.raises(UndefinedMetricError, match=f"cannot learn {missing}"):
        fitted_trees(hlf, labels, weights, classes=CLASSES, seed=1)


def test_events_to_which_the_trees_are_not_fitted_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [60, 60], "val": [3], "test": [3]})
    path, _ = dataset.files("train")
    table = pq.read_table(path)
    signs = np.repeat([-1, 1], [4, 56])
    signed_weights = table["weight"].to_numpy() * signs
    index = table.schema.get_field_index("weight")
    field = table.schema.field("weight")
    table = table.set_column(index, field, pa.array(signed_weights, field.type))
    pq.write_table(table, path)
    monkeypatch.setattr("models.evaluation.boosted_trees.FEWEST_TO_STOP_EARLY", 5)
    reports: list[str] = []

    boosted_trees(
        dataset.files("train"),
        dataset.classes,
        dataset.class_weights,
        seed=1,
        report=reports.append,
    )

    assert reports == [
        "boosted trees: 4 of 120 training events have negative weights and count as none",
        "boosted trees: 10% of the 120 training events only decide when the training stops",
    ]
