"""Numbers for TensorBoard."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from feature_datasets import write_dataset
from tensorboardX.proto.event_pb2 import Event
from training_runs import make_spec, records

from training.launching.launcher import launch
from training.loop.records import DiskFiles
from training.readers.units import Position


def read_scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Epochs and values of a tag, from the only event file.

    It has for each event: length, checksum of the length, the event, checksum of the event.
    """
    (path,) = folder.iterdir()
    file_bytes = path.read_bytes()
    scalars: list[tuple[int, float]] = []
    start = 0
    while start < len(file_bytes):
        (length,) = struct.unpack_from("<Q", file_bytes, start)
        event = Event.FromString(file_bytes[start + 12 : start + 12 + length])
        values = [value.simple_value for value in event.summary.value if value.tag == tag]
        scalars += [(event.step, value) for value in values]
        start += 16 + length
    return scalars


def test_the_numbers_of_each_epoch_are_written(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20, 20], "val": [10], "test": [5]})
    run = make_spec(
        dataset, tmp_path / "out", algorithm="sgd", workers=1, epochs=3, tensorboard=True
    )

    launch(run, on_progress=lambda _: None)

    scalars = read_scalars(run.out_dir / "tensorboard", "val_loss")
    (rank_records,) = records(run.out_dir)
    epochs = [record["epoch"] for record in rank_records]
    losses = [record["val_loss"] for record in rank_records]
    assert [epoch for epoch, _ in scalars] == epochs
    assert [loss for _, loss in scalars] == pytest.approx(losses)


class TrainLossWriter:
    """Stands in for the writer of tensorboardX."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, float]] = []

    def add_scalar(self, name: str, value: float, epoch: int) -> None:
        if name == "train_loss":
            self.losses.append((epoch, value))

    def flush(self) -> None: ...

    close = flush


def make_record(epoch: int, loss: float, **validation: float) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "samples": 4,
        "sums": {"loss": loss, "weight": 1.0, "correct": 0.0},
        "learning_rate": 0.0,
        "wait_seconds": 0.0,
        "seconds": 0.0,
        **validation,
    }


def test_an_epoch_is_written_after_all_ranks_have_recorded_it(tmp_path: Path) -> None:
    writer = TrainLossWriter()
    options: dict[str, Any] = {"world_size": 2, "digest": "d", "save_model": lambda _: None}
    first = DiskFiles(tmp_path, rank=0, scalars=writer, **options)
    second = DiskFiles(tmp_path, rank=1, scalars=None, **options)
    for files in (first, second):
        files.begin([], Position(0, 0), None)

    validation = {"val_loss": 0.5, "val_accuracy": 0.5, "consensus_distance": 0.5}
    for epoch in range(2):
        first.record(make_record(epoch, 1.0, **validation))
        second.record(make_record(epoch, 3.0))
    first.close()

    assert writer.losses == [(0, 2.0), (1, 2.0)]
