"""Finds events that several files hold, by content and numbers: after `hadd` and skims a copy has another file UUID."""

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


def event_keys(
    scalars: Mapping[str, NDArray[np.floating]], collections: Mapping[str, Jagged]
) -> UInt64s:
    """64 bits of the content of each event, the same wherever the event is; 0 for an event without candidates.

    The content is the missing energy, and pT (or ET), eta and phi of the candidates that skims keep. Jets, which are
    made again or cut by many, count only in events without tracks, photons and neutral hadrons.
    """
    keys = np.zeros(len(scalars["met"]), dtype=np.uint64)
    has_particles, has_any = np.zeros((2, len(keys)), dtype=np.bool_)
    for name in ("met", "met_phi"):
        keys = mix_bits(keys + scalars[name].astype(np.float64).view(np.uint64))
    # Jets come last.
    for name in (*_ABOVE, "jets"):
        if name not in collections:
            continue
        offsets, fields = collections[name]
        size = fields["pt" if "pt" in fields else "et"]
        kept = (
            np.repeat(~has_particles, np.diff(offsets)) if name == "jets" else size > _ABOVE[name]
        )
        momenta = np.column_stack([size, fields["eta"]])
        bits: UInt64s = np.ascontiguousarray(momenta, np.float32).view(np.uint64).ravel()
        bits += fields["phi"].astype(np.float32).view(np.uint32) * _ODD
        product = bits * _GOLDEN
        product ^= product >> np.uint64(32)
        product *= kept
        running = np.zeros(len(bits) + 1, np.uint64)
        np.cumsum(product, out=running[1:])
        keys = mix_bits(keys + running[offsets[1:]] - running[offsets[:-1]])
        found = np.diff(np.concatenate([[0], np.cumsum(kept)])[offsets]) > 0
        has_any |= found
        has_particles |= found & (name in _PARTICLES_ABOVE)
    return np.where(has_any, keys, np.uint64(0))


def stored_keys(
    content: UInt64s, numbers: UInt64s | None, collections: Mapping[str, Jagged]
) -> NDArray[Any]:
    """What the file of the keys holds of some events: their content keys, and what tells them by their numbers."""
    if numbers is None:
        return content
    stored = np.empty(len(content), STORED)
    stored["content"], stored["numbers"] = content, numbers
    stored["eta"], stored["phi"] = directions(collections)
    return stored


def read_keys(file: Path) -> UInt64s:
    """The keys of the content of the entries of one part."""
    return _read_stored(file)["content"]


def _read_stored(file: Path) -> NDArray[Any]:
    stored: NDArray[Any] = np.load(io.BytesIO(file.read_bytes()))
    if stored.dtype.names:
        return stored
    # Events without numbers.
    filled = np.zeros(len(stored), STORED)
    filled["content"] = stored
    return filled


def find_copies(parts: Sequence[tuple[Path, int, int]]) -> Copies:
    """The copies in some parts; the first of several places counts as the original.

    A part is given as the file with the keys of its entries, its first entry, and the number of its ROOT file.
    """
    with ThreadPoolExecutor() as threads:
        stored = list(threads.map(lambda part: _read_stored(part[0]), parts))
    starts = np.cumsum([0, *map(len, stored)])
    events = np.concatenate([np.zeros(0, STORED), *stored])
    originals = _originals(events, np.repeat([file for *_, file in parts], np.diff(starts)))
    copies = np.flatnonzero(originals < np.arange(len(events)))
    # How far the entries of each part are from its places among all keys.
    shift = np.array([first for _, first, _ in parts], np.int64) - starts[:-1]
    places = (copies, originals[copies])
    of_parts = [np.searchsorted(starts, each, side="right") - 1 for each in places]
    entries = [each + shift[part] for each, part in zip(places, of_parts, strict=True)]
    return Copies(of_parts[0], entries[0], of_parts[1], entries[1])


def _originals(events: NDArray[Any], files: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the original of each event, which is its own for one that is no copy."""
    places = np.arange(len(events))
    _, first_places, groups = np.unique(events["content"], return_index=True, return_inverse=True)
    originals = np.where(events["content"] == 0, places, first_places[groups])
    same = same_events(files, events)
    np.minimum.at(originals, same.second, same.first)
    return originals
