"""Second pass: sorts the rows of all parts into row groups and writes one file each. No Spark; the job moves the rows.

The job moves a few large binary rows: each is an Arrow IPC blob of all the events that one part has for one task.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.compiling import compiled
from features.distributions import Histograms, add, fill
from features.kernel_pass import EventKeys, unmixed_schema
from features.low_level import NUM_CORE, padded_features
from features.mixing import RowGroupLayout
from features.scaling import ColumnStatistics
from features.schema import SPLITS, TRAIN, described, features_schema

#: Approximate number of events in a task's memory: 30 kB each during the move, 61 kB each in one padded row group.
EVENTS_PER_TASK: Final = 8192

#: Columns with minimum and maximum in the footer; for the features they would cost time and be of no use.
_WITH_STATISTICS: Final = ["num_particles", "label", "weight", "file_uuid", "entry"]


class MixingPlan(NamedTuple):
    """Where every event goes: the row groups of each split, and the share of each class to keep for the training."""

    layouts: list[RowGroupLayout]
    fractions: NDArray[np.float64]

    def groups(self) -> list[tuple[int, int]]:
        """(split, row group) by the number of the row group over all splits."""
        return [(split, group) for split, each in enumerate(self.layouts) for group in range(len(each.rows))]

    def num_events(self) -> int:
        """Events of all row groups."""
        return int(sum(each.rows.sum() for each in self.layouts))

    def tasks(self) -> NDArray[np.int64]:
        """Task of each row group; a task has consecutive row groups with about EVENTS_PER_TASK events."""
        rows = np.concatenate([each.rows for each in self.layouts])
        last_event: NDArray[np.int64] = np.maximum(0, np.cumsum(rows) - 1)
        return last_event // max(EVENTS_PER_TASK, int(rows.max()))

    def group_of(self, keys: EventKeys) -> NDArray[np.int64]:
        """Number of the row group of every event, over all splits."""
        number = np.zeros(len(keys.split), dtype=np.int64)
        first = 0
        for split, each in enumerate(self.layouts):
            members = keys.split == split
            number[members] = first + each.group_of(keys.mixing[members])
            first += len(each.rows)
        return number


def kept_by_balancing(keys: EventKeys, fractions: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask of the events that balancing keeps: all outside the training split, where every event measures."""
    kept: NDArray[np.bool_] = (keys.split != TRAIN) | (keys.balance < fractions[keys.label])
    return kept


class GroupWritten(NamedTuple):
    """One row group, with the statistics of its columns."""

    split: int
    group: int
    rows: int
    hlf: ColumnStatistics
    particles: ColumnStatistics


class TaskWritten(NamedTuple):
    """Output of one task, with one sum of its histograms to save memory on the driver."""

    groups: list[GroupWritten]
    histograms: Histograms


def scatter(rows: pa.Table, keys: EventKeys, plan: MixingPlan) -> Iterator[tuple[int, bytes]]:
    """The kept rows of one part as blobs: (number of the task, its rows) for every task that needs some."""
    kept = np.flatnonzero(kept_by_balancing(keys, plan.fractions))
    if not kept.size:
        return
    group = plan.group_of(keys)
    kept = kept[np.argsort(group[kept], kind="stable")]
    task = plan.tasks()[group[kept]]
    starts = np.flatnonzero(np.diff(task, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(task)], strict=True):
        chosen = kept[start:stop]
        yield int(task[start]), to_blob(gather(rows, chosen), group[chosen], keys.mixing[chosen])


def gather(rows: pa.Table, chosen: NDArray[np.int64]) -> pa.Table:
    """Like `rows.take(chosen)`, but copies the particles in runs; `take` copies single numbers."""
    taken = rows.drop_columns(["core"]).take(chosen)
    pieces, offsets = [], np.zeros(len(chosen) + 1, dtype=np.int64)
    first_row = 0
    for chunk in rows["core"].chunks:
        here = np.flatnonzero((chosen >= first_row) & (chosen < first_row + len(chunk)))
        starts = chunk.offsets.to_numpy()
        index = chosen[here] - first_row
        offsets[here + 1] = starts[index + 1] - starts[index]
        pieces.append((here, index, starts, chunk.values.to_numpy()))
        first_row += len(chunk)
    offsets = np.cumsum(offsets)
    values = np.empty(offsets[-1], dtype=np.float32)
    for here, index, starts, source in pieces:
        copy_runs(source, starts[index], starts[index + 1], values, offsets[here])
    return taken.append_column("core", pa.LargeListArray.from_arrays(offsets, values))


