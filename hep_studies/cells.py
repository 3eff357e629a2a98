"""Cells: the groups of runs of a study that tables show and that claims compare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

#: Beginning of a varied key whose values are names of situations.
SITUATION: Final = "situation."


class Cell(NamedTuple):
    """The key of a group of runs: a method at some values of the varied keys.

    Its runs differ only in their seeds and in keys of `best_of`, such as the learning rate, of
    which each method is shown at its best value. A cell is one row of a table, or one point of a
    line.
    """

    method: str
    values: tuple[tuple[str, str], ...] = ()
    """Pairs of a varied key and its value as JSON text, which has a hash unlike lists."""

    @classmethod
    def from_values(cls, method: str, values: Mapping[str, Any]) -> Self:
        """Return the cell of a method with plain values of varied keys."""
        pairs = [(key, json.dumps(value, sort_keys=True)) for key, value in values.items()]
        return cls(method, tuple(pairs))

    @property
    def plain_values(self) -> dict[str, Any]:
        """The values of the varied keys, read from their JSON."""
        return {key: json.loads(text) for key, text in self.values}

    def matches(self, values: Mapping[str, Any]) -> bool:
        """Tell whether the cell has these values of the keys that it varies; 0 equals 0.0.

        Keys that the cell does not vary are ignored.
        """
        return all(values.get(key, value) == value for key, value in self.plain_values.items())

    def without(self, *keys: str | None) -> Cell:
        """Return the cell without some keys."""
        return Cell(self.method, tuple(pair for pair in self.values if pair[0] not in keys))

    @property
    def situation_keys(self) -> list[str]:
        """The keys of situations that the cell varies."""
        return [key for key, _ in self.values if key.startswith(SITUATION)]

    @property
    def in_any_situation(self) -> Cell:
        """The values of the cell without its method and its situation."""
        return Cell("", self.without(*self.situation_keys).values)
