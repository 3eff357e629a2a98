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

from features.arrays import offsets_from_counts
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
        indices = [schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=indices, use_threads=False)
        reader = pa.ipc.open_file(file, options=options)
        return reader.read_all().select(names)


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
            first_row_of_batch = batch_number * ROWS_PER_BATCH
            batch = reader.get_batch(batch_number)
            yield BatchRows(batch, rows[needed] - first_row_of_batch, needed)


def copy_particles(
    batch_rows: BatchRows, particles: Particles, target_starts: NDArray[np.int64]
) -> None:
    """Copy the particles of needed rows of a batch into the arrays of `particles`.

    `target_starts` (num_rows,) is the index of the first particle of each row in these arrays.
    """
    core = batch_rows.batch[CORE]
    offsets = core.offsets.to_numpy().astype(np.int64)
    starts = offsets[batch_rows.rows]
    stops = offsets[batch_rows.rows + 1]
    lengths = stops - starts
    for name, target in _arrays_by_name(particles).items():
        if name in _IN_BYTES:
            high = as_numpy(core.values.field(f"{name}_high"))
            low = _low_bytes(core.values.field(f"{name}_low"))
            target_bits = target.view(np.uint32)
            copy_joined_runs(high, low, starts, lengths, target_bits, target_starts)
        else:
            source = as_numpy(core.values.field(name))
            copy_runs(source, starts, lengths, target, target_starts)


def _arrays_by_name(particles: Particles) -> dict[str, NDArray[Any]]:
    """The arrays of particles by their names in `features.columns.PARTICLE_CORE`."""
    return dict(zip(PARTICLE_CORE, particles, strict=True))


def _low_bytes(column: pa.FixedSizeBinaryArray) -> NDArray[np.uint8]:
    """The three lower bytes of each number, (num_numbers, 3), in a column of a file."""
    _, numbers = column.buffers()
    # The buffer may be longer than its bytes.
    flat_bytes = np.frombuffer(numbers, np.uint8, count=3 * len(column))
    return flat_bytes.reshape(-1, 3)


def empty_particles(num_particles: int) -> Particles:
    """Arrays for a number of particles, not yet filled."""
    arrays = [np.empty(num_particles, dtype) for dtype in PARTICLE_CORE.values()]
    return Particles(*arrays)


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
    particle_type = pa.struct(_stored_fields())
    core_field = pa.field(CORE, pa.list_(particle_type))
    return pa.schema([*fields, _NUM_PARTICLES_FIELD, core_field])


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
        num_remaining = rows.num_rows % ROWS_PER_BATCH
        num_rows = rows.num_rows - num_remaining
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
    list_offsets = pa.array(offsets.astype(np.int32))
    lists = pa.ListArray.from_arrays(list_offsets, _stored_particles(particles))
    num_particles = np.diff(offsets).astype(np.int32)
    rows = run.drop_columns([CORE]).combine_chunks().take(order)
    rows = rows.append_column(_NUM_PARTICLES_FIELD, pa.array(num_particles))
    return rows.append_column(CORE, lists)


def _stored_particles(particles: Particles) -> pa.StructArray:
    """Particles as a file stores them, with `_stored_fields()`."""
    columns = []
    for name, numbers in _arrays_by_name(particles).items():
        if name not in _IN_BYTES:
            columns.append(pa.array(numbers))
            continue
        high, low = split_bytes(numbers.view(np.uint32))
        low_buffers = [None, pa.py_buffer(low)]
        low_column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(3), len(low), low_buffers)
        columns += [pa.array(high), low_column]
    return pa.StructArray.from_arrays(columns, fields=_stored_fields())


def _sorted_particles(
    core: pa.ChunkedArray, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Particles]:
    """The particles of events in a new order, as `features.matrices.particle_arrays` gives them.

    `core` has the 11 numbers of all particles of an event in one list; `order` (num_events,) are
    indices of events.
    """
    list_lengths = pc.list_value_length(core).to_numpy()
    num_particles = list_lengths // NUM_CORE
    offsets = offsets_from_counts(num_particles[order])
    target_starts = np.empty_like(order)
    target_starts[order] = offsets[:-1]
    num_columns = offsets[-1]
    core_columns = np.empty((NUM_CORE, num_columns), dtype=np.float32)
    first_event = 0
    for chunk in core.chunks:
        end = first_event + len(chunk)
        lengths = num_particles[first_event:end]
        chunk_starts = target_starts[first_event:end]
        core_rows = chunk.values.to_numpy().reshape(-1, NUM_CORE)
        first_rows = chunk.offsets.to_numpy()[:-1] // NUM_CORE
        transpose_runs(core_rows, first_rows, lengths, core_columns, chunk_starts)
        first_event = end
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
        for index in range(lengths[run]):
            source_row = source_starts[run] + index
            target_column = target_starts[run] + index
            for field in range(target.shape[0]):
                target[field, target_column] = source[source_row, field]


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
        source_start = source_starts[run]
        target_start = target_starts[run]
        for index in range(lengths[run]):
            target[target_start + index] = source[source_start + index]


@compiled
def split_bytes(bits: NDArray[np.uint32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The highest byte (num_numbers,) and the lower ones (num_numbers, 3) of float32 as bits."""
    high = np.empty(bits.size, dtype=np.uint8)
    low = np.empty((bits.size, 3), dtype=np.uint8)
    for index, number_bits in enumerate(bits):
        high[index] = number_bits >> 24
        low[index, 0] = number_bits & 0xFF
        low[index, 1] = number_bits >> 8 & 0xFF
        low[index, 2] = number_bits >> 16 & 0xFF
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
        source_start = source_starts[run]
        target_start = target_starts[run]
        for index in range(lengths[run]):
            source = source_start + index
            lowest_byte = low[source, 0]
            second_byte = low[source, 1] << 8
            third_byte = low[source, 2] << 16
            highest_byte = high[source] << 24
            target[target_start + index] = lowest_byte | second_byte | third_byte | highest_byte
