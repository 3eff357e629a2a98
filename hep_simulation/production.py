"""Makes one file: of a process, with its record, or of the pool of minimum-bias events.

A file depends on the settings, the seed, the name of the process and its number, and on nothing
else. Its record (JSON) lies beside it and is written last, so a file with a record is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
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
from hep_simulation.generator import LAST_SEED, GeneratedBlock, Generator, Tally
from hep_simulation.particles import StableParticles, event_offsets, offsets_from_counts
from hep_simulation.pile_up import MINIMUM_BIAS
from hep_simulation.pythia_setup import GenerationError
from ingestion.thresholds import Jagged
from pipeline.configuration.simulate_section import POOL, SimulateSettings

#: Number of events in a file of the pool, and least number in a block that is detected at once.
_POOL_FILE_EVENTS: Final = 500
_BLOCK: Final = 50
#: A process is refused if it generates more than this number of events for each needed event.
_MAX_GENERATED_PER_EVENT: Final = 20_000
#: Packages whose versions the records have, by their keys there.
_GENERATORS: Final = {"pythia": "pythia8mc", "fastjet": "fastjet"}
#: A particle of the pool from within this distance of the beam [mm], above this |eta|, reaches no
#: calorimeter.
_NEAR_MM: Final = 5.0
_LOST_ETA: Final = 5.6


class SimulatedFile(NamedTuple):
    """A file to make."""

    process: str
    """Name of the process, or of the pool."""
    number: int
    """Number of the file within its process, from 0."""
    events: int
    """Number of events."""

    @property
    def name(self) -> str:
        """Path below the folder of the version."""
        if self.process == POOL:
            return f"{POOL}/minimum-bias_{self.number:05d}.npz"
        return f"{self.process}/{self.process}_{self.number:05d}.root"


def process_files(settings: SimulateSettings) -> list[SimulatedFile]:
    """All files of the processes.

    Examples:
        >>> from pipeline.configuration.simulate_section import ProcessSettings
        >>> ttbar = ProcessSettings(name="ttbar", events=5)
        >>> settings = SimulateSettings(processes=[ttbar], events_per_file=2)
        >>> [file.events for file in process_files(settings)]
        [2, 2, 1]
    """
    files = []
    for process in settings.processes:
        files += _split_into_files(process.name, process.events, settings.events_per_file)
    return files


def pool_files(settings: SimulateSettings) -> list[SimulatedFile]:
    """All files of the pool; none without pile-up."""
    if settings.pile_up.mean == 0:
        return []
    return _split_into_files(POOL, settings.pile_up.pool, _POOL_FILE_EVENTS)


def _split_into_files(process: str, num_events: int, max_events: int) -> list[SimulatedFile]:
    """Files of `max_events` events each; the last one has the rest."""
    files = []
    for index, start in enumerate(range(0, num_events, max_events)):
        num_remaining = num_events - start
        files.append(SimulatedFile(process, index, min(max_events, num_remaining)))
    return files


def read_record(folder: Path, file: SimulatedFile) -> dict[str, Any] | None:
    """The record of a complete file; None if the file must be made.

    A file is complete if its record can be read and agrees with its size and number of events.
    """
    path = folder / file.name
    with suppress(OSError, ValueError, AttributeError, KeyError, RecursionError):
        text = path.with_suffix(".json").read_text(encoding="utf-8")
        record: dict[str, Any] = json.loads(text)
        # Files of an earlier generator, whose records lack a number, are made again.
        has_tally = record.keys() >= set(Tally._fields)
        is_complete = path.stat().st_size == record["bytes"]
        if has_tally and is_complete and record["events"] == file.events:
            return record
    return None


def make_pool_file(file: SimulatedFile, settings: SimulateSettings, folder: Path) -> None:
    """Generate minimum-bias events and write their visible stable particles below `folder`.

    Particles that leave along the beam are left out.
    """
    seed = _pythia_seed(settings.seed, POOL, file.number)
    generator = Generator(list(MINIMUM_BIAS), energy_tev=settings.energy_tev, seed=seed)
    blocks: list[GeneratedBlock] = []
    num_events = 0
    for block in generator.blocks():
        blocks.append(block)
        num_events += block.particles.num_events
        if num_events >= file.events:
            break
    particles = GeneratedBlock.concatenate(blocks).particles
    # The last block may have surplus events.
    event = particles.event
    is_needed = event < file.events
    is_kept = is_needed & particles.visible & ~_is_lost(particles)
    offsets = event_offsets(event[is_kept], file.events)
    columns: dict[str, Any] = {"offsets": offsets}
    for name in StableParticles._fields[1:]:
        dtype = np.int32 if name == "pid" else np.float32
        column = getattr(particles, name)[is_kept]
        columns[name] = np.asarray(column, dtype)
    with new_file(folder / file.name, flushed=True) as unfinished, unfinished.open("wb") as output:
        np.savez(output, **columns)


def _is_lost(particles: StableParticles) -> NDArray[np.bool_]:
    """(n,) whether particles from near the beam leave along it, beyond the calorimeters.

    Their limit in |eta| is above the 5 of the calorimeters, so that they miss these wherever their
    collision is along the beam.
    """
    is_near_beam = np.hypot(particles.x, particles.y) < _NEAR_MM
    forward_pz = np.sinh(_LOST_ETA) * particles.pt
    is_forward = np.abs(particles.pz) > forward_pz
    lost: NDArray[np.bool_] = is_near_beam & is_forward
    return lost


@lru_cache(maxsize=1)
def load_pool(paths: tuple[Path, ...]) -> StableParticles | None:
    """The pool of minimum-bias events from its files; None if there are none.

    A process keeps the last one in memory for the next call.
    """
    if not paths:
        return None
    blocks = []
    for path in paths:
        with np.load(path) as arrays:
            columns = {name: arrays[name] for name in StableParticles._fields}
        blocks.append(StableParticles(**columns))
    return StableParticles.concatenate(blocks)


def make_file(file: SimulatedFile, settings: SimulateSettings, folder: Path) -> dict[str, Any]:
    """Generate, detect and write the events of a file; returns its record.

    The record, written after the file, has identity, digest and size of the file, and the tally of
    the generator. `folder` holds the complete pool.

    Raises:
        GenerationError: Pythia refuses the settings, too few events pass, or the hard processes
            come from a file and the events are in several files.
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
            f"process '{file.process}' reads its hard processes from a file, and every file of "
            "simulated events would begin with the first of them. Raise "
            f"simulate.events_per_file to {process.events}, so that there is one."
        )
    pool_paths = [folder / pool_file.name for pool_file in pool_files(settings)]
    pool = load_pool(tuple(pool_paths))
    rng = np.random.default_rng(_seeds(settings.seed, file.process, file.number))
    blocks = _blocks_to_detect(generator, file)
    detected = [simulate(block, pool, settings.pile_up, rng) for block in blocks]
    # Surplus events were generated too, so the tally counts them.
    tally = generator.tally()
    events = first_events(detected, file.events)
    digest = content_digest(events)
    # The UUID follows from the place and the content, so a second run gives the same.
    name = f"hep-pipeline/simulate/{settings.seed}/{file.process}/{file.number}/{digest}"
    identity = uuid5(NAMESPACE_URL, name)
    path = folder / file.name
    write_delphes(path, events, identity)
    versions = {name: metadata.version(package) for name, package in _GENERATORS.items()}
    record = {
        **file._asdict(),
        "uuid": str(identity),
        "content": digest,
        "bytes": path.stat().st_size,
        **tally._asdict(),
        "filter_efficiency": tally.filter_efficiency,
        **versions,
    }
    text = json.dumps(record, indent=1)
    with new_file(path.with_suffix(".json"), flushed=True) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return record


