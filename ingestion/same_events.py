"""Finds copies with recomputed content, such as MET, by run, block and event numbers.

Numbers alone are no identity: simulated files count their events from the same number on, and
samples share runs. Two files hold the same events if they share numbers, and at least half of the
events of a shared number have the same direction of their hardest lepton (or jet). No calibration
of momenta changes directions. So does one file with itself: after a merge it may count twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ingestion.thresholds import Jagged

Integers = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

#: The stored keys of an event that has numbers: a hash of its content, a hash of its numbers (0 for
#: none), and the direction (eta, phi) of its hardest lepton or jet, NaN without any.
STORED: Final = np.dtype([("content", "u8"), ("numbers", "u8"), ("eta", "f4"), ("phi", "f4")])
#: Two directions are the same if eta and phi each differ by less. Storage in reduced precision
#: changes them by less than this.
_SAME_DIRECTION: Final = 2e-3
#: If more events of one file share a number, the number does not identify an event.
_MAX_EVENTS_OF_A_NUMBER: Final = 2


class Pairs(NamedTuple):
    """Pairs of rows that hold the same event; both (num_pairs,).

    The first row of each pair is smaller than the second.
    """

    first: Integers
    second: Integers

    def select(self, index: NDArray[Any]) -> Self:
        """The pairs at some positions, or where a mask is true."""
        return self._replace(first=self.first[index], second=self.second[index])


def directions(
    collections: Mapping[str, Jagged],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(num_events,) eta and phi of the hardest electron or muon, else of the hardest jet.

    Both are NaN for an event without leptons and jets. The hardest has the highest pT.
    """
    num_events = len(collections["jets"].offsets) - 1
    hardest_pt = np.full(num_events, np.nan, np.float32)
    eta = np.full(num_events, np.nan, np.float32)
    phi = np.full(num_events, np.nan, np.float32)
    for name in ("electrons", "muons", "jets"):
        fields = collections[name].fields
        events, leading = _leading_candidates(collections[name])
        leading_pt = fields["pt"][leading]
        # Comparisons with NaN are false, so this is also true where there is no candidate yet.
        is_harder = ~(leading_pt <= hardest_pt[events])
        if name == "jets":
            # A jet counts only in events without leptons.
            is_harder = np.isnan(hardest_pt[events])
        events = events[is_harder]
        leading = leading[is_harder]
        hardest_pt[events] = leading_pt[is_harder]
        eta[events] = fields["eta"][leading]
        phi[events] = fields["phi"][leading]
    return eta, phi


def _leading_candidates(candidates: Jagged) -> tuple[Integers, Integers]:
    """The events that have candidates, and the row of the hardest candidate of each."""
    counts = np.diff(candidates.offsets)
    event_of_candidate = np.repeat(np.arange(len(counts)), counts)
    # Sorted by event, and from the hardest candidate of an event down.
    order = np.lexsort((-candidates.fields["pt"], event_of_candidate))
    # `np.unique` returns the first position of each event: that of its hardest candidate.
    events, first_positions = np.unique(event_of_candidate[order], return_index=True)
    return events, order[first_positions]


def same_events(files: Integers, events: NDArray[Any]) -> Pairs:
    """Return the pairs of events that are the same by their run, block and event numbers.

     1. Near pairs share numbers and direction.
     2. Two files with near pairs, or a file with itself, hold the same events if at least half of
        the events that share numbers are near. Events without a direction do not count in the half.
     3. Then all pairs of shared numbers of the two files hold the same event, whatever their
        directions.

    Args:
        files: (num_events,) number of the file of each event, in increasing order.
        events: (num_events,) of the type `STORED`.
    """
    rows = _identified_rows(files, events)
    near = _near_pairs(rows, events)
    if not len(near.first):
        return near
    no_rows = np.zeros(0, np.int64)
    results = [Pairs(no_rows, no_rows)]
    for first_file, second_file, near_of_files in _by_files(near, files):
        first_rows = _rows_of_file(first_file, rows, files)
        if first_file == second_file:
            shared = _repeated_numbers(first_rows, events)
        else:
            second_rows = _rows_of_file(second_file, rows, files)
            shared = _shared_numbers(first_rows, second_rows, events)
        first_has_direction = _has_direction(events[shared.first])
        second_has_direction = _has_direction(events[shared.second])
        num_comparable = np.count_nonzero(first_has_direction & second_has_direction)
        num_near = len(near_of_files.first)
        if 2 * num_near >= num_comparable:
            results.append(shared)
    first = np.concatenate([pairs.first for pairs in results])
    second = np.concatenate([pairs.second for pairs in results])
    return Pairs(first, second)


def _identified_rows(files: Integers, events: NDArray[Any]) -> Integers:
    """Return the rows of events whose numbers identify them in their file.

    An event without numbers has a key of 0. A number that many events of a file share identifies
    none of them.
    """
    rows = np.flatnonzero(events["numbers"])
    return rows[_is_rare(files[rows], events["numbers"][rows])]


