"""Load-test samples: copies of a few real events in any number, to measure time and memory.

Every copy is a real event, turned by a random angle in phi and mirrored in eta with probability 1/2: all copies differ
and the physics is the same. The files carry the identity of each event's origin, so that all copies of an event fall
into the same split. Training on such a sample needs an explicit setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import awkward as ak
import numpy as np
import uproot
from numpy.typing import NDArray

from ingestion.errors import EmptySampleError
from ingestion.files import FileInfo
from ingestion.reader import RawEvents, read_events
from ingestion.schema import ORIGIN_BRANCHES, SCALARS
from ingestion.settings import IngestSettings, field_branches
from ingestion.thresholds import Jagged, wrapped_azimuths

TREE: Final = "LoadTest"
EVENTS_PER_FILE: Final = 20_000


def branch_map() -> dict[str, str]:
    """The branch map that reads these files: branches such as `tracks_pt`, with counters such as `ntracks`."""
    return {name: name.replace(".", "_") for name in field_branches({})}


def write_load_test(
    infos: Sequence[FileInfo],
    settings: IngestSettings,
    num_events: int,
    out_dir: Path,
    *,
    rng: np.random.Generator,
    events_per_file: int = EVENTS_PER_FILE,
    on_events: Callable[[int, int], None] | None = None,
) -> dict[str, list[Path]]:
    """Write `num_events` events of each sample to `out_dir/<sample>_<number>.root` (ZLIB level 1, as Delphes does).

    Args:
        infos: The real files.
        settings: How to read them.
        num_events: Events of each sample.
        out_dir: An existing folder.
        rng: Draws the angles and mirrorings.
        events_per_file: A file has at least this number of events, but the last; a block of entries is in one file.
        on_events: Called with (events done, events in all).

    Returns:
        The files of each sample.

    Raises:
        IngestionError: A file cannot be read.
        EmptySampleError: A sample has no entries.
    """
    by_sample: dict[str, list[FileInfo]] = {}
    for info in infos:
        by_sample.setdefault(info.sample, []).append(info)
    written: dict[str, list[Path]] = {}
    done = 0
    for sample, files in by_sample.items():
        if not any(info.entries for info in files):
            raise EmptySampleError(f"sample '{sample}': its files hold no entries, so there is nothing to copy.")
        blocks = _blocks(files, settings, num_events)
        pending = next(blocks, None)
        while pending is not None:
            path = out_dir / f"{sample}_{len(written.setdefault(sample, [])):04d}.root"
            in_file = 0
            with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
                tree = None
                while pending is not None and in_file < events_per_file:
                    info, raw = pending
                    columns = _columns(turned(raw, rng), info)
                    types = {name: ak.type(each).content for name, each in columns.items()}
                    tree = tree or file.mktree(TREE, types, counter_name=lambda name: f"{name}_size")
                    tree.extend(columns)
                    in_file += raw.num_events
                    done += raw.num_events
                    if on_events:
                        on_events(done, num_events * len(by_sample))
                    pending = next(blocks, None)
            written[sample].append(path)
    return written


def turned(raw: RawEvents, rng: np.random.Generator) -> RawEvents:
    """Turn every event by an angle of its own and mirror about half of them in eta, vertices included."""
    angle = rng.uniform(-math.pi, math.pi, raw.num_events)
    sign = rng.choice([-1.0, 1.0], raw.num_events)
    collections = {
        name: Jagged(each.offsets, _turned_fields(each, angle, sign)) for name, each in raw.collections.items()
    }
    scalars = {**raw.scalars, "met_phi": wrapped_azimuths((raw.scalars["met_phi"] + angle).astype(np.float32))}
    return raw._replace(scalars=scalars, collections=collections)


def _turned_fields(candidates: Jagged, angle: NDArray[Any], sign: NDArray[Any]) -> dict[str, NDArray[Any]]:
    counts = np.diff(candidates.offsets)
    turn, mirror = np.repeat(angle, counts), np.repeat(sign, counts)
    fields = dict(candidates.fields)
    fields["phi"] = wrapped_azimuths((fields["phi"] + turn).astype(np.float32))
    fields["eta"] = (fields["eta"] * mirror).astype(np.float32)
    if "x" in fields:
        x, y = fields["x"], fields["y"]
        fields["x"] = (x * np.cos(turn) - y * np.sin(turn)).astype(np.float32)
        fields["y"] = (x * np.sin(turn) + y * np.cos(turn)).astype(np.float32)
        fields["z"] = (fields["z"] * mirror).astype(np.float32)
    return fields


def _blocks(
    files: Sequence[FileInfo], settings: IngestSettings, num_events: int
) -> Iterator[tuple[FileInfo, RawEvents]]:
    """Blocks of the files' entries, in cycles, until there are `num_events` events."""
    left = num_events
    for info in cycle(files):
        if left <= 0:
            return
        for raw in read_events(info, settings, start=0, stop=min(info.entries, left)):
            yield info, raw
            left -= raw.num_events


def _columns(raw: RawEvents, info: FileInfo) -> dict[str, Any]:
    """Branches of one block: one per collection, scalar and carried column, and the identity of the origin."""
    columns: dict[str, Any] = {name: candidates.listed() for name, candidates in raw.collections.items()}
    columns |= {name: raw.scalars[name] for name in SCALARS}
    columns |= raw.carried
    uuids, entries = raw.origins(info)
    halves = np.array([divmod(UUID(each).int, 1 << 64) for each in uuids], dtype=np.uint64)
    origin = (halves[:, 0].view(np.int64), halves[:, 1].view(np.int64), entries.astype(np.int64))
    return columns | dict(zip(ORIGIN_BRANCHES, origin, strict=True))
