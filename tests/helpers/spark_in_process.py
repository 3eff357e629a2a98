"""A stand-in for Spark that runs every task here and now: no JVM, and patches reach the tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Here:
    """As much of a Spark context, of a data set and of an accumulator as ingest and features ask for."""

    def __init__(self, items: list[Any] | None = None) -> None:
        self._items = items or []
        self.value = 0

    def parallelize(self, items: list[Any], _: int) -> Here:
        return Here(items)

    def map(self, function: Callable[[Any], Any]) -> Here:
        return Here([function(item) for item in self._items])

    def flatMap(self, function: Callable[[Any], Any]) -> Here:  # noqa: N802 - Spark's name
        return Here([each for item in self._items for each in function(item)])

    def partitionBy(self, _: int, __: Callable[[Any], int]) -> Here:  # noqa: N802 - Spark's name
        keys = sorted({key for key, _ in self._items})
        return Here([[(key, value) for key, value in self._items if key == chosen] for chosen in keys])

    def mapPartitions(self, function: Callable[[Any], Any]) -> Here:  # noqa: N802 - Spark's name
        """After `partitionBy`."""
        return self.flatMap(function)

    def collect(self) -> list[Any]:
        return self._items

    def accumulator(self, _: int) -> Here:
        return Here()

    def add(self, number: int) -> None:
        self.value += number
