"""First pass: runs the kernels over one events part and writes one file of unmixed rows. No Spark.

The file holds identity, label, weight, HLF and the core of the particles (`features.columns.PARTICLE_CORE`) of every
selected event, as uncompressed Arrow IPC: the mixing gathers single events from it, and later versions may reuse it. It
depends only on the events part and on `kernel_items` of the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from features.columns import NUM_CORE, hlf_names
from features.kernels import OUTCOMES, FeatureBlock, build_features
from features.settings import FeatureSettings
from features.splitting import (
    BALANCE_STREAM,
    MIXING_STREAM,
    UInt64s,
    event_hash,
    split_index,
    uniform,
)
from hep_core.atomic_files import new_file
from hep_core.checked_parquet import open_parquet
from hep_core.integrity import file_digest
from hep_core.storage import as_path, is_remote
from ingestion.schema import COLLECTIONS, SCALARS, WEIGHT_PREFIX, events_schema
from ingestion.tally import StepCounts, sum_counts

#: Settings that act after the kernels: a change of them leaves the kernel outputs valid.
AFTER_KERNELS: Final = frozenset(
    {"split", "balance", "integrated_luminosity", "rows_per_group", "feed_workers"}
)
#: Counter of the events whose hardest lepton has no track within `features.own_track_dr`.
LACKS_OWN_TRACK: Final = "leptons_without_own_track"
_EVENTS: Final = events_schema()
#: Columns of events that the kernels alone read.
_INPUTS: Final = {*COLLECTIONS, *SCALARS} - {"weight"}


class EventsFile(NamedTuple):
    """One events part, as ingest describes it."""

    name: str
    sample: str
    digest: str
    """Digest of the part's content."""
    path: str


class KernelOutput(NamedTuple):
    """The output of the kernels for one events part; `counts` and `weights` depend on this part only."""

    name: str
    """Name of the events part."""
    sample: str
    digest: str
    """Digest of the events part."""
    counts: dict[str, int]
    """Number of events by outcome (the outcomes add up to `events`), and those of LACKS_OWN_TRACK."""
    weights: dict[str, list[float]]
    """[sum of weights, sum of squared weights] by outcome."""
    lies_in: str
    """Name of the folder, below that of all kernel outputs, of the version whose kernels ran."""
    size: int
    """Bytes of the file."""
    file_digest: str
    """Digest of the file, which shows damage; the name of the file says what it is of."""

    def path(self, kernels: Path) -> Path:
        """The file, below the folder of all kernel outputs."""
        return kernels / self.lies_in / Path(self.name).with_suffix(".arrow")

    def is_there(self, sizes: Mapping[str, int]) -> bool:
        """Whether the file is among those below the folder of all kernel outputs, and whole."""
        return sizes.get(self.path(Path()).as_posix()) == self.size


class EventKeys(NamedTuple):
    """What the driver needs about the selected events of one part: 26 bytes per event."""

    split: NDArray[np.int8]
    mixing: UInt64s
    balance: NDArray[np.float64]
    label: NDArray[np.int8]
    weight: NDArray[np.float64]
    """Physics weight; see `features.normalisation`."""


def kernel_items(settings: FeatureSettings) -> dict[str, Any]:
    """The settings that the kernels depend on."""
    return settings.model_dump(mode="json", exclude=set(AFTER_KERNELS))


def metadata_settings(settings: FeatureSettings, reading: Mapping[str, object]) -> dict[str, Any]:
    """What features say that they were made with: the settings of the kernels, and the thresholds of ingest."""
    thresholds = {
        f"ingest.{key}": value for key, value in reading.items() if key.startswith("min_")
    }
    return {f"features.{key}": value for key, value in kernel_items(settings).items()} | thresholds


def run_kernels(part: EventsFile, settings: FeatureSettings, folder: Path) -> KernelOutput:
    """Write the features of one events part to `folder`, one row group at a time, so that memory stays small.

    Later versions rely on the file.
    """
    tally = StepCounts({}, {})
    events_file, name = as_path(part.path), Path(part.name).with_suffix(".arrow").name
    with new_file(folder / name, flushed=True) as unfinished:
        with (
            open_parquet(events_file, pre_buffer=is_remote(events_file)) as file,
            pa.ipc.new_file(str(unfinished), unmixed_schema(file.schema)) as writer,
        ):
            for group in range(file.num_row_groups):
                events = file.read_row_group(group)
                block = build_features(events, settings)
                steps = {name: block.outcome == number for number, name in enumerate(OUTCOMES)}
                steps = {"events": slice(None), **steps, LACKS_OWN_TRACK: block.lacks_own_track}
                tally = sum_counts(
                    (tally, StepCounts.from_steps(steps, events["weight"].to_numpy()))
                )
                writer.write_batch(unmixed_rows(events, block))
        size, written = unfinished.stat().st_size, file_digest(unfinished)
    return KernelOutput(part.name, part.sample, part.digest, *tally, folder.name, size, written)


def keys_of(path: Path, settings: FeatureSettings, *, factor: float = 1.0) -> EventKeys:
    """Split, mixing key, balance, label and weight of every event of a file of unmixed rows; see `read_unmixed`."""
    rows = read_unmixed(path, factor=factor)
    uuids, entries = rows["file_uuid"].to_pylist(), rows["entry"].to_numpy()
    return EventKeys(
        split=split_index(uuids, entries, settings.split).astype(np.int8),
        mixing=event_hash(uuids, entries, stream=MIXING_STREAM),
        balance=uniform(event_hash(uuids, entries, stream=BALANCE_STREAM)),
        label=rows["label"].to_numpy().astype(np.int8),
        weight=rows["weight"].to_numpy(),
    )


def read_unmixed(path: Path, *, factor: float = 1.0) -> pa.Table:
    """The rows of a file, memory-mapped: only columns in use are read; all weights are multiplied by `factor`."""
    # The arrays keep the memory mapped; the closed file is none of the open ones, whose number is limited.
    with pa.memory_map(str(path)) as file:
        rows = pa.ipc.open_file(file).read_all()
    for number, name in enumerate(rows.schema.names):
        if name == "weight" or name.startswith(WEIGHT_PREFIX):
            rows = rows.set_column(number, name, pc.multiply(rows[name], factor))
    return rows


def unmixed_schema(events: pa.Schema = _EVENTS) -> pa.Schema:
    """Arrow schema of unmixed rows: what events have besides the inputs of the kernels, HLF and particles."""
    kept = ((field.name, field.type) for field in events if field.name not in _INPUTS)
    hlf = ((name, pa.float32()) for name in hlf_names())
    return pa.schema([*kept, *hlf, ("core", pa.large_list(pa.float32()))])


def unmixed_rows(events: pa.Table, block: FeatureBlock) -> pa.RecordBatch:
    """The selected events of a block in the schema `unmixed_schema()`."""
    schema = unmixed_schema(events.schema)
    identity = [
        events[name].take(block.selected).combine_chunks()
        for name in schema.names[: -len(hlf_names()) - 1]
    ]
    hlf = map(pa.array, np.ascontiguousarray(block.hlf.T))
    core = pa.LargeListArray.from_arrays(block.particle_offsets * NUM_CORE, block.core.ravel())
    return pa.RecordBatch.from_arrays([*identity, *hlf, core], schema=schema)
