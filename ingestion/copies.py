"""Finds events that several files hold, by content and numbers.

Files made by `hadd` or a skim have UUIDs of their own, so the UUID does not show the copies.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingestion.same_events import STORED, directions, mix_bits, same_events

if TYPE_CHECKING:
    # Awkward, which it imports, takes a second; the readers of keys need none.
    from ingestion.thresholds import Jagged

UInt64s = NDArray[np.uint64]

#: Candidates above these pT or ET [GeV] are the content of an event: skims keep them. The numbers
#: are the default thresholds of the config, but fixed, so that keys of all runs can be compared.
_PARTICLE_THRESHOLDS: Final = {"tracks": 0.5, "photons": 1.0, "neutral_hadrons": 1.0}
_THRESHOLDS: Final = {**_PARTICLE_THRESHOLDS, "electrons": 23.0, "muons": 23.0}
#: Odd 64-bit constants that spread the bits of a product; `_GOLDEN` is 2**64 / golden ratio.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_ODD: Final = np.uint64(0xD6E8FEB86659FD93)


class Copies(NamedTuple):
    """The events that are copies of earlier ones, in the order of the ranges; all (num_copies,)."""

    range_indices: NDArray[np.int64]
    """Index of the range of entries that holds each copy."""
    entries: NDArray[np.int64]
    """Entry of the copy in its ROOT file."""
    original_range_indices: NDArray[np.int64]
    """Index of the range that holds the original."""
    original_entries: NDArray[np.int64]
    """Entry of the original in its ROOT file."""


class KeysFile(NamedTuple):
    """A file with the keys of one range of entries of a ROOT file."""

    path: Path
    first_entry: int
    """Entry of the ROOT file to which the first key belongs."""
    file_number: int
    """Number of the ROOT file of the range."""


def event_keys(
    scalars: Mapping[str, NDArray[np.floating]], collections: Mapping[str, Jagged]
) -> UInt64s:
    """(num_events,) a 64-bit hash of the content of each event; 0 for one without candidates.

    Equal events have equal keys in every file. The content is the missing energy, and pT (or ET),
    eta and phi of the candidates above `_THRESHOLDS`, which skims keep. Jets, which are often
    clustered again or cut, count only in events without tracks, photons and neutral hadrons.

    Each collection adds the sum of the hashes of its candidates, so their order does not matter.
    """
    num_events = len(scalars["met"])
    keys = np.zeros(num_events, np.uint64)
    for name in ("met", "met_phi"):
        keys = mix_bits(keys + scalars[name].astype(np.float64).view(np.uint64))
    has_particles = np.zeros(num_events, np.bool_)
    has_candidates = np.zeros(num_events, np.bool_)
    # Jets come last: whether they count depends on the particles.
    for name in (*_THRESHOLDS, "jets"):
        if name not in collections:
            continue
        candidates = collections[name]
        if name == "jets":
            counts = np.repeat(~has_particles, np.diff(candidates.offsets))
        else:
            counts = candidates.size > _THRESHOLDS[name]
        hashes = _hashes(candidates) * counts
        keys = mix_bits(keys + _sums_per_event(hashes, candidates.offsets))
        has_any = _sums_per_event(counts.astype(np.int64), candidates.offsets) > 0
        has_candidates |= has_any
        if name in _PARTICLE_THRESHOLDS:
            has_particles |= has_any
    return np.where(has_candidates, keys, np.uint64(0))


def _hashes(candidates: Jagged) -> UInt64s:
    """(num_candidates,) hashes of pT (or ET), eta and phi, all as float32."""
    momenta = np.column_stack([candidates.size, candidates.fields["eta"]])
    # The two float32 of a row are read as one 64-bit integer.
    bits: UInt64s = np.ascontiguousarray(momenta, np.float32).view(np.uint64).ravel()
    # 32 bits of phi are spread over 64 by the constant, and added.
    bits += candidates.fields["phi"].astype(np.float32).view(np.uint32) * _ODD
    hashes = bits * _GOLDEN
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _sums_per_event(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """(num_events,) sums of the values of the candidates; integers may wrap around.

    A sum is the difference of the running sums at the end and the start of the event.
    """
    running = np.zeros(len(values) + 1, values.dtype)
    np.cumsum(values, out=running[1:])
    return running[offsets[1:]] - running[offsets[:-1]]


def stored_keys(
    content_keys: UInt64s, numbers: UInt64s | None, collections: Mapping[str, Jagged]
) -> NDArray[Any]:
    """The keys of events in the form of the file of keys.

    Without `numbers` (num_events,) of run and event, these are the keys of the content alone. Else
    the result has the type `STORED`, with the direction of the hardest lepton or jet.
    """
    if numbers is None:
        return content_keys
    stored = np.empty(len(content_keys), STORED)
    stored["content"] = content_keys
    stored["numbers"] = numbers
    stored["eta"], stored["phi"] = directions(collections)
    return stored


def read_keys(file: Path) -> UInt64s:
    """The keys of the content of the entries of one range."""
    return read_stored_keys(file)["content"]


def read_stored_keys(file: Path) -> NDArray[Any]:
    """The keys of the entries of one range, as `STORED`; fields that the file lacks are 0."""
    stored: NDArray[Any] = np.load(io.BytesIO(file.read_bytes()))
    if stored.dtype.names:
        return stored
    # The file of events without numbers holds a plain array of keys of the content.
    with_fields = np.zeros(len(stored), STORED)
    with_fields["content"] = stored
    return with_fields


def find_copies(keys_files: Sequence[KeysFile]) -> Copies:
    """The copies in some ranges; of several equal events the first counts as the original.

    The keys of all ranges are joined to one array of events, in which a row is the number of an
    event. A row whose original is an earlier row is a copy. Rows are then translated to the range
    and the entry in its ROOT file.
    """
    with ThreadPoolExecutor() as threads:
        stored = list(threads.map(lambda file: read_stored_keys(file.path), keys_files))
    # The events of all ranges in one array; `starts` are the rows at which ranges begin.
    events = np.concatenate([np.zeros(0, STORED), *stored])
    lengths = [len(keys) for keys in stored]
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    file_numbers = [file.file_number for file in keys_files]
    file_of_event = np.repeat(file_numbers, lengths)
    originals = _original_rows(events, file_of_event)
    rows = np.arange(len(events))
    copy_rows = np.flatnonzero(originals < rows)
    original_rows = originals[copy_rows]

    first_entries = np.array([file.first_entry for file in keys_files], np.int64)
    # Entry in the ROOT file minus row, for each range.
    entry_shifts = first_entries - starts[:-1]
    copy_ranges = _last_starting_before(copy_rows, starts)
    original_ranges = _last_starting_before(original_rows, starts)
    copy_entries = copy_rows + entry_shifts[copy_ranges]
    original_entries = original_rows + entry_shifts[original_ranges]
    return Copies(copy_ranges, copy_entries, original_ranges, original_entries)


def _last_starting_before(rows: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(num_rows,) index of the last range that begins at or before each row."""
    num_started = np.searchsorted(starts, rows, side="right")
    return num_started - 1


def _original_rows(events: NDArray[Any], files: NDArray[np.int64]) -> NDArray[np.int64]:
    """(num_events,) row of the original of each event; an event that is no copy is its own.

    The original is the first event of equal content, or an earlier one of the same numbers.
    """
    rows = np.arange(len(events))
    _, first_rows, groups = np.unique(events["content"], return_index=True, return_inverse=True)
    # Events without candidates (key 0) all have the same content, and are no copies by it.
    originals = np.where(events["content"] == 0, rows, first_rows[groups])
    pairs = same_events(files, events)
    # An event with several earlier ones of the same numbers gets the first.
    np.minimum.at(originals, pairs.second, pairs.first)
    return originals
