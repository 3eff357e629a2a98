"""The reference for the networks: boosted decision trees on the high-level features.

The module imports scikit-learn, which is slow; evaluations without the trees do not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from features.matrices import model_inputs, required_columns
from hep_core.checked_parquet import read_parquet
from models.errors import UndefinedMetricError
from models.prediction import Candidate

#: Least number of events of each class for early stopping, which uses a tenth of the events.
FEWEST_TO_STOP_EARLY: Final = 1000


class BoostedTrees(NamedTuple):
    """Boosted decision trees (Friedman 2001) on the high-level features, by scikit-learn."""

    trees: HistGradientBoostingClassifier
    inputs: tuple[str, ...] = ("hlf",)
    """Columns of the features Parquet that `probabilities` takes."""

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Predict class probabilities (B, num_classes) of B events with column `hlf` (B, NUM_HLF).

        An event with a feature that is not finite gets NaN, as from networks. The trees themselves
        would take NaN as a valid value.
        """
        hlf = columns["hlf"]
        shape = len(hlf), len(self.trees.classes_)
        probabilities = np.full(shape, np.nan, dtype=np.float32)
        is_finite = np.isfinite(hlf).all(axis=1)
        # The trees refuse an empty array.
        if is_finite.any():
            probabilities[is_finite] = self.trees.predict_proba(hlf[is_finite])
        return probabilities


def fitted_trees(
    hlf: NDArray[Any],
    labels: NDArray[np.int64],
    weights: NDArray[Any],
    *,
    classes: Sequence[str],
    seed: int,
) -> BoostedTrees:
    """Train boosted trees on high-level features; the same seed and events give the same trees.

    Parameters are scikit-learn's defaults, except for a small penalty on leaves. With fewer than
    1000 events of a class the training has 100 rounds. With more it has up to 1000 rounds. It stops
    early if the loss on a tenth of the events, drawn by the seed, has not improved for 10 rounds.

    Args:
        hlf: (num_events, NUM_HLF) raw features.
        labels: (num_events,) classes.
        weights: (num_events,). Negative weights count as 0; only ratios of weights matter.
        classes: Names of the classes, by label.
        seed: Seed of the training.

    Raises:
        UndefinedMetricError: A class has no events of positive weight.
    """
    # With a negative weight a leaf could have no finite value.
    positive = np.maximum(np.asarray(weights, dtype=np.float64), 0.0)
    counts = np.bincount(labels[positive > 0], minlength=len(classes))
    missing = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    if missing:
        raise UndefinedMetricError(
            f"trees cannot learn {missing}: no events of positive weight. Add files."
        )
    stops_early = bool(counts.min() >= FEWEST_TO_STOP_EARLY)
    trees = HistGradientBoostingClassifier(
        max_iter=1000 if stops_early else 100,
        early_stopping=stops_early,
        l2_regularization=1.0,
        random_state=seed,
    )
    # Leaf penalties are absolute: weights of 1 on average make them independent of the weights'
    # unit.
    relative_weights = positive / positive.mean()
    trees.fit(hlf, labels, sample_weight=relative_weights)
    return BoostedTrees(trees)


def boosted_trees(
    files: Sequence[Path],
    classes: Sequence[str],
    class_weights: Sequence[float],
    *,
    seed: int,
    report: Callable[[str], None] = lambda _: None,
) -> Candidate:
    """Fit the reference, gradient-boosted trees on the high-level features, to the training split.

    Args:
        files: Features Parquet files of the training split.
        classes: Names of the classes, by label.
        class_weights: Factor of the weights of each class, by label.
        seed: Seed of the training.
        report: Called with a sentence if events of negative weight count as none, and if events
            only decide when the training stops.
    """
    columns = required_columns(["hlf", "label", "weight"])
    table = pa.concat_tables([read_parquet(file, columns) for file in files])
    labels = table["label"].to_numpy()
    # Each event counts with its weight times the factor of its class.
    event_weights = table["weight"].to_numpy().astype(np.float64)
    weights = event_weights * np.asarray(class_weights)[labels]
    hlf = model_inputs(table, ["hlf"])["hlf"]
    model = fitted_trees(hlf, labels, weights, classes=classes, seed=seed)
    num_events = len(labels)
    num_negative = int((weights < 0).sum())
    if num_negative:
        report(
            f"boosted trees: {num_negative:,} of {num_events:,} training events have negative "
            "weights and count as none"
        )
    if model.trees.do_early_stopping_:
        share = model.trees.validation_fraction
        report(
            f"boosted trees: {share:.0%} of the {num_events:,} training events only decide when "
            "the training stops"
        )
    return Candidate("boosted-trees", model)
