"""Mergeable statistics of feature columns; they give the scaler, which becomes the model's first layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from features.columns import SCALED_LIMIT, ModelInput


class ColumnStatistics(NamedTuple):
    """Count, mean and sum of squared deviations of each column; two of them merge without the data.

    They are those of the values that networks see: of asinh(x / u) for a column that is logarithmic above u.
    """

    rows: int
    mean: NDArray[np.float64]
    """(num_columns,) means."""
    m2: NDArray[np.float64]
    """(num_columns,) sum of squared deviations from the mean."""

    @classmethod
    def from_rows(cls, rows: NDArray[np.floating[Any]], log_above: Sequence[float] = ()) -> Self:
        """Statistics of (num_rows, num_columns) numbers without padding; without `log_above` all columns are linear."""
        seen = np.array(rows.T, np.float64, order="C")
        for column, unit in zip(seen, log_above, strict=bool(log_above)):
            if unit > 0:
                column[:] = np.arcsinh(column / unit)
        mean = seen.sum(axis=1) / max(len(rows), 1)
        return cls(len(rows), mean, np.square(seen - mean[:, None]).sum(axis=1))

    def merge(self, other: ColumnStatistics) -> ColumnStatistics:
        """Statistics of both sets of rows together (Chan, Golub, LeVeque 1979)."""
        rows = self.rows + other.rows
        if rows == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.rows / rows)
        m2 = self.m2 + other.m2 + delta**2 * (self.rows * other.rows / rows)
        return ColumnStatistics(rows, mean, m2)

    @property
    def std(self) -> NDArray[np.float64]:
        """(num_columns,) standard deviations; 1 for constant columns, so that scaled values stay finite."""
        std = np.sqrt(self.m2 / max(self.rows, 1))
        constant = std <= 1e-12 * np.maximum(1.0, np.abs(self.mean))
        return np.where(constant, 1.0, std)


def scaler_json(statistics: ColumnStatistics, column: ModelInput) -> dict[str, Any]:
    """What the model's scaling layer needs of a column: `rows`, `mean`, `std`, `log_above`, `limit`."""
    seen = {
        "rows": statistics.rows,
        "mean": statistics.mean.tolist(),
        "std": statistics.std.tolist(),
    }
    return {**seen, "log_above": list(column.log_above), "limit": SCALED_LIMIT}
