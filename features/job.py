"""The Spark job: kernels over the events parts, then a shuffle that mixes all events into equal row groups.

Two passes. The first runs the kernels over the events parts and keeps the unpadded result on disk; only the keys of the
events come back to the driver, which decides the layout. The second sends the rows to their row groups through a Spark
shuffle of few large binary rows (Arrow IPC), never of single floats, and writes one file per row group.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark import Accumulator, SparkContext

from features.build import FeatureBlock, build_features
from features.dataset import FeatureDataset, RowGroup
from features.errors import EmptySelectionError
from features.mixing import Layout, class_weights, group_size, kept_fractions, layout, refuse_empty_classes
from features.scaling import ColumnStatistics
from features.schema import MAX_PARTICLES, NUM_HLF, NUM_PARTICLE_FEATURES, SPLITS, features_schema
from features.settings import Balance, FeatureSettings
from features.splitting import BALANCE_STREAM, MIXING_STREAM, UInt64s, event_hash, split_index, uniform

_UNMIXED: Final = ".unmixed"


class BlockKeys(NamedTuple):
    """What the driver must know of the selected events of one events part: 22 bytes each."""

    name: str
    sample: str
    counters: dict[str, int]
    split: NDArray[np.int8]
    mixing: UInt64s
    balance: NDArray[np.float64]
    label: NDArray[np.int8]
    weight: NDArray[np.float32]


class Plan(NamedTuple):
    """Everything the second pass needs: layouts by split and the share of each class that stays."""

    layouts: list[Layout]
    fractions: NDArray[np.float64]


class GroupWritten(NamedTuple):
    """One row group, with the statistics of its columns."""

    split: int
    group: int
    rows: int
    hlf: ColumnStatistics
    particles: ColumnStatistics


class FeaturesResult(NamedTuple):
    """The dataset and the counters of each sample."""

    dataset: FeatureDataset
    counters: dict[str, dict[str, int]]


def make_features(
    spark: SparkContext,
    parts: Sequence[tuple[str, Path]],
    settings: FeatureSettings,
    classes: list[str],
    out_dir: Path,
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> FeaturesResult:
    """Make the features dataset in `out_dir` (an existing folder that every task can reach).

    Args:
        spark: The running context.
        parts: (sample, path) of the events parts.
        settings: Selection, physics, layout.
        classes: Names of the classes, by label.
        out_dir: Where the dataset goes.
        done: Counts events as kernel tasks finish, for progress.
        num_tasks: Number of Spark tasks for so many pieces of work.

    Raises:
        FeatureError: Nothing survives the selection, or a split lacks a class or rows.
    """
    unmixed = out_dir / _UNMIXED
    unmixed.mkdir()
    blocks = _run_kernels(spark, parts, settings, unmixed, done=done, num_tasks=num_tasks)
    counters = _sum_by_sample(blocks)
    _refuse_empty(counters)
    plan, weights = plan_layout(blocks, settings, classes)
    for split in SPLITS:
        (out_dir / split).mkdir()
    written = _mix(spark, [unmixed / block.name for block in blocks if block.name], plan, out_dir, num_tasks=num_tasks)
    shutil.rmtree(unmixed)
    dataset = _describe(written, blocks, plan, weights, classes, out_dir)
    return FeaturesResult(dataset, counters)


def plan_layout(
    blocks: Sequence[BlockKeys], settings: FeatureSettings, classes: list[str]
) -> tuple[Plan, NDArray[np.float64]]:
    """Decide which events stay, the row groups of every split, and the class weights.

    Raises:
        FeatureError: A split lacks a class or has too few events; class weights are not positive.
    """
    split = np.concatenate([block.split for block in blocks])
    label = np.concatenate([block.label for block in blocks])
    keys = np.concatenate([block.mixing for block in blocks])
    weight = np.concatenate([block.weight for block in blocks])
    fractions = np.ones(len(classes))
    if settings.balance is Balance.DOWNSAMPLE:
        fractions = kept_fractions(label, len(classes))
    kept = np.concatenate([block.balance for block in blocks]) < fractions[label]
    refuse_empty_classes(split[kept], label[kept], classes)
    layouts = []
    for index in range(len(SPLITS)):
        chosen = keys[kept & (split == index)]
        size = group_size(len(chosen), rows_per_group=settings.rows_per_group, feed_workers=settings.feed_workers)
        layouts.append(layout(chosen, size=size))
    weights = []
    for index, name in enumerate(SPLITS):
        chosen = kept & (split == index)
        weights.append(class_weights(label[chosen], weight[chosen], classes, split=name))
    train_weights = weights[0]
    return Plan(layouts, fractions), train_weights


def _run_kernels(
    spark: SparkContext,
    parts: Sequence[tuple[str, Path]],
    settings: FeatureSettings,
    unmixed: Path,
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> list[BlockKeys]:
    folder = str(unmixed)

    def run(part: tuple[str, str]) -> BlockKeys:
        keys = kernel_task(part[0], Path(part[1]), settings, Path(folder))
        done.add(keys.counters["events"])
        return keys

    work = [(sample, str(path)) for sample, path in parts]
    return list(spark.parallelize(work, num_tasks(len(work))).map(run).collect())


def kernel_task(sample: str, path: Path, settings: FeatureSettings, unmixed: Path) -> BlockKeys:
    """Features of one events part, unpadded, to a file of the same name in `unmixed`."""
    events = pq.read_table(path)
    block = build_features(events, settings)
    finite = finite_events(block)
    rows = events.select(["file_uuid", "entry", "label", "weight"]).take(block.selected[finite])
    uuids, entries = rows["file_uuid"].to_pylist(), rows["entry"].to_numpy()
    counters = {
        "events": events.num_rows,
        "rejected_no_isolated_lepton": events.num_rows - len(block.selected),
        "rejected_nonfinite_features": int((~finite).sum()),
        "selected": int(finite.sum()),
    }
    split = split_index(uuids, entries, settings.split)
    balance = uniform(event_hash(uuids, entries, stream=BALANCE_STREAM))
    mixing = event_hash(uuids, entries, stream=MIXING_STREAM)
    _write(_unmixed_table(block, finite, rows, split, balance, mixing), unmixed / path.name)
    return BlockKeys(
        name=path.name,
        sample=sample,
        counters=counters,
        split=split.astype(np.int8),
        mixing=mixing,
        balance=balance,
        label=rows["label"].to_numpy().astype(np.int8),
        weight=rows["weight"].to_numpy(),
    )


def finite_events(block: FeatureBlock) -> NDArray[np.bool_]:
    """Events of which every feature is finite (|eta| beyond 80 overflows a float32 energy)."""
    rows_finite = np.isfinite(block.particles).all(axis=1)
    bad_rows = np.concatenate([[0], np.cumsum(~rows_finite)])[block.particle_offsets]
    finite: NDArray[np.bool_] = np.isfinite(block.hlf).all(axis=1) & (np.diff(bad_rows) == 0)
    return finite


def _unmixed_table(
    block: FeatureBlock,
    finite: NDArray[np.bool_],
    rows: pa.Table,
    split: NDArray[np.int64],
    balance: NDArray[np.float64],
    mixing: UInt64s,
) -> pa.Table:
    offsets = (block.particle_offsets * NUM_PARTICLE_FEATURES).astype(np.int32)
    particles = pa.ListArray.from_arrays(offsets, block.particles.ravel()).filter(pa.array(finite))
    columns = {
        "hlf": _list_column(block.hlf[finite]),
        "particles": particles,
        "split": split,
        "balance": balance,
        "mixing": mixing,
    }
    for name, values in columns.items():
        rows = rows.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    return rows


def _mix(
    spark: SparkContext, files: Sequence[Path], plan: Plan, out_dir: Path, *, num_tasks: Callable[[int], int]
) -> list[GroupWritten]:
    """Shuffle the rows of all files into their row groups and write these."""
    groups = [(split, group) for split, each in enumerate(plan.layouts) for group in range(len(each.rows))]
    number = {key: index for index, key in enumerate(groups)}
    folder = str(out_dir)

    def scatter(name: str) -> Iterator[tuple[int, bytes]]:
        for key, table in scatter_rows(pq.read_table(name), plan):
            yield number[key], table_to_bytes(table)

    def gather(blobs: Iterable[tuple[int, Iterable[bytes]]]) -> Iterator[GroupWritten]:
        for index, tables in blobs:
            split, group = groups[index]
            yield write_group(split, group, [table_from_bytes(blob) for blob in tables], Path(folder))

    names = [str(file) for file in files]
    scattered = spark.parallelize(names, num_tasks(len(names))).flatMap(scatter)
    return list(scattered.groupByKey(num_tasks(len(groups)), int).mapPartitions(gather).collect())


def scatter_rows(table: pa.Table, plan: Plan) -> Iterator[tuple[tuple[int, int], pa.Table]]:
    """The kept rows of an unmixed table, by (split, row group)."""
    split = table["split"].to_numpy()
    label = table["label"].to_numpy()
    kept = table["balance"].to_numpy() < plan.fractions[label]
    group = np.zeros(len(split), dtype=np.int64)
    for index, each in enumerate(plan.layouts):
        members = split == index
        group[members] = each.group_of(table["mixing"].to_numpy()[members])
    for key in sorted(set(zip(split[kept].tolist(), group[kept].tolist(), strict=True))):
        chosen = np.flatnonzero(kept & (split == key[0]) & (group == key[1]))
        yield key, table.take(chosen)


def write_group(split: int, group: int, tables: Iterable[pa.Table], out_dir: Path) -> GroupWritten:
    """Concatenate, sort by mixing key, pad and write one row group; its content does not depend on arrival order."""
    table = pa.concat_tables(tables).combine_chunks()
    table = table.sort_by([("mixing", "ascending"), ("file_uuid", "ascending"), ("entry", "ascending")])
    hlf = np.stack(table["hlf"].to_numpy())
    particles, num_particles, flat = _padded(table["particles"])
    columns = {
        "hlf": _list_column(hlf),
        "particles": _list_column(particles.reshape(len(particles), -1)),
        "num_particles": pa.array(num_particles, pa.int32()),
        "label": table["label"],
        "weight": table["weight"],
        "file_uuid": table["file_uuid"],
        "entry": table["entry"],
    }
    schema = features_schema()
    arrays = [_one_chunk(columns[field.name]).cast(field.type) for field in schema]
    _write(pa.Table.from_arrays(arrays, schema=schema), out_dir / group_file(split, group))
    # Validation and test must not reach the scaler: their statistics are not even computed.
    fitted = slice(None) if SPLITS[split] == "train" else slice(0)
    return GroupWritten(
        split, group, table.num_rows, ColumnStatistics.of(hlf[fitted]), ColumnStatistics.of(flat[fitted])
    )


def group_file(split: int, group: int) -> str:
    """Name of a row group's file inside the dataset."""
    return f"{SPLITS[split]}/part-{group:05d}.parquet"


