"""The files of unmixed rows: what the kernels computed, in the order of the mixing. No Spark.

A file is Arrow IPC in small compressed batches. Its rows are sorted by split and mixing hash. A
row group of the dataset is a range of this order, so its task reads a few neighbouring batches of
each file. Random rows would read five times as many bytes from a disk.

The order serves the speed only: readers take rows by their number in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from features.columns import NUM_CORE, NUM_PARTICLES, PARTICLE_CORE
from features.matrices import Particles, as_numpy, particles_from_core
from features.settings import SplitSettings
from features.splitting import MIXING_STREAM, event_hash, split_index
from hep_core.compiling import compiled

#: Column of the particles.
CORE: Final = "core"
#: Rows of each batch but the last. Readers decompress whole batches, and a task needs few rows of a
#: file. Batches of 32 rows take 0.8 % less space.
ROWS_PER_BATCH: Final = 16
#: Memory of the rows that are sorted together [bytes].
SORTED_BYTES: Final = 128 << 20
#: Numbers that hardly repeat. Of these only the highest byte, with sign and exponent, compresses:
#: stored apart from the three lower ones it saves 4 % of a file.
_IN_BYTES: Final = ("pt", "eta", "phi")
_NUM_PARTICLES_FIELD: Final = pa.field(NUM_PARTICLES.name, pa.int32())


class BatchRows(NamedTuple):
    """A batch of a file, and those of its rows that are needed."""

    batch: pa.RecordBatch
    rows: NDArray[np.int64]
    """(num_rows,) indices of needed rows in the batch."""
    needed: slice
    """Where these rows are among all needed rows of the file."""


def write_unmixed(
    path: Path, blocks: Iterable[pa.RecordBatch], schema: pa.Schema, shares: SplitSettings
) -> int:
    """Write rows in the schema `features.kernel_pass.unmixed_schema()` to a new file.

    Rows are sorted in runs of SORTED_BYTES, which bounds the memory. In a file of several runs each
    run is sorted.

    Returns:
        Bytes that all rows take in memory.
    """
    num_bytes = 0
    codec = pa.Codec("zstd", compression_level=1)
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_file(str(path), _stored_schema(schema), options=options) as writer:
        for run in _runs(blocks):
            num_bytes += run.nbytes
            writer.write_table(_stored_rows(run, shares), max_chunksize=ROWS_PER_BATCH)
    return num_bytes


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Read some columns of all rows of a file; no others are read from the disk."""
    with pa.OSFile(str(path)) as file:
        schema = pa.ipc.open_file(file).schema
        options = pa.ipc.IpcReadOptions(
            included_fields=[schema.get_field_index(name) for name in names], use_threads=False
        )
        return pa.ipc.open_file(file, options=options).read_all().select(names)


def read_rows(path: Path, rows: NDArray[np.int64]) -> Iterator[BatchRows]:
    """Read the batches that hold some rows, one after the other.

    `rows` (num_rows,) are indices of rows of the file, in ascending order.
    """
    batch_numbers = rows // ROWS_PER_BATCH
    options = pa.ipc.IpcReadOptions(use_threads=False)
    # A mapped file would read 128 kB around each page that it lacks.
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file, options=options)
        for batch_number in np.unique(batch_numbers).tolist():
            first, stop = np.searchsorted(batch_numbers, [batch_number, batch_number + 1])
            needed = slice(int(first), int(stop))
            batch = reader.get_batch(batch_number)
            yield BatchRows(batch, rows[needed] - batch_number * ROWS_PER_BATCH, needed)


def copy_particles(
    batch_rows: BatchRows, particles: Particles, target_starts: NDArray[np.int64]
) -> None:
    """Copy the particles of needed rows of a batch into the arrays of `particles`.

    `target_starts` (num_rows,) is the index of the first particle of each row in these arrays.
    """
    core = batch_rows.batch[CORE]
    offsets = core.offsets.to_numpy().astype(np.int64)
    starts = offsets[batch_rows.rows]
    lengths = offsets[batch_rows.rows + 1] - starts
    stored = {field.name: core.values.field(field.name) for field in core.values.type}
    targets: dict[str, NDArray[Any]] = dict(zip(PARTICLE_CORE, particles, strict=True))
    for name, target in targets.items():
        if name in _IN_BYTES:
            low = stored[f"{name}_low"]
            # The buffer may be longer than its bytes.
            low_bytes = np.frombuffer(low.buffers()[1], np.uint8, count=3 * len(low))
            copy_joined_runs(
                as_numpy(stored[f"{name}_high"]),
                low_bytes.reshape(-1, 3),
                starts,
                lengths,
                target.view(np.uint32),
                target_starts,
            )
        else:
            copy_runs(as_numpy(stored[name]), starts, lengths, target, target_starts)


def empty_particles(num_particles: int) -> Particles:
    """Arrays for a number of particles, not yet filled."""
    return Particles._make(np.empty(num_particles, dtype) for dtype in PARTICLE_CORE.values())


def _stored_fields() -> list[pa.Field]:
    """The fields of a particle in a file: its numbers in the types of the dataset, or in bytes."""
    fields = []
    for name, dtype in PARTICLE_CORE.items():
        if name in _IN_BYTES:
            fields.append(pa.field(f"{name}_high", pa.uint8()))
            fields.append(pa.field(f"{name}_low", pa.binary(3)))
        else:
            fields.append(pa.field(name, pa.type_for_alias(dtype)))
    return fields


