"""Mergeable statistics of feature columns; they give the scaler, which becomes the model's first layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from features.asinh import asinh
from features.columns import SCALED_LIMIT, ModelInput
from features.compiling import compiled

#: Rows that stay in the processor's cache while column after column is read.
_AT_ONCE: Final = 512


@compiled
def moments(rows: NDArray[Any], log_above: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and sum of squared deviations of the columns of (num_rows, num_columns), in double precision."""
    num_rows, columns = rows.shape
    mean, m2 = np.zeros(columns), np.zeros(columns)
    values = np.empty(_AT_ONCE, rows.dtype)
    for start in range(0, num_rows, _AT_ONCE):
        count = min(_AT_ONCE, num_rows - start)
        for column in range(columns):
            total, squares, unit = 0.0, 0.0, log_above[column]
            for row in range(count):
                values[row] = rows[start + row, column]
            if unit > 0:
                for row in range(count):
                    values[row] = asinh(values[row] / unit)
            for row in range(count):
                total += values[row]
            own = total / count
            for row in range(count):
                deviation = values[row] - own
                squares += deviation * deviation
            # As in `ColumnStatistics.merge`.
            delta, share = own - mean[column], count / (start + count)
            mean[column] += delta * share
            m2[column] += squares + delta * delta * start * share
    return mean, m2


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
    def of(cls, rows: NDArray[np.floating[Any]], log_above: Sequence[float] = ()) -> Self:
        """Statistics of (num_rows, num_columns) numbers without padding.

        Args:
            rows: The numbers.
            log_above: `features.columns.Feature.log_above`; empty if all columns are linear.

        Examples:
            >>> ColumnStatistics.of(np.array([[1.0], [3.0]])).std
            array([1.])
        """
        units = np.array(log_above or [0.0] * rows.shape[1], rows.dtype)
        mean, m2 = moments(np.ascontiguousarray(rows), units)
        return cls(len(rows), mean, m2)

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

    def to_json(self) -> dict[str, Any]:
        """`rows`, `mean` and `std`."""
        return {"rows": self.rows, "mean": self.mean.tolist(), "std": self.std.tolist()}


def scaler_json(statistics: ColumnStatistics, column: ModelInput) -> dict[str, Any]:
    """What the model's scaling layer needs of a column: `rows`, `mean`, `std`, `log_above`, `limit`."""
    return {**statistics.to_json(), "log_above": list(column.log_above), "limit": SCALED_LIMIT}