def _padded(column: pa.ChunkedArray) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
    """Zero-padded (num_events, 801, 19), the numbers of real rows, and the real rows of all events in one array."""
    lists = _one_chunk(column)
    flat = lists.flatten().to_numpy().reshape(-1, NUM_PARTICLE_FEATURES)
    counts = np.diff(lists.offsets.to_numpy()) // NUM_PARTICLE_FEATURES
    padded = np.zeros((len(counts), MAX_PARTICLES, NUM_PARTICLE_FEATURES), dtype=np.float32)
    padded[np.arange(MAX_PARTICLES) < counts[:, None]] = flat
    return padded, counts.astype(np.int32), flat


def _list_column(rows: NDArray[np.float32]) -> pa.Array:
    """(num_rows, width) numbers as a list column."""
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, np.ascontiguousarray(rows, dtype=np.float32).ravel())


def _one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def table_to_bytes(table: pa.Table) -> bytes:
    """An Arrow IPC stream; Spark moves it as one opaque row."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_from_bytes(blob: bytes) -> pa.Table:
    """The inverse of `table_to_bytes`."""
    return pa.ipc.open_stream(blob).read_all()


def _write(table: pa.Table, path: Path) -> None:
    """Under another name first, then renamed: attempts of the same task write the same bytes to the same place."""
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    pq.write_table(table, unfinished, compression="zstd", compression_level=1, row_group_size=max(1, table.num_rows))
    unfinished.replace(path)


def _sum_by_sample(blocks: Iterable[BlockKeys]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for block in blocks:
        total = totals.setdefault(block.sample, dict.fromkeys(block.counters, 0))
        for key, value in block.counters.items():
            total[key] += value
    return totals


def _refuse_empty(counters: dict[str, dict[str, int]]) -> None:
    for sample, counter in counters.items():
        if not counter["selected"]:
            cutflow = "\n".join(f"  {key:<30}{value:>10}" for key, value in counter.items())
            raise EmptySelectionError(
                f"sample '{sample}': no event is left after the selection. Its cutflow:\n{cutflow}\n"
                f"Loosen features.min_lepton_pt or features.max_lepton_isolation, or check the files."
            )


def _describe(
    written: Sequence[GroupWritten],
    blocks: Sequence[BlockKeys],
    plan: Plan,
    weights: NDArray[np.float64],
    classes: list[str],
    out_dir: Path,
) -> FeatureDataset:
    """Write `dataset.json` and `scaler.json`; the scaler from the training split only."""
    hlf = ColumnStatistics.of(np.zeros((0, NUM_HLF)))
    particles = ColumnStatistics.of(np.zeros((0, NUM_PARTICLE_FEATURES)))
    splits: dict[str, list[RowGroup]] = {split: [] for split in SPLITS}
    for each in sorted(written, key=lambda group: (group.split, group.group)):
        splits[SPLITS[each.split]].append(RowGroup(group_file(each.split, each.group), each.rows))
        hlf, particles = hlf.merge(each.hlf), particles.merge(each.particles)
    split = np.concatenate([block.split for block in blocks])
    label = np.concatenate([block.label for block in blocks])
    kept = np.concatenate([block.balance for block in blocks]) < plan.fractions[label]
    counts = {
        name: np.bincount(label[kept & (split == index)], minlength=len(classes)).tolist()
        for index, name in enumerate(SPLITS)
    }
    dataset = FeatureDataset(out_dir, classes, weights.tolist(), splits, counts)
    columns: dict[str, Any] = {"hlf": hlf.to_json(), "particles": particles.to_json()}
    dataset.save(columns=columns)
    return dataset