def _has_direction(events: NDArray[Any]) -> NDArray[np.bool_]:
    """(num_events,) whether an event has a lepton or jet, and so a direction."""
    has_eta = np.isfinite(events["eta"])
    has_phi = np.isfinite(events["phi"])
    has_direction: NDArray[np.bool_] = has_eta & has_phi
    return has_direction


def _by_files(pairs: Pairs, files: Integers) -> Iterator[tuple[int, int, Pairs]]:
    """Group pairs of events by their pair of files; yields both file numbers and the pairs."""
    first_files = files[pairs.first]
    second_files = files[pairs.second]
    files_of_pairs = np.column_stack([first_files, second_files])
    # Sorting puts the pairs of one pair of files side by side, in the order of `pairs`.
    order = np.lexsort((second_files, first_files))
    sorted_files = files_of_pairs[order]
    file_pairs, starts = np.unique(sorted_files, axis=0, return_index=True)
    positions_by_files = np.split(order, starts[1:])
    for file_pair, positions in zip(file_pairs.tolist(), positions_by_files, strict=True):
        first_file, second_file = file_pair
        yield first_file, second_file, pairs.select(positions)


def _rows_of_file(file: int, rows: Integers, files: Integers) -> Integers:
    """The rows of one file, among increasing rows."""
    start, stop = np.searchsorted(files[rows], [file, file + 1])
    return rows[start:stop]


def _shared_numbers(rows: Integers, later_rows: Integers, events: NDArray[Any]) -> Pairs:
    """Pairs of the first event of each shared number in one file and in a later file."""
    _, positions, later_positions = np.intersect1d(
        events["numbers"][rows], events["numbers"][later_rows], return_indices=True
    )
    return Pairs(rows[positions], later_rows[later_positions])


def _repeated_numbers(rows: Integers, events: NDArray[Any]) -> Pairs:
    """Pairs of the two events of each number that comes twice among the rows of one file."""
    numbers = events["numbers"][rows]
    order = np.argsort(numbers, kind="stable")
    sorted_rows = rows[order]
    sorted_numbers = numbers[order]
    is_repeated = sorted_numbers[:-1] == sorted_numbers[1:]
    return Pairs(sorted_rows[:-1], sorted_rows[1:]).select(is_repeated)


def _is_rare(files: Integers, numbers: UInt64s) -> NDArray[np.bool_]:
    """(num_events,) whether at most two events of the same file have the number of the event."""
    # One key for file and number together counts the numbers of all files at once.
    keys = mix_bits(numbers + files.astype(np.uint64))
    _, groups, counts = np.unique(keys, return_inverse=True, return_counts=True)
    is_rare: NDArray[np.bool_] = counts[groups] <= _MAX_EVENTS_OF_A_NUMBER
    return is_rare


def _near_pairs(rows: Integers, events: NDArray[Any]) -> Pairs:
    """Return the pairs of events of the same number whose directions agree.

     1. Leave out events without a direction.
     2. Sort the others by number, and those of one number by eta.
     3. Compare each event with the next one in this order.

    Args:
        rows: Rows of the events to compare.
        events: (num_events,) of the type `STORED`.
    """
    rows = rows[_has_direction(events[rows])]
    etas = events["eta"][rows]
    numbers = events["numbers"][rows]
    order = np.lexsort((rows, etas, numbers))
    sorted_rows = rows[order]
    sorted_numbers = numbers[order]

    # Each event is compared with the next one.
    has_same_number = sorted_numbers[:-1] == sorted_numbers[1:]
    neighbours = Pairs(sorted_rows[:-1], sorted_rows[1:])
    pairs = neighbours.select(has_same_number)
    is_near = _has_same_direction(events[pairs.first], events[pairs.second])
    near = pairs.select(is_near)
    smaller = np.minimum(near.first, near.second)
    larger = np.maximum(near.first, near.second)
    return Pairs(smaller, larger)


def _has_same_direction(events: NDArray[Any], other_events: NDArray[Any]) -> NDArray[np.bool_]:
    """(num_pairs,) whether eta and phi of two events each differ by less than `_SAME_DIRECTION`."""
    delta_eta = np.abs(events["eta"] - other_events["eta"])
    azimuth = events["phi"].astype(np.float64)
    other_azimuth = other_events["phi"].astype(np.float64)
    # Azimuths are periodic: the smaller of both arcs between them is the difference.
    difference = np.abs(azimuth - other_azimuth)
    arc = difference % (2 * np.pi)
    other_arc = 2 * np.pi - arc
    delta_phi = np.minimum(arc, other_arc)

    has_same_eta = delta_eta < _SAME_DIRECTION
    has_same_phi = delta_phi < _SAME_DIRECTION
    is_same: NDArray[np.bool_] = has_same_eta & has_same_phi
    return is_same


def mix_bits(state: UInt64s) -> UInt64s:
    """Hash each 64-bit number: every bit of the input changes about half of the output bits.

    It is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    """
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
