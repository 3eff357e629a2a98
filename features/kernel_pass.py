"""First pass: runs the kernels over one events part and writes one file of unmixed rows. No Spark.

The file (`features.unmixed_files`) holds identity, label, weight, HLF and the core of the particles
(`features.columns.PARTICLE_CORE`) of every selected event. The mixing gathers events from it, and
later versions may reuse it. Its rows depend only on the events part and on `kernel_items` of the
settings; their order follows the split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.columns import NUM_CORE, NUM_PARTICLES, hlf_names
from features.kernels import OUTCOMES, FeatureBlock, build_features
from features.matrices import list_columns, particles_from_core
from features.settings import FeatureSettings, ingest_thresholds
from features.splitting import (
    BALANCE_STREAM,
    MIXING_STREAM,
    UInt64s,
    event_hash,
    split_index,
    uniform,
)
from features.unmixed_files import CORE, read_columns, write_unmixed
from hep_core.atomic_files import new_file
from hep_core.checked_parquet import CheckedParquetFile, open_parquet
from hep_core.integrity import file_digest
from hep_core.storage import as_path, is_remote
from ingestion.schema import COLLECTIONS, SCALARS, events_schema
from ingestion.tally import StepCounts, sum_counts

#: Settings that act after the kernels: a change of them leaves the kernel outputs valid.
AFTER_KERNELS: Final = frozenset(
    {"split", "balance", "integrated_luminosity", "rows_per_group", "feed_workers"}
)
#: Counter of the events whose hardest lepton has no track within `features.own_track_dr`.
LACKS_OWN_TRACK: Final = "leptons_without_own_track"
_EVENTS: Final = events_schema()
#: Columns of events that only the kernels read.
_KERNEL_INPUTS: Final = {*COLLECTIONS, *SCALARS} - {"weight"}


class EventsFile(NamedTuple):
    """One events part, as ingest describes it."""

    name: str
    """Name of its file."""
    sample: str
    digest: str
    """Digest of the part's content."""
    path: str
    """Path or URL of its file."""


class KernelOutput(NamedTuple):
    """The output of the kernels for one events part."""

    name: str
    """Name of the events part."""
    sample: str
    digest: str
    """Digest of the events part."""
    counts: dict[str, int]
    """Number of events by outcome (the outcomes add up to `events`), and of LACKS_OWN_TRACK; of
    this part only."""
    weights: dict[str, list[float]]
    """[sum of weights, sum of squared weights] by outcome."""
    lies_in: str
    """Folder of the version whose kernels ran, below the folder of all kernel outputs."""
    size: int
    """Bytes of the file."""
    memory: int
    """Bytes that its rows take in memory, without compression."""
    file_digest: str
    """Digest of the file, which shows damage."""

    def path(self, kernels: Path) -> Path:
        """The file, below the folder of all kernel outputs."""
        return kernels / self.lies_in / Path(self.name).with_suffix(".arrow")

    def is_among(self, sizes: Mapping[str, int]) -> bool:
        """Whether the file is complete; `sizes` are bytes below the folder of all outputs."""
        return sizes.get(self.path(Path()).as_posix()) == self.size


class EventKeys(NamedTuple):
    """Keys of the selected events of one part, for the driver: 34 bytes per event."""

    split: NDArray[np.int8]
    """Number of its split, an index into `SPLITS`."""
    mixing: UInt64s
    """Hash by which the events of a split are sorted."""
    balance: NDArray[np.float64]
    """Random number in [0, 1), by which downsampling decides."""
    label: NDArray[np.int8]
    """Its class, an index."""
    weight: NDArray[np.float64]
    """Physics weight; see `features.normalisation`."""
    row: NDArray[np.integer[Any]]
    """Index of its row in the file of the part."""
    num_particles: NDArray[np.int32]


def kernel_items(settings: FeatureSettings) -> dict[str, Any]:
    """The settings that the kernels depend on."""
    return settings.model_dump(mode="json", exclude=set(AFTER_KERNELS))


def metadata_settings(settings: FeatureSettings, reading: Mapping[str, object]) -> dict[str, Any]:
    """The settings for the metadata of features: those of the kernels, and thresholds of ingest.

    `reading` are the settings of ingest. Keys of the result are those of the config, with their
    section.
    """
    stated: dict[str, Any] = {}
    for key, setting in kernel_items(settings).items():
        stated[f"features.{key}"] = setting
    return stated | ingest_thresholds(reading)


def run_kernels(events_part: EventsFile, settings: FeatureSettings, folder: Path) -> KernelOutput:
    """Write the features of one events part to `folder`, one row group at a time to save memory.

    The file is flushed to the disk, since later versions rely on it. The result has its size and
    digest, and the tally of the events by outcome.
    """
    events_path = as_path(events_part.path)
    output_name = Path(events_part.name).with_suffix(".arrow").name
    tallies: list[StepCounts] = []
    with new_file(folder / output_name, flushed=True) as unfinished:
        with open_parquet(events_path, pre_buffer=is_remote(events_path)) as events_file:
            blocks = _unmixed_blocks(events_file, settings, tallies)
            schema = unmixed_schema(events_file.schema)
            num_bytes = write_unmixed(unfinished, blocks, schema, settings.split)
        size = unfinished.stat().st_size
        digest = file_digest(unfinished)
    counts, weights = sum_counts(tallies)
    return KernelOutput(
        events_part.name,
        events_part.sample,
        events_part.digest,
        counts,
        weights,
        folder.name,
        size,
        num_bytes,
        digest,
    )


