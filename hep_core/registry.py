"""Tables of what the package and its plugins offer by name, such as methods of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class PluginRegistry(Mapping[str, T]):
    """A table of entries by name, to which the package's own modules and plugins add.

    `entry_kind` is the noun for an entry in messages, such as "topology".

    Examples:
        >>> seasons = PluginRegistry[int]("season")
        >>> seasons.register("spring", 3)
        >>> seasons["spring"], seasons.get("summer"), list(seasons)
        (3, None, ['spring'])
    """

    def __init__(self, entry_kind: str) -> None:
        self.entry_kind = entry_kind
        self._entries: dict[str, T] = {}

    def register(self, name: str, entry: T) -> None:
        """Add an entry.

        Raises:
            ValueError: The name has an entry already.
        """
        if name in self._entries:
            raise ValueError(
                f"the {self.entry_kind} '{name}' is registered twice: as {self._entries[name]} and "
                f"as {entry}. Rename one of them."
            )
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