@compiled
def copy_runs(
    source: NDArray[np.float32],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    target: NDArray[np.float32],
    places: NDArray[np.int64],
) -> None:
    """Copy `source[starts[i]:stops[i]]` to `target[places[i]:]` for every i."""
    for run in range(starts.size):
        target[places[run] : places[run] + stops[run] - starts[run]] = source[starts[run] : stops[run]]


def to_blob(rows: pa.Table, group: NDArray[np.int64], mixing: NDArray[np.uint64]) -> bytes:
    """Rows with their row group and mixing key as an Arrow IPC stream; to Spark it is one binary value."""
    table = rows.append_column("group", pa.array(group)).append_column("mixing", pa.array(mixing))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def from_blob(blob: bytes) -> pa.Table:
    """The inverse of `to_blob`."""
    return pa.ipc.open_stream(blob).read_all()


def write_groups(
    blobs: Iterable[bytes], groups: Sequence[tuple[int, int]], classes: list[str], out_dir: Path
) -> TaskWritten:
    """Write the row groups of one task.

    Args:
        blobs: All blobs for the task, in any order.
        groups: (split, row group) by the number of the row group over all splits.
        classes: Names of the classes.
        out_dir: The dataset's folder.
    """
    pieces: dict[int, list[pa.Table]] = {}
    for blob in blobs:
        table = from_blob(blob)
        numbers = table["group"].to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
            pieces.setdefault(int(numbers[start]), []).append(table.slice(start, stop - start))
    written: list[GroupWritten] = []
    histograms: Histograms = {}
    for number in sorted(pieces):
        group, filled = write_group(*groups[number], pieces.pop(number), classes, out_dir)
        written.append(group)
        histograms = add([histograms, filled])
    return TaskWritten(written, histograms)


def write_group(
    split: int, group: int, tables: Iterable[pa.Table], classes: list[str], out_dir: Path
) -> tuple[GroupWritten, Histograms]:
    """Sort by mixing key, compute the features, pad and write; the order of arrival does not change the file."""
    table = pa.concat_tables(tables)
    identity = table.drop_columns(["core"])
    order = pc.sort_indices(
        identity, sort_keys=[("mixing", "ascending"), ("file_uuid", "ascending"), ("entry", "ascending")]
    ).to_numpy()
    table = gather(table, order.astype(np.int64))
    hlf = _one_chunk(table["hlf"]).values.to_numpy().reshape(len(order), -1)
    lists = _one_chunk(table["core"])
    offsets = lists.offsets.to_numpy() // NUM_CORE
    particles = padded_features(lists.values.to_numpy().reshape(-1, NUM_CORE), offsets)
    num_particles = np.diff(offsets).astype(np.int32)
    known = {*unmixed_schema().names, "group", "mixing"}
    carried = [field for field in table.schema if field.name not in known]
    columns = {
        "hlf": _list_column(hlf),
        "particles": _list_column(particles.reshape(len(particles), -1)),
        "num_particles": pa.array(num_particles),
        **{name: _one_chunk(table[name]) for name in ("label", "weight", "sample", "file_uuid", "entry")},
        **{field.name: _one_chunk(table[field.name]) for field in carried},
    }
    schema = described(features_schema(carried), classes)
    arrays = [columns[field.name].cast(field.type) for field in schema]
    write_features(pa.Table.from_arrays(arrays, schema=schema), out_dir / group_file(split, group))
    labels, weights = table["label"].to_numpy(), table["weight"].to_numpy()
    # The scaler must depend on the training split only, so no other split has statistics.
    fitted = slice(None) if split == TRAIN else slice(0)
    written = GroupWritten(
        split,
        group,
        table.num_rows,
        ColumnStatistics.of(hlf[fitted]),
        ColumnStatistics.of_padded(particles[fitted], num_particles[fitted]),
    )
    return written, fill(hlf, particles, num_particles, labels, weights, classes)


def write_features(table: pa.Table, path: Path) -> None:
    """Write one row group under a temporary name, then rename it: several attempts of a task may write the same file.

    Columns of numbers have no dictionary: float features hardly repeat, and the attempt costs a third of the time.
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    pq.write_table(
        table,
        unfinished,
        compression="zstd",
        compression_level=1,
        row_group_size=max(1, table.num_rows),
        use_dictionary=["file_uuid", "sample"],
        write_statistics=_WITH_STATISTICS,
        write_batch_size=1 << 16,
    )
    unfinished.replace(path)


def group_file(split: int, group: int) -> str:
    """Name of a row group's file inside the dataset."""
    return f"{SPLITS[split]}/part-{group:05d}.parquet"


def _list_column(rows: NDArray[np.float32]) -> pa.Array:
    """(num_rows, width) numbers as a list column."""
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, np.ascontiguousarray(rows, dtype=np.float32).ravel())


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
