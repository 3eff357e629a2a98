"""Load-test samples: copies of a few real events in any number, to measure time and memory.

Every copy is a real event, turned by a random angle in phi and mirrored in eta with probability 1/2: all copies differ
and the physics is the same. The files carry the identity of each event's origin, so that all copies of an event fall
into the same split. Training on such a sample needs an explicit setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
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
    return {name: name.replace(".", "_") for name in field_branches({}) if name != "weight"}


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

    A file has at least `events_per_file` events, but the last; a block of entries is in one file. `on_events` is called
    with (events done, events in all).

    Returns:
        The files of each sample.

    Raises:
        IngestionError: A file cannot be read.
        EmptySampleError: A sample has no entries.
    """
    written: dict[str, list[Path]] = {info.sample: [] for info in infos}
    done = 0
    for sample, paths in written.items():
        tree, in_file = None, 0
        with ExitStack() as opened:
            for raw in _blocks([info for info in infos if info.sample == sample], settings, num_events):
                columns = _columns(turned(raw, rng))
                if tree is None or in_file >= events_per_file:
                    opened.close()
                    paths.append(out_dir / f"{sample}_{len(paths):04d}.root")
                    file = opened.enter_context(uproot.recreate(paths[-1], compression=uproot.ZLIB(1)))
                    types = {name: ak.type(each).content for name, each in columns.items()}
                    tree, in_file = file.mktree(TREE, types, counter_name=lambda name: f"{name}_size"), 0
                tree.extend(columns)
                in_file += raw.num_events
                done += raw.num_events
                if on_events:
                    on_events(done, num_events * len(written))
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


def _blocks(files: Sequence[FileInfo], settings: IngestSettings, num_events: int) -> Iterator[RawEvents]:
    """Blocks of the files' entries, in cycles, until there are `num_events` events."""
    if not any(info.entries for info in files):
        raise EmptySampleError(f"sample '{files[0].sample}': its files hold no entries, so there is nothing to copy.")
    left = num_events
    for info in cycle(files):
        if left <= 0:
            return
        for raw in read_events(info, settings, start=0, stop=min(info.entries, left)):
            yield raw
            left -= raw.num_events


def _columns(raw: RawEvents) -> dict[str, Any]:
    """Branches of one block: one per collection, scalar and carried column, and the identity of the origin."""
    columns: dict[str, Any] = {name: candidates.listed() for name, candidates in raw.collections.items()}
    columns |= {name: raw.scalars[name] for name in SCALARS if name != "weight"}
    columns[SCALARS["weight"].branch] = raw.scalars["weight"]
    columns |= raw.carried
    uuids, entries = raw.origin
    halves = np.array([divmod(UUID(each).int, 1 << 64) for each in uuids], dtype=np.uint64)
    origin = (halves[:, 0].view(np.int64), halves[:, 1].view(np.int64), entries.astype(np.int64))
    return columns | dict(zip(ORIGIN_BRANCHES, origin, strict=True))
