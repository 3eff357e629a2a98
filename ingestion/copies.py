"""Finds events that several files hold, by their content: after `hadd` and skims a copy has another file UUID."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ingestion.thresholds import Jagged

UInt64s = NDArray[np.uint64]

#: Candidates above these pT or ET [GeV] are the content of an event: skims keep them. They are the defaults of the
#: config, but no settings: keys of all runs can be compared.
_PARTICLES_ABOVE: Final = {"tracks": 0.5, "photons": 1.0, "neutral_hadrons": 1.0}
_ABOVE: Final = {**_PARTICLES_ABOVE, "electrons": 23.0, "muons": 23.0}
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_ODD: Final = np.uint64(0xD6E8FEB86659FD93)


class Copies(NamedTuple):
    """The events that an earlier place holds too, in the order of their places; all (num_copies,)."""

    parts: NDArray[np.int64]
    """Number of the part of each copy."""
    entries: NDArray[np.int64]
    """Its entry in the file of the part."""
    original_parts: NDArray[np.int64]
    originals: NDArray[np.int64]
    """The same of the original."""


def event_keys(scalars: Mapping[str, NDArray[np.floating]], collections: Mapping[str, Jagged]) -> UInt64s:
    """64 bits of the content of each event, the same wherever the event is; 0 for an event without candidates.

    The content is the missing energy, and pT (or ET), eta and phi of the candidates that skims keep. Jets, which are
    made again or cut by many, count only in events without tracks, photons and neutral hadrons.
    """
    keys = np.zeros(len(scalars["met"]), dtype=np.uint64)
    has_particles, has_any = np.zeros((2, len(keys)), dtype=np.bool_)
    for name in ("met", "met_phi"):
        keys = _mixed(keys + scalars[name].astype(np.float64).view(np.uint64))
    # Jets come last.
    for name in (*_ABOVE, "jets"):
        if name not in collections:
            continue
        offsets, fields = collections[name]
        size = fields["pt" if "pt" in fields else "et"]
        kept = np.repeat(~has_particles, np.diff(offsets)) if name == "jets" else size > _ABOVE[name]
        momenta = np.column_stack([size, fields["eta"]])
        bits: UInt64s = np.ascontiguousarray(momenta, np.float32).view(np.uint64).ravel()
        bits += fields["phi"].astype(np.float32).view(np.uint32) * _ODD
        product = bits * _GOLDEN
        product ^= product >> np.uint64(32)
        product *= kept
        running = np.zeros(len(bits) + 1, np.uint64)
        np.cumsum(product, out=running[1:])
        keys = _mixed(keys + running[offsets[1:]] - running[offsets[:-1]])
        found = np.diff(np.concatenate([[0], np.cumsum(kept)])[offsets]) > 0
        has_any |= found
        has_particles |= found & (name in _PARTICLES_ABOVE)
    return np.where(has_any, keys, np.uint64(0))


def read_keys(file: Path) -> UInt64s:
    """The keys of the entries of one part."""
    keys: UInt64s = np.load(io.BytesIO(file.read_bytes()))
    return keys


def find_copies(parts: Sequence[tuple[Path, int]]) -> Copies:
    """The copies in some parts; the first of several places counts as the original.

    A part is given as the file with the keys of its entries, and its first entry.
    """
    with ThreadPoolExecutor() as threads:
        keys = list(threads.map(lambda part: read_keys(part[0]), parts))
    starts = np.cumsum([0, *map(len, keys)])
    values = np.concatenate([np.zeros(0, np.uint64), *keys])
    _, place, same = np.unique(values, return_index=True, return_inverse=True)
    originals = place[same]
    copies = np.flatnonzero((originals < np.arange(len(values))) & (values != 0))
    # How far the entries of each part are from its places among all keys.
    shift = np.array([first for _, first in parts], np.int64) - starts[:-1]
    places = (copies, originals[copies])
    of_parts = [np.searchsorted(starts, each, side="right") - 1 for each in places]
    entries = [each + shift[part] for each, part in zip(places, of_parts, strict=True)]
    return Copies(of_parts[0], entries[0], of_parts[1], entries[1])


def _mixed(state: UInt64s) -> UInt64s:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
