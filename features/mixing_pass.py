"""Second pass: gathers the rows of all parts into row groups and writes one file each. No Spark.

The rows lie in the kernels' files, which every task can reach, so a task reads those of its row
groups and no row goes from task to task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.columns import INPUT_COLUMNS, NUM_CORE
from features.dataset import RowGroup
from features.distributions import (
    EVENTS_FOR_PARTICLES,
    Histograms,
    add_histograms,
    fill_histograms,
)
from features.kernel_pass import read_unmixed, unmixed_schema
from features.matrices import (
    hlf_array,
    list_columns,
    particle_arrays,
    particle_features,
    particles_from_core,
)
from features.mixing import RowGroupPlan
from features.scaling import ColumnStatistics
from features.schema import SPLITS, TRAIN, described_schema, features_schema
from hep_core.atomic_files import local_copy, new_file
from hep_core.compiling import compiled
from hep_core.integrity import file_digest
from hep_core.storage import as_path, is_remote

#: Memory of the rows that a task gathers [bytes].
GATHERED_BYTES: Final = 256 << 20
#: Columns with minimum and maximum in the footer. Features have none, since nothing uses them.
_WITH_STATISTICS: Final = ["num_particles", "label", "weight", "file_uuid", "entry"]
#: Columns with few different values.
_WITH_DICTIONARY: Final = [
    "file_uuid",
    "sample",
    "particle_kind.list.element",
    "particle_charge.list.element",
]


class KernelFile(NamedTuple):
    """The selected events of one part, as the kernels wrote them."""

    path: str
    first_event: int
    """Index of its first event among the selected events of all parts."""
    factor: float
    """Physics factor of its sample."""


class WrittenGroup(NamedTuple):
    """One row group, with the statistics of its columns.

    These are empty outside the training split.
    """

    split: int
    """Number of the split, an index into `SPLITS`."""
    group: RowGroup
    digest: str
    """Digest of the content of a file on object storage; empty for a local file."""
    hlf: ColumnStatistics
    """Statistics of the high-level features of all events."""
    particles: ColumnStatistics
    """Statistics of the particles of the first EVENTS_FOR_PARTICLES events."""


class PickedRows(NamedTuple):
    """Some rows of one table, and their positions among all rows that are gathered."""

    read: Callable[[], pa.Table]
    """Returns the table, mapped from its file into memory."""
    rows: NDArray[np.int64]
    """(num_rows,) indices of rows of the table, in ascending order."""
    positions: NDArray[np.int64]
    """(num_rows,) index of each row among the gathered rows."""


def rows_in_memory(num_bytes: int, num_rows: int) -> int:
    """Number of rows that take `GATHERED_BYTES` of memory, at least one.

    The size of a row is that of an average one: all `num_rows` rows take `num_bytes`.
    """
    return max(1, GATHERED_BYTES * num_rows // max(num_bytes, 1))


def write_groups(
    groups: Sequence[RowGroupPlan],
    files: Sequence[KernelFile],
    classes: list[str],
    out_dir: Path,
    scratch: Path = Path(),
    settings: Mapping[str, Any] | None = None,
) -> tuple[list[WrittenGroup], Histograms]:
    """Write the row groups of one task.

    It gathers the rows of all its row groups at once, then writes a slice of them for each.

    Args:
        groups: The row groups, with their events.
        files: The kernels' files, in the order of their events.
        classes: Names of the classes.
        out_dir: Folder of the dataset.
        scratch: Folder for copies of files on object storage.
        settings: Settings that go into the metadata of the files.

    Returns:
        The row groups, and one sum of their histograms, which saves memory on the driver.
    """
    events = np.concatenate([group.events for group in groups])
    rows = gather_rows(_pick_rows(files, events, scratch), len(events))
    written_groups = []
    histograms = []
    # The gathered rows have the order of the row groups, so each is a slice.
    start = 0
    for group in groups:
        group_rows = rows.slice(start, len(group.events))
        start += len(group.events)
        written, group_histograms = write_group(
            group.split, group.group, group_rows, classes, out_dir, settings
        )
        written_groups.append(written)
        histograms.append(group_histograms)
    return written_groups, add_histograms(histograms)


def _pick_rows(
    files: Sequence[KernelFile], events: NDArray[np.int64], scratch: Path
) -> list[PickedRows]:
    """Find the rows of some events in the files of the kernels.

    `events` (num_events,) are indices into the selected events of all parts; a file holds a range
    of these. The result has an entry for each file with some of the events, whose positions are
    those in `events`. A file on object storage is copied to `scratch` first.
    """
    order = np.argsort(events, kind="stable")
    # Sorted events are cut where the next file begins.
    file_bounds = np.searchsorted(events[order], [file.first_event for file in files[1:]])
    picked = []
    for file, positions in zip(files, np.split(order, file_bounds), strict=True):
        if positions.size:
            path = local_copy(as_path(file.path), scratch)
            read = partial(read_unmixed, path, factor=file.factor)
            picked.append(PickedRows(read, events[positions] - file.first_event, positions))
    return picked


def gather_rows(picked: Sequence[PickedRows], num_rows: int) -> pa.Table:
    """Gather rows of tables in the schema `unmixed_schema()`, in order of their positions.

    The 11 numbers of all particles of an event, one list in the tables, become a column of lists
    for each number. Mapped files count as memory of the task, so each is mapped twice, for the
    numbers of particles and for the particles, and none stays mapped.
    """
    tables = []
    num_particles = np.zeros(num_rows, dtype=np.int64)
    for file_rows in picked:
        table = file_rows.read()
        tables.append(table.drop_columns(["core"]).take(file_rows.rows))
        core_lengths = pc.list_value_length(table["core"]).to_numpy()[file_rows.rows]
        num_particles[file_rows.positions] = core_lengths // NUM_CORE

    offsets = np.concatenate([[0], np.cumsum(num_particles)])
    # One row for each number of a particle, one column for each particle.
    core_columns = np.empty((NUM_CORE, offsets[-1]), dtype=np.float32)
    for file_rows in picked:
        _copy_particles(file_rows, num_particles, core_columns, offsets)

    # The tables are joined file by file; the sort brings their rows to their positions.
    positions = np.concatenate([file_rows.positions for file_rows in picked])
    rows = pa.concat_tables(tables).take(np.argsort(positions))
    for name, column in list_columns(offsets, particles_from_core(core_columns)).items():
        rows = rows.append_column(name, column)
    return rows.append_column("num_particles", pa.array(num_particles))


def _copy_particles(
    picked: PickedRows,
    num_particles: NDArray[np.int64],
    core_columns: NDArray[np.float32],
    offsets: NDArray[np.int64],
) -> None:
    """Copy the particles of the picked rows into `core_columns`, (11, number of all particles).

    `num_particles` (num_rows,) and `offsets` (num_rows + 1,) are those of all gathered rows, by
    position.
    """
    chunk_start = 0
    for chunk in picked.read()["core"].chunks:
        chunk_stop = chunk_start + len(chunk)
        # The picked rows are sorted, so those of a chunk are a slice.
        first, stop = np.searchsorted(picked.rows, [chunk_start, chunk_stop])
        rows_in_chunk = picked.rows[first:stop] - chunk_start
        positions = picked.positions[first:stop]
        copy_runs(
            chunk.values.to_numpy().reshape(-1, NUM_CORE),
            chunk.offsets.to_numpy()[rows_in_chunk] // NUM_CORE,
            num_particles[positions],
            core_columns,
            offsets[positions],
        )
        chunk_start = chunk_stop


@compiled
def copy_runs(
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


def write_group(
    split: int,
    group: int,
    rows: pa.Table,
    classes: list[str],
    out_dir: Path,
    settings: Mapping[str, Any] | None = None,
) -> tuple[WrittenGroup, Histograms]:
    """Write rows from `gather_rows` as one row group, in their order; its file appears whole.

    `split` and `group` are the numbers of the split and of the row group. Returns the row group
    with the statistics of its columns, and its histograms.
    """
    table = _with_file_schema(rows, classes, settings)
    file = RowGroup(f"{SPLITS[split]}/part-{group:05d}.parquet", table.num_rows)
    with new_file(out_dir / file.file) as unfinished:
        # Float features hardly repeat; the attempt at dictionaries costs a third of the time.
        pq.write_table(
            table,
            unfinished,
            compression="zstd",
            compression_level=1,
            row_group_size=max(1, table.num_rows),
            use_dictionary=_WITH_DICTIONARY,
            write_statistics=_WITH_STATISTICS,
            write_batch_size=1 << 16,
            write_page_checksum=True,
        )
        digest = file_digest(unfinished) if is_remote(out_dir) else ""

    hlf = hlf_array(table)
    offsets, particles = particle_arrays(table)
    # Particles of the first events are enough for histograms and scaler.
    num_sampled = int(offsets[: EVENTS_FOR_PARTICLES + 1][-1])
    sampled_particles = particle_features(particles, num_sampled)
    histograms = fill_histograms(
        hlf,
        sampled_particles,
        table["num_particles"].to_numpy(),
        table["label"].to_numpy(),
        table["weight"].to_numpy(),
        classes,
    )
    if split != TRAIN:
        # The scaler must depend on the training split only, so no other split has statistics.
        hlf, sampled_particles = hlf[:0], sampled_particles[:0]
    written = WrittenGroup(
        split,
        file,
        digest,
        ColumnStatistics.from_rows(hlf, INPUT_COLUMNS["hlf"].log_above),
        ColumnStatistics.from_rows(sampled_particles, INPUT_COLUMNS["particles"].log_above),
    )
    return written, histograms


def _with_file_schema(
    rows: pa.Table, classes: list[str], settings: Mapping[str, Any] | None
) -> pa.Table:
    """The columns of the features Parquet, then the pass-through columns, with metadata."""
    known_columns = {*unmixed_schema().names, *features_schema().names}
    pass_through = [field for field in rows.schema if field.name not in known_columns]
    schema = described_schema(features_schema(pass_through), classes, settings)
    return rows.select(schema.names).combine_chunks().cast(schema)
