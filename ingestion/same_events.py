"""Run, luminosity block and event numbers: they show copies whose content was made again, such as MET.

Numbers alone are no identity: simulated files count their events from the same number on, and samples share runs. Two
files hold the same events if they share numbers, and at least half of the events of a shared number have the same
direction of their hardest lepton (or jet). No calibration of momenta changes directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ingestion.thresholds import Jagged

Integers = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

#: What is stored of an event with numbers: the key of its content, that of its numbers, and a direction.
STORED: Final = np.dtype([("content", "u8"), ("numbers", "u8"), ("eta", "f4"), ("phi", "f4")])
#: Difference of directions up to which they are the same; reduced precision changes them by less.
_SAME_DIRECTION: Final = 2e-3
#: A number that more events of one file have is no number of an event.
_MOST_OF_ONE_NUMBER: Final = 2


class Pairs(NamedTuple):
    """Places of events that are the same; both (num_pairs,), the first one before the second."""

    first: Integers
    second: Integers


def directions(
    collections: Mapping[str, Jagged],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(num_events,) eta and phi of the hardest electron or muon, else of the hardest jet; NaN without one."""
    num_events = len(collections["jets"].offsets) - 1
    hardest, eta, phi = np.full((3, num_events), np.nan, np.float32)
    for name in ("electrons", "muons", "jets"):
        offsets, fields = collections[name]
        events = np.repeat(np.arange(num_events), np.diff(offsets))
        # The hardest of each event comes first.
        order = np.lexsort((-fields["pt"], events))
        found, places = np.unique(events[order], return_index=True)
        leading = order[places]
        is_harder = ~(fields["pt"][leading] <= hardest[found])
        if name == "jets":
            is_harder = np.isnan(hardest[found])
        chosen, leading = found[is_harder], leading[is_harder]
        hardest[chosen], eta[chosen], phi[chosen] = (
            fields[field][leading] for field in ("pt", "eta", "phi")
        )
    return eta, phi


def same_events(files: Integers, events: NDArray[Any]) -> Pairs:
    """The pairs of events that are the same by their numbers.

    `events` are `STORED`, and `files` are the numbers of their files, in increasing order; both (num_events,).
    """
    rows = np.flatnonzero(events["numbers"])
    rows = rows[_is_rare(files[rows], events["numbers"][rows])]
    near = _near_pairs(rows, events)
    if not len(near.first):
        return near
    pairs_of_files = np.stack([files[near.first], files[near.second]], axis=1)
    chosen, groups, counts = np.unique(
        pairs_of_files, axis=0, return_inverse=True, return_counts=True
    )
    places = np.split(np.argsort(groups.ravel(), kind="stable"), np.cumsum(counts)[:-1])
    pairs = [Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for (one, other), near_places in zip(chosen.tolist(), places, strict=True):
        if one == other:
            pairs.append(Pairs(near.first[near_places], near.second[near_places]))
            continue
        shared = _shared(_of_file(one, rows, files), _of_file(other, rows, files), events)
        has_directions = np.isfinite(events["eta"][shared.first]) & np.isfinite(
            events["eta"][shared.second]
        )
        if 2 * len(near_places) >= has_directions.sum():
            pairs.append(shared)
    firsts, seconds = zip(*pairs, strict=True)
    return Pairs(np.concatenate(firsts), np.concatenate(seconds))


def _of_file(file: int, rows: Integers, files: Integers) -> Integers:
    """The rows of one file, of increasing rows."""
    start, stop = np.searchsorted(files[rows], [file, file + 1])
    return rows[start:stop]


def _shared(rows: Integers, other_rows: Integers, events: NDArray[Any]) -> Pairs:
    """The first events of each number that two files share; the rows of the first file are before the others."""
    numbers, other_numbers = events["numbers"][rows], events["numbers"][other_rows]
    _, places, other_places = np.intersect1d(numbers, other_numbers, return_indices=True)
    return Pairs(rows[places], other_rows[other_places])


def _is_rare(files: Integers, numbers: UInt64s) -> NDArray[np.bool_]:
    """(num_events,) whether few events of the same file have the number."""
    of_files = mix_bits(numbers + files.astype(np.uint64))
    _, places, counts = np.unique(of_files, return_inverse=True, return_counts=True)
    is_rare: NDArray[np.bool_] = counts[places] <= _MOST_OF_ONE_NUMBER
    return is_rare


def _near_pairs(rows: Integers, events: NDArray[Any]) -> Pairs:
    """Pairs of the same number and direction, of those that are neighbours in eta."""
    rows = rows[np.isfinite(events["eta"][rows]) & np.isfinite(events["phi"][rows])]
    numbers, eta = events["numbers"][rows], events["eta"][rows]
    rows = rows[np.lexsort((rows, eta, numbers))]
    left, right = events[rows[:-1]], events[rows[1:]]
    turn = np.abs(left["phi"].astype(np.float64) - right["phi"]) % (2 * np.pi)
    turn = np.minimum(turn, 2 * np.pi - turn)
    is_near = (np.abs(left["eta"] - right["eta"]) < _SAME_DIRECTION) & (turn < _SAME_DIRECTION)
    is_same = (left["numbers"] == right["numbers"]) & is_near
    one, other = rows[:-1][is_same], rows[1:][is_same]
    return Pairs(np.minimum(one, other), np.maximum(one, other))


def mix_bits(state: UInt64s) -> UInt64s:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
