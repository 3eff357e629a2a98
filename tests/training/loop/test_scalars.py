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


def scalars_in(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Epochs and values of a tag, from the event file: length, its checksum, the event, its checksum."""
    (path,) = folder.iterdir()
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + length])
        found += [
            (event.step, value.simple_value) for value in event.summary.value if value.tag == tag
        ]
        at += 16 + length
    return found


def test_an_epochs_numbers_are_written(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20, 20], "val": [10], "test": [5]})
    run = make_spec(
        dataset, tmp_path / "out", algorithm="sgd", workers=1, epochs=3, tensorboard=True
    )
    launch(run, on_progress=lambda _: None)
    expected = [
        (record["epoch"], pytest.approx(record["val_loss"])) for record in records(run.out_dir)[0]
    ]
    assert scalars_in(run.out_dir / "tensorboard", "val_loss") == expected


class _Shown:
    """What TensorBoard gets."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, float]] = []

    def add_scalar(self, name: str, value: float, epoch: int) -> None:
        if name == "train_loss":
            self.losses.append((epoch, value))

    def flush(self) -> None: ...

    close = flush


def test_an_epoch_was_shown_before_all_ranks_had_recorded_it(tmp_path: Path) -> None:
    shown: Any = _Shown()
    ranks = [
        DiskFiles(
            tmp_path,
            rank=rank,
            world_size=2,
            digest="d",
            save_model=lambda _: None,
            scalars=scalars,
        )
        for rank, scalars in enumerate([shown, None])
    ]
    for files in ranks:
        files.begin([], (0, 0), None)

    def record(rank: int, epoch: int, loss: float) -> None:
        sums = {"loss": loss, "weight": 1.0, "correct": 0.0}
        others = dict.fromkeys(("learning_rate", "wait_seconds", "seconds"), 0.0)
        known = (
            {} if rank else dict.fromkeys(("val_loss", "val_accuracy", "consensus_distance"), 0.5)
        )
        ranks[rank].record({"epoch": epoch, "samples": 4, "sums": sums} | others | known)

    for epoch in range(2):
        record(0, epoch, 1.0)
        record(1, epoch, 3.0)
    ranks[0].close()
    assert shown.losses == [(0, 2.0), (1, 2.0)]
