"""The files of unmixed rows: order, batches, size, and what a task reads of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delphes_files import select
from event_rows import event_row, events_table, lepton, track
from numpy.typing import NDArray

from features import mixing_pass, unmixed_files
from features.kernel_pass import EventsFile, event_keys, feature_rows, run_kernels
from features.kernels import build_features
from features.mixing import plan_mixing
from features.mixing_pass import KernelFile, PickedRows, gather_rows, write_groups
from features.schema import SPLITS
from features.settings import FeatureSettings
from features.unmixed_files import ROWS_PER_BATCH, BatchRows, read_rows
from ingestion.file_info import FileInfo

SETTINGS = FeatureSettings(feed_workers=1, rows_per_group=50)
CLASSES = ["QCD", "ttbar", "W+jets"]


def made_events(num_events: int, *, file_number: int = 1) -> pa.Table:
    """Events of three classes in turn, each with other particles and another weight."""
    rng = np.random.default_rng(file_number)
    events = []
    file_uuid = str(uuid.UUID(int=file_number))
    for entry in range(num_events):
        num_tracks = rng.integers(0, 9)
        momenta = rng.uniform([0.6, 1, 1], [9, 2, 3], (num_tracks, 3))
        event = event_row(
            file_uuid=file_uuid,
            entry=entry,
            label=entry % 3,
            weight=float(rng.uniform(0.5, 2)),
            electrons=[lepton(40 + entry % 7, 0, 0)],
            tracks=[track(*momentum) for momentum in momenta],
        )
        events.append(event)
    return events_table(events)


def kernel_file(events: pa.Table, folder: Path, *, name: str = "part") -> Path:
    """The kernels' file of some events, whose row groups have 40 events."""
    folder.mkdir(exist_ok=True)
    events_path = folder / f"{name}.parquet"
    pq.write_table(events, events_path, row_group_size=40)
    events_file = EventsFile(events_path.name, "made", "", str(events_path))
    return run_kernels(events_file, SETTINGS, folder).path(folder.parent)


def gathered(path: Path, rows: NDArray[np.int64], *, factor: float = 1.0) -> pa.Table:
    """Rows of a file, in the order of the file."""
    columns = unmixed_files.read_columns(path, ["num_particles"])
    num_particles = columns["num_particles"].to_numpy()
    picked = PickedRows(path, factor, rows, np.arange(len(rows)))
    return gather_rows([picked], num_particles[rows])


def test_rows_are_sorted_by_split_and_mixing_hash_in_batches_of_equal_length(
    tmp_path: Path,
) -> None:
    path = kernel_file(made_events(150), tmp_path / "kernels")

    keys = event_keys(path, SETTINGS)

    file_order = np.argsort(keys.row)
    splits = keys.split[file_order]
    mixing_hashes = keys.mixing[file_order]
    sort_keys = list(zip(splits, mixing_hashes, strict=True))
    assert sort_keys == sorted(sort_keys)
    with pa.ipc.open_file(str(path)) as reader:
        lengths = [reader.get_batch(batch).num_rows for batch in range(reader.num_record_batches)]
    num_full_batches, rows_in_last_batch = divmod(150, ROWS_PER_BATCH)
    assert lengths == [ROWS_PER_BATCH] * num_full_batches + [rows_in_last_batch]


def test_keys_have_the_order_of_the_events_and_point_to_their_rows(tmp_path: Path) -> None:
    events = made_events(150)

    keys = event_keys(kernel_file(events, tmp_path / "kernels"), SETTINGS, factor=3.0)

    expected_weights = 3.0 * events["weight"].to_numpy()
    assert keys.weight.tolist() == expected_weights.tolist()
    rows = gathered(tmp_path / "kernels" / "part.arrow", np.arange(150))
    entries = rows["entry"].to_numpy()[keys.row]
    num_particles = rows["num_particles"].to_numpy()[keys.row]
    assert entries.tolist() == list(range(150))
    assert num_particles.tolist() == keys.num_particles.tolist()


@pytest.mark.parametrize("sorted_bytes", [1, 20_000, 1 << 30])
def test_rows_come_back_as_the_kernels_computed_them_whatever_the_length_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sorted_bytes: int
) -> None:
    events = made_events(150)
    computed = feature_rows(events, build_features(events, SETTINGS))
    monkeypatch.setattr(unmixed_files, "SORTED_BYTES", sorted_bytes)

    path = kernel_file(events, tmp_path / "kernels")

    rows = gathered(path, np.arange(150))
    event_order = np.argsort(rows["entry"].to_numpy())
    sorted_rows = rows.take(event_order).select(computed.schema.names)
    assert sorted_rows.to_pylist() == computed.to_pylist()


def test_some_rows_are_gathered_with_scaled_weights(tmp_path: Path) -> None:
    path = kernel_file(made_events(150), tmp_path / "kernels")
    rows = np.array([0, 15, 16, 17, 80, 149])

    scaled = gathered(path, rows, factor=2.0)

    unscaled = gathered(path, np.arange(150)).take(rows)
    other_columns = unscaled.drop_columns(["weight"])
    assert scaled.drop_columns(["weight"]).equals(other_columns)
    expected_weights = 2.0 * unscaled["weight"].to_numpy()
    assert scaled["weight"].to_pylist() == expected_weights.tolist()


def test_a_batch_is_read_for_one_task_or_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that take random rows read each batch for nearly every task."""
    keys = []
    files = []
    num_batches = 0
    for file_index in range(3):
        table = made_events(600, file_number=file_index + 1)
        path = kernel_file(table, tmp_path / "kernels", name=f"part-{file_index}")
        keys.append(event_keys(path, SETTINGS))
        files.append(KernelFile(str(path), 600 * file_index, 1.0))
        num_batches += -(-600 // ROWS_PER_BATCH)
    for split in SPLITS:
        (tmp_path / split).mkdir()
    tasks = plan_mixing(keys, SETTINGS, CLASSES).tasks(max_events=200)
    batches_read: list[BatchRows] = []

    def read_and_record(path: Path, rows: NDArray[np.int64]) -> Iterator[BatchRows]:
        for batch_rows in read_rows(path, rows):
            batches_read.append(batch_rows)
            yield batch_rows

    monkeypatch.setattr(mixing_pass, "read_rows", read_and_record)

    for groups in tasks:
        write_groups(groups, files, CLASSES, tmp_path)

    # Where a range of a task begins inside a batch, two tasks read it.
    assert len(tasks) > 8
    assert num_batches <= len(batches_read) <= num_batches + len(tasks) * len(files)


@pytest.mark.slow
def test_kernel_outputs_take_no_more_space_than_the_features(
    tmp_path: Path, bundled_files: list[FileInfo]
) -> None:
    (tmp_path / "train").mkdir()
    kernel_bytes = feature_bytes = 0
    for file_index, info in enumerate(bundled_files):
        events = select(info).table
        path = kernel_file(events, tmp_path / "kernels", name=f"part-{file_index}")
        kernel_bytes += path.stat().st_size
        num_rows = len(event_keys(path, SETTINGS).row)
        rows = gathered(path, np.arange(num_rows))
        mixing_pass.write_group(0, file_index, rows, CLASSES, tmp_path)
        feature_bytes += (tmp_path / f"train/part-{file_index:05d}.parquet").stat().st_size

    assert kernel_bytes <= feature_bytes