def _blocks_to_detect(generator: Generator, file: SimulatedFile) -> Iterator[GeneratedBlock]:
    """Blocks of at least `_BLOCK` events, until there are enough for the file.

    Blocks of the generator are joined. The last block may be smaller, or have surplus events.
    """
    num_events = 0
    pending: list[GeneratedBlock] = []
    num_pending = 0
    for block in generator.blocks():
        pending.append(block)
        num_pending += block.particles.num_events
        _check_efficiency(generator, file, num_events + num_pending)
        if num_pending < min(_BLOCK, file.events - num_events):
            continue
        yield GeneratedBlock.concatenate(pending)
        num_events += num_pending
        pending, num_pending = [], 0
        if num_events >= file.events:
            return


def _check_efficiency(generator: Generator, file: SimulatedFile, num_passed: int) -> None:
    """Refuse a process of which nearly no event passes the lepton filter.

    `num_passed` is the number that has passed so far, for the message.
    """
    if generator.num_generated > _MAX_GENERATED_PER_EVENT * file.events:
        raise GenerationError(
            f"process '{file.process}': {num_passed} of {generator.num_generated} generated events "
            f"pass the lepton filter, {file.events} are needed. Lower "
            "simulate.lepton_filter.min_pt, or correct the settings of the process."
        )


def write_delphes(path: Path, collections: Mapping[str, Jagged], identity: UUID) -> None:
    """Write detected events as Delphes does: a TTree of jagged branches such as `Jet.PT`.

    `collections` are named by the stems of branches. The file appears under its name only when it
    is complete. Its UUID is `identity`.
    """
    columns = {name: candidates.to_awkward() for name, candidates in collections.items()}
    branch_types = {name: column.type.content for name, column in columns.items()}
    with (
        new_file(path, flushed=True) as unfinished,
        uproot.recreate(
            unfinished, compression=uproot.ZLIB(1), uuid_function=lambda: identity
        ) as root_file,
    ):
        tree = root_file.mktree(
            "Delphes",
            branch_types,
            counter_name=lambda name: f"{name}_size",
            field_name=lambda outer, inner: f"{outer}.{inner}",
        )
        tree.extend(columns)


def first_events(blocks: Sequence[Mapping[str, Jagged]], num_events: int) -> dict[str, Jagged]:
    """Join the collections of several blocks, and keep the first `num_events` events."""
    collections = {}
    for name in blocks[0]:
        candidates = [block[name] for block in blocks]
        num_candidates = np.concatenate([np.diff(jagged.offsets) for jagged in candidates])
        offsets = offsets_from_counts(num_candidates[:num_events])
        fields = {}
        for field in candidates[0].fields:
            column = np.concatenate([jagged.fields[field] for jagged in candidates])
            fields[field] = column[: offsets[-1]]
        collections[name] = Jagged(offsets, fields)
    return collections


def content_digest(collections: Mapping[str, Jagged]) -> str:
    """Digest of the names and numbers of all collections, the same for equal events."""
    digest = xxhash.xxh3_64()
    for name, candidates in sorted(collections.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(candidates.offsets).tobytes())
        for field, column in sorted(candidates.fields.items()):
            digest.update(field.encode())
            digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _seeds(seed: int, process: str, file_number: int) -> list[int]:
    """Seeds for NumPy's generator that differ for each file of each process."""
    digest = hashlib.sha256(process.encode()).digest()
    return [seed, int.from_bytes(digest[:8], "big"), file_number]


def _pythia_seed(seed: int, process: str, file_number: int) -> int:
    """A seed for Pythia, which allows at most `LAST_SEED`."""
    seeds = [*_seeds(seed, process, file_number), 1]
    rng = np.random.default_rng(seeds)
    return 1 + int(rng.integers(LAST_SEED))
