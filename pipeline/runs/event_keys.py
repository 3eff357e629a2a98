"""The keys by which events are known in other files: their content, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ingestion.copies import UInt64s, read_stored_keys
from ingestion.same_events import STORED, Integers, same_events


class JoinedEvents(NamedTuple):
    """Events of ROOT files, those of one file after those of the other."""

    events: NDArray[Any]
    """(num_events,) of the type `STORED`: hashes of the content and of run, block and event number,
    and the direction of the hardest lepton or jet."""
    files: Integers
    """(num_events,) number of the ROOT file of each event, in increasing order."""

    def select(self, index: NDArray[Any]) -> Self:
        """Return the events in some increasing rows, or where a mask is true."""
        return self._replace(events=self.events[index], files=self.files[index])


class CopyKeys(NamedTuple):
    """The keys by which copies of the events of some ROOT files are known."""

    content: UInt64s
    """Hashes of the content, each once and in ascending order."""
    numbered: JoinedEvents
    """The events with numbers, by which copies with changed content are known."""


#: The keys of no events.
NO_KEYS: Final = CopyKeys(
    np.zeros(0, np.uint64), JoinedEvents(np.zeros(0, STORED), np.zeros(0, np.int64))
)


def read_event_keys(folder: Path) -> CopyKeys:
    """Read the keys of all events in a folder of `ingest`.

    The folder has a file `<UUID>-<first entry>.npy` for each range of entries of a ROOT file; see
    `ingestion.copies`.
    """
    # In the order of names, the ranges of a ROOT file follow each other.
    paths = sorted(folder.iterdir())
    uuids = [path.stem.rpartition("-")[0] for path in paths]
    joined = join_ranges(uuids, [read_stored_keys(path) for path in paths])
    content = np.unique(joined.events["content"])
    has_numbers = joined.events["numbers"] != 0
    # The key 0 stands for an event without content.
    return CopyKeys(content[content != 0], joined.select(has_numbers))


def join_ranges(uuids: Sequence[str], ranges: Sequence[NDArray[Any]]) -> JoinedEvents:
    """Join the events of ranges of entries; the ranges of one ROOT file follow each other.

    Args:
        uuids: UUID of the ROOT file of each range.
        ranges: Keys of the entries of each range, as `STORED`.
    """
    file_numbers: dict[str, int] = {}
    for uuid in uuids:
        file_numbers.setdefault(uuid, len(file_numbers))
    file_of_range = np.array([file_numbers[uuid] for uuid in uuids], np.int64)
    lengths = np.array([len(keys) for keys in ranges], np.int64)
    events = np.concatenate([NO_KEYS.numbered.events, *ranges])
    return JoinedEvents(events, np.repeat(file_of_range, lengths))


def rows_with_keys(events: JoinedEvents, keys: CopyKeys) -> Integers:
    """Return the rows of events that have some of the keys, each once and in ascending order.

    An event is the same if its content is, or if its numbers and those of its file say so; see
    `rows_with_copies`.
    """
    has_same_content = are_among(events.events["content"], keys.content)
    copies = rows_with_copies(events, keys.numbered)
    return np.union1d(np.flatnonzero(has_same_content), copies)


def rows_with_copies(events: JoinedEvents, others: JoinedEvents) -> Integers:
    """Return the rows of `events` that are the same events as some of `others`, by their numbers.

    Numbers alone are no identity; see `ingestion.same_events`.
    """
    num_events = len(events.events)
    if not num_events or not len(others.events):
        return np.zeros(0, np.int64)
    num_files = events.files[-1] + 1
    files = np.concatenate([events.files, others.files + num_files])
    pairs = same_events(files, np.concatenate([events.events, others.events]))
    # Pairs within one side tell nothing about the other.
    is_between = (pairs.first < num_events) & (pairs.second >= num_events)
    return np.unique(pairs.first[is_between])


def are_among(values: UInt64s, wanted: UInt64s) -> NDArray[np.bool_]:
    """(num_values,) whether each value is wanted; many calls need no sort of the wanted values.

    Args:
        values: The values, in any order.
        wanted: The wanted values, each once and in ascending order.
    """
    if not len(wanted):
        return np.zeros(len(values), np.bool_)
    # This is the smallest wanted value that is not below each value, or the last one. Without the
    # last one in the search, no index is beyond the end.
    nearest = wanted[np.searchsorted(wanted[:-1], values)]
    is_wanted: NDArray[np.bool_] = nearest == values
    return is_wanted
