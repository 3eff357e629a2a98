"""What one task makes: a file of a process with its record, or a part of the pool of minimum-bias events.

A file depends on the settings, the seed, the name of the process and its number, and on nothing else. Its record (JSON)
stands beside it and is written last, so a file with a record is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import uproot
import xxhash
from numpy.typing import NDArray

from hep_core.atomic_files import new_file
from hep_simulation.detector import simulate
from hep_simulation.generator import (
    LAST_SEED,
    GeneratedBlock,
    GenerationError,
    Generator,
    Tally,
    joined,
)
from hep_simulation.particles import StableParticles
from hep_simulation.pile_up import MINIMUM_BIAS
from ingestion.thresholds import Jagged
from pipeline.configuration.simulate_section import POOL, SimulateSettings

#: Events of a part of the pool, and of a block that is detected at once.
POOL_PART: Final = 500
_BLOCK: Final = 50
#: Generated events for each that is needed after which a filter that nothing passes is an error.
_MAX_PER_EVENT: Final = 20_000
#: A particle of the pool from within this distance of the beam [mm], above this |eta|, reaches no calorimeter.
_NEAR_MM: Final = 5.0
_LOST_ETA: Final = 5.6


class SimulatedFile(NamedTuple):
    """A file to make."""

    process: str
    """Or the pool, of which it is a part."""
    number: int
    events: int

    @property
    def name(self) -> str:
        """Path below the folder of the version."""
        name, kind = ("minimum-bias", "npz") if self.process == POOL else (self.process, "root")
        return f"{self.process}/{name}_{self.number:05d}.{kind}"


def files_of(settings: SimulateSettings) -> list[SimulatedFile]:
    """All files of the processes.

    Examples:
        >>> from pipeline.configuration.simulate_section import ProcessSettings
        >>> one = ProcessSettings(name="ttbar", events=5)
        >>> [file.events for file in files_of(SimulateSettings(processes=[one], events_per_file=2))]
        [2, 2, 1]
    """
    return [
        file
        for each in settings.processes
        for file in _files(each.name, each.events, settings.events_per_file)
    ]


def pool_of(settings: SimulateSettings) -> list[SimulatedFile]:
    """The parts of the pool; none without pile-up."""
    return _files(POOL, settings.pile_up.pool if settings.pile_up.mean else 0, POOL_PART)


def _files(process: str, events: int, size: int) -> list[SimulatedFile]:
    starts = enumerate(range(0, events, size))
    return [SimulatedFile(process, number, min(size, events - start)) for number, start in starts]


def finished(folder: Path, file: SimulatedFile) -> dict[str, Any] | None:
    """The record of a file that is there and complete; else None."""
    path = folder / file.name
    with suppress(OSError, ValueError, AttributeError, KeyError, RecursionError):
        record: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        # Another generator made a file whose record lacks a number; it is made again.
        has_all = record.keys() >= set(Tally._fields)
        if has_all and path.stat().st_size == record["bytes"] and record["events"] == file.events:
            return record
    return None


def make_pool_part(part: SimulatedFile, settings: SimulateSettings, folder: Path) -> None:
    """Generate minimum-bias events and write their stable particles."""
    generator = Generator(
        list(MINIMUM_BIAS),
        energy_tev=settings.energy_tev,
        seed=_pythia_seed(settings.seed, POOL, part.number),
    )
    blocks: list[GeneratedBlock] = []
    done = 0
    for block in generator.blocks():
        blocks.append(block)
        done += block.particles.num_events
        if done >= part.events:
            break
    particles = joined(blocks).particles
    stop = int(particles.offsets[part.events])
    visible = (particles.visible & ~_is_lost(particles))[:stop]
    counts = np.bincount(particles.event[:stop][visible], minlength=part.events)
    columns: dict[str, Any] = {
        name: np.asarray(
            getattr(particles, name)[:stop][visible], np.int32 if name == "pid" else np.float32
        )
        for name in StableParticles._fields[1:]
    }
    with new_file(folder / part.name, flushed=True) as unfinished, unfinished.open("wb") as file:
        np.savez(file, offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), **columns)


def _is_lost(particles: StableParticles) -> NDArray[np.bool_]:
    """Which particles leave along the beam, wherever their collision is: beyond |eta| = 5 at the calorimeter."""
    near = np.hypot(particles.x, particles.y) < _NEAR_MM
    lost: NDArray[np.bool_] = near & (np.abs(particles.pz) > np.sinh(_LOST_ETA) * particles.pt)
    return lost


@lru_cache(maxsize=1)
def load_pool(paths: tuple[Path, ...]) -> StableParticles | None:
    """The pool from its parts; None if there are none."""
    if not paths:
        return None
    parts = []
    for path in paths:
        with np.load(path) as content:
            parts.append(
                StableParticles(**{name: content[name] for name in StableParticles._fields})
            )
    return StableParticles.of_events(parts)


def make_file(file: SimulatedFile, settings: SimulateSettings, folder: Path) -> dict[str, Any]:
    """Generate, detect and write the events of a file; returns its record.

    `folder` holds the complete pool.
    """
    process = settings.process(file.process)
    generator = Generator(
        process.lines(),
        energy_tev=settings.energy_tev,
        seed=_pythia_seed(settings.seed, file.process, file.number),
        lepton_filter=settings.lepton_filter,
        heavy_flavour=process.heavy_flavour,
    )
    if generator.reads_a_file and process.events > settings.events_per_file:
        raise GenerationError(
            f"process '{file.process}' reads its hard processes from a file, and every file of simulated events would "
            f"begin with the first of them. Raise simulate.events_per_file to {process.events}, so that there is one."
        )
    pool = load_pool(tuple(folder / part.name for part in pool_of(settings)))
    rng = np.random.default_rng(_seeds(settings.seed, file.process, file.number))
    parts, done, waiting = [], 0, []
    for block in generator.blocks():
        waiting.append(block)
        num_waiting = sum(each.particles.num_events for each in waiting)
        _refuse_endless(generator, file, done + num_waiting)
        if num_waiting < min(_BLOCK, file.events - done):
            continue
        parts.append(simulate(joined(waiting), pool, settings.pile_up, rng))
        done, waiting = done + num_waiting, []
        if done >= file.events:
            break
    # Events beyond the number were generated too, so the tally holds them.
    tally = generator.tally()
    events = first_events(parts, file.events)
    path = folder / file.name
    content = content_of(events)
    # From its place and its content: a second run gives the same.
    identity = uuid5(
        NAMESPACE_URL,
        f"hep-pipeline/simulate/{settings.seed}/{file.process}/{file.number}/{content}",
    )
    write_delphes(path, events, identity)
    record = {
        **file._asdict(),
        "uuid": str(identity),
        "content": content,
        "bytes": path.stat().st_size,
        **tally._asdict(),
        "filter_efficiency": tally.filter_efficiency,
        "pythia": metadata.version("pythia8mc"),
        "fastjet": metadata.version("fastjet"),
    }
    with new_file(path.with_suffix(".json"), flushed=True) as unfinished:
        unfinished.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return record


def write_delphes(path: Path, collections: Mapping[str, Jagged], identity: UUID) -> None:
    """Write detected events as Delphes does: a TTree of jagged branches such as `Jet.PT`; it appears complete.

    The UUID `identity` of the file is the same for equal events of another run.
    """
    columns = {name: each.to_awkward() for name, each in collections.items()}
    with (
        new_file(path, flushed=True) as unfinished,
        uproot.recreate(
            unfinished, compression=uproot.ZLIB(1), uuid_function=lambda: identity
        ) as file,
    ):
        tree = file.mktree(
            "Delphes",
            {name: column.type.content for name, column in columns.items()},
            counter_name=lambda name: f"{name}_size",
            field_name=lambda outer, inner: f"{outer}.{inner}",
        )
        tree.extend(columns)


def first_events(parts: Sequence[Mapping[str, Jagged]], number: int) -> dict[str, Jagged]:
    """The first events of several blocks, one after the other."""
    found = {}
    for name, first in parts[0].items():
        counts = np.concatenate(
            [np.zeros(1, np.int64), *(np.diff(part[name].offsets) for part in parts)]
        )
        offsets = np.cumsum(counts)[: number + 1]
        whole = {
            field: np.concatenate([part[name].fields[field] for part in parts])
            for field in first.fields
        }
        found[name] = Jagged(
            offsets, {field: column[: offsets[-1]] for field, column in whole.items()}
        )
    return found


def content_of(collections: Mapping[str, Jagged]) -> str:
    """Digest of all numbers, the same for equal events."""
    digest = xxhash.xxh3_64()
    for name, each in sorted(collections.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(each.offsets).tobytes())
        for field, column in sorted(each.fields.items()):
            digest.update(field.encode())
            digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _refuse_endless(generator: Generator, file: SimulatedFile, passed: int) -> None:
    if generator.num_generated > _MAX_PER_EVENT * file.events:
        raise GenerationError(
            f"process '{file.process}': {passed} of {generator.num_generated} generated events pass the lepton filter, "
            f"{file.events} are needed. Lower simulate.lepton_filter.min_pt, or correct the settings of the process."
        )


def _seeds(seed: int, name: str, number: int) -> list[int]:
    digest = hashlib.sha256(name.encode()).digest()
    return [seed, int.from_bytes(digest[:8], "big"), number]


def _pythia_seed(seed: int, name: str, number: int) -> int:
    """A seed for Pythia, which allows less than a thousand million of them."""
    return 1 + int(np.random.default_rng([*_seeds(seed, name, number), 1]).integers(LAST_SEED))
