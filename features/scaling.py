"""Mergeable statistics of feature columns, and the scaler that they give: a model's first layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from features.columns import SCALED_LIMIT, ModelInput


class ColumnStatistics(NamedTuple):
    """Count, mean and sum of squared deviations of each column; two of them merge without the data.

    They describe the values that networks see: x itself, or asinh(x / u) for a column that is
    logarithmic above u.
    """

    rows: int
    """Number of rows."""
    mean: NDArray[np.float64]
    """(num_columns,) means."""
    m2: NDArray[np.float64]
    """(num_columns,) sum of squared deviations from the mean."""

    @classmethod
    def from_rows(cls, rows: NDArray[np.floating[Any]], log_above: Sequence[float] = ()) -> Self:
        """Statistics of (num_rows, num_columns) numbers without padding.

        `log_above` has one number u for each column, 0 for a linear one; without it all columns are
        linear.
        """
        columns = np.array(rows.T, np.float64, order="C")
        for column, unit in zip(columns, log_above, strict=bool(log_above)):
            if unit > 0:
                column[:] = np.arcsinh(column / unit)
        num_rows = len(rows)
        mean = columns.sum(axis=1) / max(num_rows, 1)
        deviations = columns - mean[:, None]
        m2 = np.square(deviations).sum(axis=1)
        return cls(num_rows, mean, m2)

    def merge(self, more: ColumnStatistics) -> ColumnStatistics:
        """Statistics of both sets of rows together (Chan, Golub, LeVeque 1979).

        The mean is weighted by the numbers of rows. To the sums of squared deviations comes a term
        for the distance of the two means.
        """
        rows = self.rows + more.rows
        if rows == 0:
            return self
        delta = more.mean - self.mean
        share_of_more = more.rows / rows
        mean = self.mean + delta * share_of_more
        m2_within = self.m2 + more.m2
        m2_between = delta**2 * (self.rows * more.rows / rows)
        return ColumnStatistics(rows, mean, m2_within + m2_between)

    @property
    def std(self) -> NDArray[np.float64]:
        """(num_columns,) standard deviations; 1 for constant columns keeps scaled values finite."""
        variance = self.m2 / max(self.rows, 1)
        std = np.sqrt(variance)
        magnitude = np.maximum(1.0, np.abs(self.mean))
        is_constant = std <= 1e-12 * magnitude
        return np.where(is_constant, 1.0, std)


def scaler_json(statistics: ColumnStatistics, column: ModelInput) -> dict[str, Any]:
    """The content of the model's scaling layer for an input: means, deviations and limits."""
    return {
        "rows": statistics.rows,
        "mean": statistics.mean.tolist(),
        "std": statistics.std.tolist(),
        "log_above": list(column.log_above),
        "limit": SCALED_LIMIT,
    }
