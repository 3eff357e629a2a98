"""Load-test samples: copies of a few real events in any number, to measure time and memory.

`python tests/benchmarks/load_test.py FOLDER --events 100000` writes a sample of the bundled events
and a config for it.

Every copy is a real event, turned by a random angle in phi and mirrored in eta with probability
1/2: all copies differ and the physics is the same. Copies of an event are in all splits, so only
the times of such a sample mean something.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import uproot
from numpy.typing import NDArray

from ingestion.file_info import FileInfo
from ingestion.files import expand, inventory
from ingestion.known_layouts import LAYOUTS, BranchLayout
from ingestion.reader import RawEvents, read_events
from ingestion.schema import SCALARS
from ingestion.settings import IngestSettings
from ingestion.thresholds import Jagged, wrap_azimuths
from pipeline.config import load_config

TREE: Final = "LoadTest"
EVENTS_PER_FILE: Final = 20_000


def branch_map() -> dict[str, str]:
    """The branch map of these files: branches such as `tracks_pt`, counters such as `ntracks`."""
    return {
        name: name.replace(".", "_")
        for name in LAYOUTS[BranchLayout.DELPHES].branches({})
        if name != "weight"
    }


def write_load_test(
    infos: Sequence[FileInfo],
    settings: IngestSettings,
    num_events: int,
    out_dir: Path,
    *,
    rng: np.random.Generator,
    events_per_file: int = EVENTS_PER_FILE,
) -> dict[str, list[Path]]:
    """Write `num_events` events of each sample to `out_dir/<sample>_<number>.root`.

    Compression is ZLIB of level 1, as that of Delphes. Each file but the last has at least
    `events_per_file` events; a block of entries is in one file.

    Returns:
        The files of each sample.
    """
    written: dict[str, list[Path]] = {info.sample: [] for info in infos}
    for sample, paths in written.items():
        tree, in_file = None, 0
        with ExitStack() as opened:
            for raw in _blocks(
                [info for info in infos if info.sample == sample], settings, num_events
            ):
                columns = _columns(turned(raw, rng))
                if tree is None or in_file >= events_per_file:
                    opened.close()
                    paths.append(out_dir / f"{sample}_{len(paths):04d}.root")
                    file = opened.enter_context(
                        uproot.recreate(paths[-1], compression=uproot.ZLIB(1))
                    )
                    types = {name: ak.type(column).content for name, column in columns.items()}
                    tree, in_file = (
                        file.mktree(TREE, types, counter_name=lambda name: f"{name}_size"),
                        0,
                    )
                tree.extend(columns)
                in_file += raw.num_events
    return written


def turned(raw: RawEvents, rng: np.random.Generator) -> RawEvents:
    """Turn every event by a random angle and mirror about half of them in eta, with vertices."""
    angle = rng.uniform(-math.pi, math.pi, raw.num_events)
    sign = rng.choice([-1.0, 1.0], raw.num_events)
    collections = {
        name: Jagged(collection.offsets, _turned_fields(collection, angle, sign))
        for name, collection in raw.collections.items()
    }
    scalars = {
        **raw.scalars,
        "met_phi": wrap_azimuths((raw.scalars["met_phi"] + angle).astype(np.float32)),
    }
    return raw._replace(scalars=scalars, collections=collections)


def _turned_fields(
    candidates: Jagged, angle: NDArray[Any], sign: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    counts = np.diff(candidates.offsets)
    turn, mirror = np.repeat(angle, counts), np.repeat(sign, counts)
    fields = dict(candidates.fields)
    fields["phi"] = wrap_azimuths((fields["phi"] + turn).astype(np.float32))
    fields["eta"] = (fields["eta"] * mirror).astype(np.float32)
    if "x" in fields:
        x, y = fields["x"], fields["y"]
        fields["x"] = (x * np.cos(turn) - y * np.sin(turn)).astype(np.float32)
        fields["y"] = (x * np.sin(turn) + y * np.cos(turn)).astype(np.float32)
        fields["z"] = (fields["z"] * mirror).astype(np.float32)
    return fields


def _blocks(
    files: Sequence[FileInfo], settings: IngestSettings, num_events: int
) -> Iterator[RawEvents]:
    """Blocks of the files' entries, in cycles, until there are `num_events` events."""
    leftovers = num_events
    for info in cycle(files):
        if leftovers <= 0:
            return
        for raw in read_events(info, settings, start=0, stop=min(info.entries, leftovers)):
            yield raw
            leftovers -= raw.num_events


def _columns(raw: RawEvents) -> dict[str, Any]:
    """Branches of one block: one per collection, scalar and pass-through column."""
    columns: dict[str, Any] = {
        name: candidates.to_awkward() for name, candidates in raw.collections.items()
    }
    columns |= {name: raw.scalars[name] for name in SCALARS if name != "weight"}
    columns[SCALARS["weight"].branch] = raw.scalars["weight"]
    return columns | raw.pass_through


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--events", type=int, default=10_000, help="of each sample")
    asked = parser.parse_args(argv)
    config = load_config("demo")
    asked.folder.mkdir(parents=True)
    infos = inventory(expand(config.samples), config.ingest).infos
    files = write_load_test(
        infos, config.ingest, asked.events, asked.folder, rng=np.random.default_rng(1)
    )
    document = {
        "run_dir": "run",
        "classes": config.classes,
        "samples": [
            {
                "name": sample.name,
                "label": sample.label,
                "files": [path.name for path in files[sample.name]],
            }
            for sample in config.samples
        ],
        "ingest": {"tree": TREE, "branch_map": branch_map()},
    }
    # YAML reads JSON too.
    (asked.folder / "load_test.yaml").write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