def _stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a file with rows of a schema; the particles are its last column."""
    fields = [field for field in schema if field.name != CORE]
    return pa.schema(
        [*fields, _NUM_PARTICLES_FIELD, pa.field(CORE, pa.list_(pa.struct(_stored_fields())))]
    )


def _runs(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join blocks of rows to runs of SORTED_BYTES, but for the last one."""
    pending: list[pa.Table] = []
    num_bytes = 0
    for block in blocks:
        pending.append(pa.Table.from_batches([block]))
        num_bytes += block.nbytes
        if num_bytes < SORTED_BYTES:
            continue
        rows = pa.concat_tables(pending)
        # Only the last batch of a file may be shorter, so remaining rows go to the next run.
        num_rows = rows.num_rows - rows.num_rows % ROWS_PER_BATCH
        yield rows.slice(0, num_rows)
        pending = [rows.slice(num_rows)]
        num_bytes = pending[0].nbytes
    if pending:
        yield pa.concat_tables(pending)


def _stored_rows(run: pa.Table, shares: SplitSettings) -> pa.Table:
    """The rows of a run in the schema of the file, sorted by split and mixing hash."""
    uuids = run["file_uuid"].to_pylist()
    entries = run["entry"].to_numpy()
    split = split_index(uuids, entries, shares)
    mixing = event_hash(uuids, entries, stream=MIXING_STREAM)
    # The last key, the split, is the primary one.
    order = np.lexsort((mixing, split))

    offsets, particles = _sorted_particles(run[CORE], order)
    lists = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), _stored_particles(particles)
    )
    num_particles = pa.array(np.diff(offsets).astype(np.int32))
    rows = run.drop_columns([CORE]).combine_chunks().take(order)
    return rows.append_column(_NUM_PARTICLES_FIELD, num_particles).append_column(CORE, lists)


def _stored_particles(particles: Particles) -> pa.StructArray:
    """Particles as a file stores them, with `_stored_fields()`."""
    numbers_by_name: dict[str, NDArray[Any]] = dict(zip(PARTICLE_CORE, particles, strict=True))
    arrays = []
    for name, numbers in numbers_by_name.items():
        if name not in _IN_BYTES:
            arrays.append(pa.array(numbers))
            continue
        high, low = split_bytes(numbers.view(np.uint32))
        buffers = [None, pa.py_buffer(low)]
        arrays.append(pa.array(high))
        arrays.append(pa.FixedSizeBinaryArray.from_buffers(pa.binary(3), len(low), buffers))
    return pa.StructArray.from_arrays(arrays, fields=_stored_fields())


def _sorted_particles(
    core: pa.ChunkedArray, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Particles]:
    """The particles of events in a new order, as `features.matrices.particle_arrays` gives them.

    `core` has the 11 numbers of all particles of an event in one list; `order` (num_events,) are
    indices of events.
    """
    num_particles = pc.list_value_length(core).to_numpy() // NUM_CORE
    offsets = np.concatenate([[0], np.cumsum(num_particles[order])])
    target_starts = np.empty_like(order)
    target_starts[order] = offsets[:-1]
    core_columns = np.empty((NUM_CORE, offsets[-1]), dtype=np.float32)
    first_event = 0
    for chunk in core.chunks:
        events = slice(first_event, first_event + len(chunk))
        first_event += len(chunk)
        transpose_runs(
            chunk.values.to_numpy().reshape(-1, NUM_CORE),
            chunk.offsets.to_numpy()[:-1] // NUM_CORE,
            num_particles[events],
            core_columns,
            target_starts[events],
        )
    return offsets, particles_from_core(core_columns)


@compiled
def transpose_runs(
    source: NDArray[np.float32],
    source_starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    target: NDArray[np.float32],
    target_starts: NDArray[np.int64],
) -> None:
    """Copy runs of rows of `source` to runs of columns of `target`.

    Run i begins at `source_starts[i]` and at `target_starts[i]`, and has `lengths[i]` rows.
    """
    for run in range(source_starts.size):
        for row in range(lengths[run]):
            for column in range(target.shape[0]):
                target[column, target_starts[run] + row] = source[source_starts[run] + row, column]


@compiled
def copy_runs(
    source: NDArray[Any],
    source_starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    target: NDArray[Any],
    target_starts: NDArray[np.int64],
) -> None:
    """Copy runs of `source` to runs of `target`, as `transpose_runs` does for rows."""
    for run in range(source_starts.size):
        for index in range(lengths[run]):
            target[target_starts[run] + index] = source[source_starts[run] + index]


@compiled
def split_bytes(bits: NDArray[np.uint32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The highest byte (num_numbers,) and the lower ones (num_numbers, 3) of float32 as bits."""
    high = np.empty(bits.size, dtype=np.uint8)
    low = np.empty((bits.size, 3), dtype=np.uint8)
    for index in range(bits.size):
        high[index] = bits[index] >> 24
        low[index, 0] = bits[index] & 0xFF
        low[index, 1] = bits[index] >> 8 & 0xFF
        low[index, 2] = bits[index] >> 16 & 0xFF
    return high, low


@compiled
def copy_joined_runs(
    high: NDArray[np.uint8],
    low: NDArray[np.uint8],
    source_starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    target: NDArray[np.uint32],
    target_starts: NDArray[np.int64],
) -> None:
    """Copy runs of numbers from `split_bytes` to runs of `target`, as `copy_runs` does."""
    for run in range(source_starts.size):
        for index in range(lengths[run]):
            source = source_starts[run] + index
            low_bits = low[source, 0] | low[source, 1] << 8 | low[source, 2] << 16
            target[target_starts[run] + index] = low_bits | high[source] << 24
