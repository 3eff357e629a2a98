"""The keys by which events are known in other files: their content, and their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingestion.copies import UInt64s, read_stored_keys
from ingestion.same_events import STORED, Integers, same_events


class NumberedEvents(NamedTuple):
    """Events that have numbers, of one ROOT file after the other."""

    events: NDArray[Any]
    """(num_events,) of the type `STORED`: the hash of run, block and event number, and the
    direction of the hardest lepton or jet."""
    files: Integers
    """(num_events,) number of the ROOT file of each event, in increasing order."""


class EventKeys(NamedTuple):
    """The keys of the events of some ROOT files."""

    content: UInt64s
    """Hashes of the content, each once and in ascending order."""
    numbered: NumberedEvents
    """The events with numbers, by which copies with changed content are known."""


#: The keys of no events.
NO_KEYS: Final = EventKeys(
    np.zeros(0, np.uint64), NumberedEvents(np.zeros(0, STORED), np.zeros(0, np.int64))
)


def read_event_keys(folder: Path) -> EventKeys:
    """Read the keys of all events in a folder of `ingest`.

    The folder has a file `<UUID>-<first entry>.npy` for each range of entries of a ROOT file; see
    `ingestion.copies`.
    """
    content = [NO_KEYS.content]
    events = [NO_KEYS.numbered.events]
    files = [NO_KEYS.numbered.files]
    file_numbers: dict[str, int] = {}
    # In the order of names, the ranges of a ROOT file follow each other.
    for path in sorted(folder.iterdir()):
        stored = read_stored_keys(path)
        uuid = path.stem.rpartition("-")[0]
        file_number = file_numbers.setdefault(uuid, len(file_numbers))
        content.append(stored["content"])
        numbered = stored[stored["numbers"] != 0]
        events.append(numbered)
        files.append(np.full(len(numbered), file_number))
    distinct = np.unique(np.concatenate(content))
    numbered_events = NumberedEvents(np.concatenate(events), np.concatenate(files))
    # The key 0 stands for an event without content.
    return EventKeys(distinct[distinct != 0], numbered_events)


def rows_with_copies(events: NumberedEvents, others: NumberedEvents) -> Integers:
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
