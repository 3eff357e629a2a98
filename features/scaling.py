"""Mergeable statistics of feature columns; they give the scaler, which becomes the model's first layer."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from features.compiling import compiled


@compiled
def moments(rows: NDArray[Any], counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and sum of squared deviations of the columns of padded `rows`, in double precision; see `of_padded`."""
    columns = rows.shape[2]
    mean, m2 = np.zeros(columns), np.zeros(columns)
    for block in range(counts.size):
        for row in range(counts[block]):
            for column in range(columns):
                mean[column] += rows[block, row, column]
    mean /= max(counts.sum(), 1)
    for block in range(counts.size):
        for row in range(counts[block]):
            for column in range(columns):
                deviation = rows[block, row, column] - mean[column]
                m2[column] += deviation * deviation
    return mean, m2


class ColumnStatistics(NamedTuple):
    """Count, mean and sum of squared deviations of each column; two of them merge without the data."""

    rows: int
    mean: NDArray[np.float64]
    """(num_columns,) means."""
    m2: NDArray[np.float64]
    """(num_columns,) sum of squared deviations from the mean."""

    @classmethod
    def of(cls, rows: NDArray[np.floating[Any]]) -> Self:
        """Statistics of (num_rows, num_columns) numbers without padding.

        Examples:
            >>> ColumnStatistics.of(np.array([[1.0], [3.0]])).std
            array([1.])
        """
        rows = np.ascontiguousarray(rows)
        mean, m2 = moments(rows[None], np.array([len(rows)]))
        return cls(len(rows), mean, m2)

    @classmethod
    def of_padded(cls, rows: NDArray[np.floating[Any]], counts: NDArray[np.integer[Any]]) -> Self:
        """Statistics of the first `counts[i]` rows of each block of (num_blocks, num_rows, num_columns) numbers.

        Examples:
            >>> ColumnStatistics.of_padded(np.array([[[1.0], [0.0]], [[3.0], [0.0]]]), np.array([1, 1])).mean
            array([2.])
        """
        mean, m2 = moments(rows, counts.astype(np.int64))
        return cls(int(counts.sum()), mean, m2)

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
        """`rows`, `mean` and `std`, for the model's scaling layer."""
        return {"rows": self.rows, "mean": self.mean.tolist(), "std": self.std.tolist()}
