"""Second pass: gathers the rows of all parts into row groups and writes one file each. No Spark.

The rows lie in the kernels' files, which every task can reach, so a task reads those of its row groups and no row goes
from task to task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.columns import INPUT_COLUMNS, NUM_CORE
from features.dataset import RowGroup
from features.distributions import EVENTS_FOR_PARTICLES, Histograms, add_histograms, fill_histograms
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
from features.schema import SPLITS, TRAIN, described, features_schema
from hep_core.atomic_files import local_copy, new_file
from hep_core.compiling import compiled
from hep_core.integrity import file_digest
from hep_core.storage import as_path, is_remote

#: Memory of the rows that a task gathers.
GATHERED_BYTES: Final = 256 << 20
#: Columns with minimum and maximum in the footer; for the features they would cost time and be of no use.
_WITH_STATISTICS: Final = ["num_particles", "label", "weight", "file_uuid", "entry"]
#: Columns with few different values.
_WITH_DICTIONARY: Final = [
    "file_uuid",
    "sample",
    *(f"particle_{name}.list.element" for name in ("kind", "charge")),
]


class KernelFile(NamedTuple):
    """The selected events of one part, as the kernels wrote them."""

    path: str
    first_event: int
    """Number of its first event among the selected events of all parts."""
    factor: float
    """Physics factor of its sample."""


class GroupWritten(NamedTuple):
    """One row group, with the statistics of its columns."""

    split: int
    group: RowGroup
    digest: str
    """Digest of the content of a file on object storage."""
    hlf: ColumnStatistics
    particles: ColumnStatistics
    """Of the first EVENTS_FOR_PARTICLES events."""


class PickedRows(NamedTuple):
    """Some rows of one table, and their places among all rows that are gathered."""

    read: Callable[[], pa.Table]
    """Maps the table from its file."""
    rows: NDArray[np.int64]
    """(num_rows,) in ascending order."""
    places: NDArray[np.int64]
    """(num_rows,)."""


def rows_at_once(num_bytes: int, num_rows: int) -> int:
    """Number of mixed rows that take `GATHERED_BYTES`, if `num_rows` of all parts have `num_bytes`; at least one."""
    return max(1, GATHERED_BYTES * num_rows // max(num_bytes, 1))


def write_groups(
    groups: Sequence[RowGroupPlan],
    files: Sequence[KernelFile],
    classes: list[str],
    out_dir: Path,
    scratch: Path = Path(),
    settings: Mapping[str, Any] | None = None,
) -> tuple[list[GroupWritten], Histograms]:
    """Write the row groups of one task; one sum of their histograms saves memory on the driver.

    `files` are in the order of their events; copies of those on object storage lie in `scratch`; `settings` is what the
    files say that they were made with.
    """
    wanted = np.concatenate([each.events for each in groups])
    rows = gathered(list(_picked(files, wanted, scratch)), len(wanted))
    lengths = [len(each.events) for each in groups]
    slices = map(rows.slice, accumulate(lengths, initial=0), lengths)
    made = [
        write_group(*each[:2], own, classes, out_dir, settings)
        for each, own in zip(groups, slices, strict=True)
    ]
    return [written for written, _ in made], add_histograms(histograms for _, histograms in made)


def _picked(
    files: Sequence[KernelFile], wanted: NDArray[np.int64], scratch: Path
) -> Iterator[PickedRows]:
    order = np.argsort(wanted, kind="stable")
    bounds = np.searchsorted(wanted[order], [each.first_event for each in files[1:]])
    for file, places in zip(files, np.split(order, bounds), strict=True):
        if places.size:
            read = partial(
                read_unmixed, local_copy(as_path(file.path), scratch), factor=file.factor
            )
            yield PickedRows(read, wanted[places] - file.first_event, places)


def gathered(picked: Sequence[PickedRows], num_rows: int) -> pa.Table:
    """Rows of tables in the schema `unmixed_schema()` in their places, with the particles as columns of lists.

    Mapped files count as memory of the task, so each is read twice, for the lengths and for the particles, and none is
    kept.
    """
    taken = []
    lengths = np.zeros(num_rows, dtype=np.int64)
    for each in picked:
        table = each.read()
        taken.append(table.drop_columns(["core"]).take(each.rows))
        lengths[each.places] = pc.list_value_length(table["core"]).to_numpy()[each.rows] // NUM_CORE
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    columns = np.empty((NUM_CORE, offsets[-1]), dtype=np.float32)
    for each in picked:
        first = 0
        for chunk in each.read()["core"].chunks:
            inside = slice(*np.searchsorted(each.rows, [first, first + len(chunk)]))
            source, places = chunk.values.to_numpy().reshape(-1, NUM_CORE), each.places[inside]
            starts = chunk.offsets.to_numpy()[each.rows[inside] - first] // NUM_CORE
            copy_runs(source, starts, lengths[places], columns, offsets[places])
            first += len(chunk)
    found = pa.concat_tables(taken).take(
        np.argsort(np.concatenate([each.places for each in picked]))
    )
    for name, column in list_columns(offsets, particles_from_core(columns)).items():
        found = found.append_column(name, column)
    return found.append_column("num_particles", pa.array(lengths))


@compiled
def copy_runs(
    source: NDArray[np.float32],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    target: NDArray[np.float32],
    places: NDArray[np.int64],
) -> None:
    """Copy the rows `starts[i]` to `starts[i] + lengths[i]` of `source` to the columns from `places[i]` of `target`."""
    for run in range(starts.size):
        for row in range(lengths[run]):
            for column in range(target.shape[0]):
                target[column, places[run] + row] = source[starts[run] + row, column]


def write_group(
    split: int,
    group: int,
    rows: pa.Table,
    classes: list[str],
    out_dir: Path,
    settings: Mapping[str, Any] | None = None,
) -> tuple[GroupWritten, Histograms]:
    """Write rows from `gathered` as one row group, in their order; its file appears whole."""
    own = {*unmixed_schema().names, *features_schema().names}
    schema = described(
        features_schema([field for field in rows.schema if field.name not in own]),
        classes,
        settings,
    )
    table = rows.select(schema.names).combine_chunks().cast(schema)
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
    hlf, (offsets, particles) = hlf_array(table), particle_arrays(table)
    few = particle_features(particles, int(offsets[: EVENTS_FOR_PARTICLES + 1][-1]))
    # The scaler must depend on the training split only, so no other split has statistics.
    fitted = None if split == TRAIN else 0
    hlf_seen, particles_seen = (
        ColumnStatistics.from_rows(each[:fitted], INPUT_COLUMNS[name].log_above)
        for name, each in (("hlf", hlf), ("particles", few))
    )
    written = GroupWritten(split, file, digest, hlf_seen, particles_seen)
    num_particles, labels, weights = (
        table[name].to_numpy() for name in ("num_particles", "label", "weight")
    )
    return written, fill_histograms(hlf, few, num_particles, labels, weights, classes)
