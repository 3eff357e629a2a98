"""Predictions of one model as arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from models.evaluation.metrics import mixing_factors, within_classes
from models.evaluation.rates import Rates
from models.prediction import rows_of


class ScoredEvents(NamedTuple):
    """Events with the probabilities that a model gives them."""

    labels: NDArray[np.int64]
    """(num_events,) true classes."""
    probabilities: NDArray[np.float64]
    """(num_events, num_classes) predicted probabilities."""
    weights: NDArray[np.float64]
    """(num_events,) physics weights within a class; each class adds up to its number of events, and its samples have
    the proportions of their rates, where these are known."""
    hlf: NDArray[np.float32]
    """(num_events, NUM_HLF) raw high-level features."""
    samples: NDArray[np.str_]
    """(num_events,) names of the samples."""

    @classmethod
    def of(cls, predictions: pa.Table, rates: Rates | None = None) -> ScoredEvents:
        """The events of a table from `models.prediction.predict` with the column `hlf`."""
        labels, weights = (predictions[name].to_numpy() for name in ("label", "weight"))
        samples = predictions["sample"].to_numpy().astype(str)
        return cls(
            labels,
            rows_of(predictions, "probability").astype(np.float64),
            within_classes(labels, weights * mixing_factors(labels, samples, weights, rates and rates.values)),
            rows_of(predictions, "hlf"),
            samples,
        )

    def chosen(self, rows: NDArray[np.int64]) -> ScoredEvents:
        """The events of some numbers."""
        return ScoredEvents._make(column[rows] for column in self)