def _unmixed_blocks(
    events_file: CheckedParquetFile, settings: FeatureSettings, tallies: list[StepCounts]
) -> Iterator[pa.RecordBatch]:
    """Run the kernels over the row groups of an events part, and append their tallies to a list."""
    for group in range(events_file.num_row_groups):
        events = events_file.read_row_group(group)
        block = build_features(events, settings)
        tallies.append(_block_tally(events, block))
        yield unmixed_rows(events, block)


def _block_tally(events: pa.Table, block: FeatureBlock) -> StepCounts:
    """Count the events of a block, and sum their weights, by outcome."""
    steps: dict[str, Any] = {"events": slice(None)}
    for code, name in enumerate(OUTCOMES):
        steps[name] = block.outcome == code
    steps[LACKS_OWN_TRACK] = block.lacks_own_track
    return StepCounts.from_steps(steps, events["weight"].to_numpy())


def event_keys(path: Path, settings: FeatureSettings, *, factor: float = 1.0) -> EventKeys:
    """The keys of all events in a file of unmixed rows; weights are multiplied by `factor`.

    They have the order of the events in their part. Split, mixing and balance follow from the
    identity of an event alone, each by its own stream of random numbers.
    """
    names = ["file_uuid", "entry", "label", "weight", NUM_PARTICLES.name]
    rows = read_columns(path, names)
    # Entries of a part ascend, so this is the order of its events, in which weights are summed.
    row = np.argsort(rows["entry"].to_numpy(), kind="stable")
    rows = rows.take(row)
    uuids = rows["file_uuid"].to_pylist()
    entries = rows["entry"].to_numpy()
    split = split_index(uuids, entries, settings.split)
    balance_hashes = event_hash(uuids, entries, stream=BALANCE_STREAM)
    labels = rows["label"].to_numpy()
    weights = rows["weight"].to_numpy()
    return EventKeys(
        split=split.astype(np.int8),
        mixing=event_hash(uuids, entries, stream=MIXING_STREAM),
        balance=uniform(balance_hashes),
        label=labels.astype(np.int8),
        weight=weights * factor,
        row=row.astype(np.int32),
        num_particles=rows[NUM_PARTICLES.name].to_numpy(),
    )


def unmixed_schema(events: pa.Schema = _EVENTS) -> pa.Schema:
    """Arrow schema of unmixed rows, for events of the schema `events`.

    The columns are those of the events that the kernels do not read, the high-level features, and
    `core`: the 11 numbers of all particles of an event in one list.
    """
    # New fields, unlike those of events, have no metadata.
    fields = [(field.name, field.type) for field in events if field.name not in _KERNEL_INPUTS]
    fields += [(name, pa.float32()) for name in hlf_names()]
    fields.append((CORE, pa.large_list(pa.float32())))
    return pa.schema(fields)


def unmixed_rows(events: pa.Table, block: FeatureBlock) -> pa.RecordBatch:
    """The selected events of a block in the schema `unmixed_schema()`.

    `events` is the table from which the block was made.
    """
    columns: dict[str, pa.Array] = {}
    hlf_columns = np.ascontiguousarray(block.hlf.T)
    for name, hlf_column in zip(hlf_names(), hlf_columns, strict=True):
        columns[name] = pa.array(hlf_column)
    # One list per event: the 11 numbers of its first particle, then those of the second, and so on.
    core_offsets = block.particle_offsets * NUM_CORE
    columns[CORE] = pa.LargeListArray.from_arrays(core_offsets, block.core.ravel())
    schema = unmixed_schema(events.schema)
    for name in schema.names:
        if name not in columns:
            columns[name] = events[name].take(block.selected).combine_chunks()
    columns_in_order = [columns[name] for name in schema.names]
    return pa.RecordBatch.from_arrays(columns_in_order, schema=schema)


def feature_rows(events: pa.Table, block: FeatureBlock) -> pa.Table:
    """The selected events of a block with the columns of the features Parquet, unmixed.

    `events` is the table from which the block was made.
    """
    # The raw particles are replaced by one list column for each of their features.
    batch = unmixed_rows(events, block)
    rows = pa.Table.from_batches([batch]).drop_columns([CORE])
    particles = particles_from_core(block.core.T)
    for name, column in list_columns(block.particle_offsets, particles).items():
        rows = rows.append_column(name, column)
    num_particles = np.diff(block.particle_offsets).astype(np.int32)
    return rows.append_column(NUM_PARTICLES.name, pa.array(num_particles))
