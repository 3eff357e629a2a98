"""Finds events that several files hold, by their content: after `hadd` and skims a copy has another file UUID."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingestion.thresholds import Offsets

UInt64s = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_ODD: Final = np.uint64(0xD6E8FEB86659FD93)


class Copies(NamedTuple):
    """The events of one part that an earlier place holds too."""

    entries: NDArray[np.int64]
    """(num_copies,) entries in the file of the part."""
    first: tuple[int, int]
    """Number of the part, and entry, of the original of the first copy."""


def event_keys(scalars: Sequence[NDArray[np.floating]], particles: Sequence[tuple[Offsets, UInt64s]]) -> UInt64s:
    """64 bits of the content of each event, the same wherever the event is; 0 for an event without particles.

    `scalars` are (num_events,); `particles` offsets of each collection, and 64 bits of each of its particles.

    Examples:
        >>> offsets, bits = np.array([0, 1, 2, 2]), np.array([5, 5], dtype=np.uint64)
        >>> keys = event_keys([np.array([1.0, 1.0, 1.0])], [(offsets, bits)])
        >>> bool(keys[0] == keys[1]), int(keys[2])
        (True, 0)
    """
    keys = np.zeros(len(scalars[0]), dtype=np.uint64)
    has_particles = np.zeros(len(keys), dtype=np.bool_)
    for values in scalars:
        keys = _mixed(keys + values.astype(np.float64).view(np.uint64))
    for offsets, bits in particles:
        product = bits * _GOLDEN
        product ^= product >> np.uint64(32)
        running = np.zeros(len(bits) + 1, np.uint64)
        np.cumsum(product, out=running[1:])
        keys = _mixed(keys + running[offsets[1:]] - running[offsets[:-1]])
        has_particles |= np.diff(offsets) > 0
    return np.where(has_particles, keys, np.uint64(0))


def particle_bits(pt: NDArray[np.floating], eta: NDArray[np.floating], phi: NDArray[np.floating]) -> UInt64s:
    """64 bits of each particle, from pT, eta and phi."""
    bits: UInt64s = np.ascontiguousarray(np.column_stack([pt, eta]), np.float32).view(np.uint64).ravel()
    bits += phi.astype(np.float32).view(np.uint32) * _ODD
    return bits


def find_copies(parts: Sequence[tuple[Path, int]]) -> dict[int, Copies]:
    """The copies in each part, by number of the part; the first of several places counts as the original.

    A part is given as the file with the keys of its entries, and its first entry.
    """
    with ThreadPoolExecutor() as threads:
        keys = list(threads.map(lambda part: np.load(io.BytesIO(part[0].read_bytes())), parts))
    starts = np.cumsum([0, *map(len, keys)])
    values = np.concatenate([np.zeros(0, np.uint64), *keys])
    order = np.argsort(values, kind="stable")
    values = values[order]
    again = np.flatnonzero((values[1:] == values[:-1]) & (values[1:] != 0)) + 1
    again = again[np.argsort(order[again])]
    copies, originals = order[again], order[np.searchsorted(values, values[again])]
    found = {}
    for number, (begin, end) in enumerate(pairwise(np.searchsorted(copies, starts))):
        if begin < end:
            first = int(np.searchsorted(starts, originals[begin], side="right")) - 1
            entry = int(originals[begin] - starts[first]) + parts[first][1]
            found[number] = Copies(copies[begin:end] - starts[number] + parts[number][1], (first, entry))
    return found


def _mixed(state: UInt64s) -> UInt64s:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
