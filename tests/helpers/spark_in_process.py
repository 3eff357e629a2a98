"""A stand-in for Spark that runs every task here and now: no JVM, and patches reach the tasks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final


class InProcessSpark:
    """The methods of a Spark context, RDD and accumulator that ingest and features use."""

    def __init__(self, items: list[Any] | None = None) -> None:
        self._items = items or []
        self.value = 0

    def parallelize(self, items: list[Any], _: int) -> InProcessSpark:
        return InProcessSpark(items)

    def map(self, function: Callable[[Any], Any]) -> InProcessSpark:
        return InProcessSpark([function(item) for item in self._items])

    def flatMap(self, function: Callable[[Any], list[Any]]) -> InProcessSpark:  # noqa: N802 - Spark's name
        return InProcessSpark([actual for item in self._items for actual in function(item)])

    def collect(self) -> list[Any]:
        return self._items

    def accumulator(self, _: int) -> InProcessSpark:
        return InProcessSpark()

    def add(self, index: int) -> None:
        self.value += index


#: In the place of a `SparkProvider`.
WITHOUT_SPARK: Final[Any] = SimpleNamespace(
    context=lambda **_: InProcessSpark(), num_tasks=int, release=lambda: None, stop=lambda: None
)
