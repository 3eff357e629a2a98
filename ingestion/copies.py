"""Finds events that several files hold, by their content: after `hadd` and skims a copy has another file UUID."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ingestion.thresholds import Jagged

UInt64s = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_ODD: Final = np.uint64(0xD6E8FEB86659FD93)


class Copies(NamedTuple):
    """The events of one part that an earlier place holds too."""

    entries: NDArray[np.int64]
    """(num_copies,) entries in the file of the part."""
    first: tuple[int, int]
    """Number of the part, and entry, of the original of the first copy."""


def event_keys(scalars: Mapping[str, NDArray[np.floating]], collections: Mapping[str, Jagged]) -> UInt64s:
    """64 bits of the content of each event, the same wherever the event is; 0 for an event without particles.

    The content is the missing energy, and pT (or ET), eta and phi of all particles.

    Examples:
        >>> from ingestion.thresholds import Jagged
        >>> one, met = np.ones(2, np.float32), np.array([5.0, 5.0, 5.0])
        >>> tracks = Jagged(np.array([0, 1, 2, 2]), {"pt": one, "eta": one, "phi": one})
        >>> keys = event_keys({"met": met, "met_phi": met}, {"tracks": tracks})
        >>> bool(keys[0] == keys[1]), int(keys[2])
        (True, 0)
    """
    keys = np.zeros(len(scalars["met"]), dtype=np.uint64)
    has_particles = np.zeros(len(keys), dtype=np.bool_)
    for name in ("met", "met_phi"):
        keys = _mixed(keys + scalars[name].astype(np.float64).view(np.uint64))
    for offsets, fields in collections.values():
        momenta = np.column_stack([fields["pt" if "pt" in fields else "et"], fields["eta"]])
        bits: UInt64s = np.ascontiguousarray(momenta, np.float32).view(np.uint64).ravel()
        bits += fields["phi"].astype(np.float32).view(np.uint32) * _ODD
        product = bits * _GOLDEN
        product ^= product >> np.uint64(32)
        running = np.zeros(len(bits) + 1, np.uint64)
        np.cumsum(product, out=running[1:])
        keys = _mixed(keys + running[offsets[1:]] - running[offsets[:-1]])
        has_particles |= np.diff(offsets) > 0
    return np.where(has_particles, keys, np.uint64(0))


def read_keys(file: Path) -> UInt64s:
    """The keys of the entries of one part."""
    keys: UInt64s = np.load(io.BytesIO(file.read_bytes()))
    return keys


def find_copies(parts: Sequence[tuple[Path, int]]) -> dict[int, Copies]:
    """The copies in each part, by number of the part; the first of several places counts as the original.

    A part is given as the file with the keys of its entries, and its first entry.
    """
    with ThreadPoolExecutor() as threads:
        keys = list(threads.map(lambda part: read_keys(part[0]), parts))
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
