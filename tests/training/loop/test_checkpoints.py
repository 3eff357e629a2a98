"""Checkpoints on disk are complete or absent; damaged ones: `test_damaged_checkpoints.py`."""

from __future__ import annotations

import json
import os
import threading
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from example_checkpoints import load, require_latest, write_checkpoint
from power_cuts import FilesWithPowerCut, PowerCutError
from simulated import CLUSTER, UNEVEN_CLUSTER, models, run, settings, toy_rows

from hep_studies.simulator.simulate import Simulated
from models.networks.hlf_settings import HlfSettings
from training.errors import CheckpointError
from training.launching.rank import agreed_checkpoint
from training.loop.checkpoints import CheckpointFolder
from training.loop.records import DiskFiles
from training.loop.resumption import settings_digest
from training.readers.units import Position
from training.settings import TrainSettings
from training.transports.transport import Transport

WORKERS = 3
SETTINGS: dict[str, Any] = {
    "algorithm": "swarm-sgd",
    "slowmo": {"tau": 4},
    "epochs": 3,
    "batch_size": 8,
    "sharding": "static",
}


def make_files(
    out_dir: Path, *, workers: int, files_class: type[DiskFiles] = DiskFiles
) -> list[DiskFiles]:
    """The files of each rank, without a model."""
    files = []
    for rank in range(workers):
        rank_files = files_class(
            out_dir, rank=rank, world_size=workers, digest="d", save_model=lambda _: None
        )
        files.append(rank_files)
    return files


def train(
    out_dir: Path, *, files_class: type[DiskFiles] = DiskFiles, workers: int = WORKERS
) -> Simulated:
    """Train for three epochs of five steps; continue from a checkpoint if there is one.

    There is a checkpoint after three steps of each epoch and at its end.
    """
    out_dir.mkdir(exist_ok=True)
    files = make_files(out_dir, workers=workers, files_class=files_class)
    return run(
        train=toy_rows(120, groups=6),
        cluster=UNEVEN_CLUSTER,
        workers=workers,
        checkpoint_steps=3,
        files=files.__getitem__,
        resume=files[0].checkpoints.latest(),
        **SETTINGS,
    )


def read_epochs(out_dir: Path, rank: int) -> list[int]:
    """Epochs of the records of a rank."""
    text = (out_dir / "metrics" / f"rank-{rank}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line)["epoch"] for line in text.splitlines()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return train(tmp_path_factory.mktemp("uninterrupted"))


def assert_continues(out_dir: Path, uninterrupted: Simulated, position: Position) -> None:
    latest = require_latest(CheckpointFolder(out_dir / "checkpoints", "d"))
    assert latest.position == position
    assert latest.world_size == WORKERS
    continued = train(out_dir)
    np.testing.assert_array_equal(models(continued), models(uninterrupted))
    for rank in range(WORKERS):
        assert read_epochs(out_dir, rank) == [0, 1, 2]


def test_an_interrupted_run_continues_from_its_last_checkpoint(
    tmp_path: Path, uninterrupted: Simulated
) -> None:
    with pytest.raises(PowerCutError):
        train(tmp_path, files_class=FilesWithPowerCut)

    assert_continues(tmp_path, uninterrupted, Position(1, 3))


def test_a_crash_while_a_rank_writes_leaves_the_checkpoint_before(
    tmp_path: Path, uninterrupted: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save
    calls = count(1)

    def crash_in_third_checkpoint(document: Any, file: Any) -> None:
        if next(calls) == 3 * WORKERS:
            file.write(b"PK")
            raise PowerCutError
        save(document, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", crash_in_third_checkpoint)
        with pytest.raises(PowerCutError):
            train(tmp_path)

    assert (tmp_path / "checkpoints" / "epoch-00001-step-00000003-of-3-d").is_dir()
    assert_continues(tmp_path, uninterrupted, Position(1, 0))


def test_a_crash_before_a_checkpoint_is_complete_leaves_the_one_before(
    tmp_path: Path, uninterrupted: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = CheckpointFolder.complete
    calls = count(1)

    def crash_in_third_checkpoint(*arguments: Any) -> None:
        if next(calls) == 3:
            raise PowerCutError
        complete(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "complete", crash_in_third_checkpoint)
        with pytest.raises(PowerCutError):
            train(tmp_path)

    assert_continues(tmp_path, uninterrupted, Position(1, 0))


def test_fewer_workers_continue_and_remove_the_records_of_the_others(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        train(tmp_path, files_class=FilesWithPowerCut)

    train(tmp_path, workers=2)

    for rank in range(2):
        assert read_epochs(tmp_path, rank) == [0, 1, 2]
    assert not (tmp_path / "metrics" / "rank-2.jsonl").exists()
    checkpoints = (tmp_path / "checkpoints").iterdir()
    assert [path.name[-6:] for path in checkpoints] == ["of-2-d", "of-2-d"]


def test_a_checkpoint_belongs_to_one_setting(tmp_path: Path) -> None:
    old_run = CheckpointFolder(tmp_path, "old")
    new_run = CheckpointFolder(tmp_path, "new")
    position = Position(20, 0)
    checkpoint = write_checkpoint(old_run, position, value=7.0)

    # A run with other settings crashes at the same position after its first rank.
    new_run.write_rank([position], 2, 0, {"value": torch.zeros(3)})
    new_run.complete([position], 2)
    assert new_run.latest() is None
    assert old_run.latest() == checkpoint
    for rank, expected in enumerate([7.0, 8.0]):
        state = load(checkpoint, rank)
        assert state["value"][0].item() == expected

    for epoch in (1, 2, 3):
        assert write_checkpoint(new_run, Position(epoch, 0)).epoch == epoch
    assert old_run.latest() is None


def test_a_run_of_fewer_epochs_does_not_continue_behind_its_end(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    at_end = write_checkpoint(folder, Position(2, 0))
    newest = write_checkpoint(folder, Position(2, 5))

    assert folder.latest() == newest
    assert folder.latest(end=Position(2, 0)) == at_end
    assert folder.latest(end=Position(1, 0)) is None


def test_parts_from_before_a_return_to_an_earlier_position_do_not_count(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    write_checkpoint(folder, Position(1, 4))
    by_three_workers = write_checkpoint(folder, Position(2, 0), workers=3)
    folder.write_rank([Position(2, 4)], 2, 1, {"value": torch.full((1,), 5.0)})

    # The run of three resumes with two workers from the beginning of the epoch before.
    folder.forget_after(Position(1, 0), by_three_workers)
    folder.write_rank([Position(1, 4)], 2, 0, {"value": torch.zeros(1)})
    folder.complete([Position(1, 4)], 2)

    assert folder.latest() == by_three_workers, "rank 1 has not written its new part yet"
    assert not list(tmp_path.glob("*step-00000004*/rank-1.pt"))


def test_the_last_rank_completes_a_checkpoint_and_later_parts_stay(tmp_path: Path) -> None:
    ahead, last = CheckpointFolder(tmp_path, "d"), CheckpointFolder(tmp_path, "d")
    positions = [Position(epoch, 0) for epoch in (1, 2, 3)]
    for position in positions:
        ahead.write_rank([position], 2, 0, {"value": torch.ones(1)})
        ahead.complete([position], 2)
        assert ahead.latest() is None

    for position in positions:
        last.write_rank([position], 2, 1, {"value": torch.ones(1)})
        # Both ranks may see that they are the last.
        last.complete([position], 2)
        ahead.complete([position], 2)
        assert require_latest(last).position == position

    assert len(list(tmp_path.iterdir())) == 2


def test_another_rank_may_complete_a_later_checkpoint_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [CheckpointFolder(tmp_path, "d") for _ in range(2)]
    first, second, third = (Position(epoch, 0) for epoch in (1, 2, 3))
    folders[0].write_rank([first], 2, 0, {"rank": 0})
    folders[1].write_rank([first, second], 2, 1, {"rank": 1})
    fsync, is_overtaken = os.fsync, False

    def overtake_once(file: int) -> None:
        """Rank 0 completes later checkpoints while rank 1 completes the first."""
        nonlocal is_overtaken
        if not is_overtaken:
            is_overtaken = True
            folders[0].write_rank([second], 2, 0, {"rank": 0})
            folders[0].complete([second], 2)
            for rank in range(2):
                folders[rank].write_rank([third], 2, rank, {"rank": rank})
            folders[0].complete([third], 2)
        fsync(file)

    monkeypatch.setattr(os, "fsync", overtake_once)

    folders[1].complete([first, second], 2)

    assert is_overtaken
    latest = require_latest(folders[0])
    assert latest.position == third
    assert [load(latest, rank)["rank"] for rank in range(2)] == [0, 1]


def test_a_rank_that_was_stopped_for_long_catches_up_with_few_files(tmp_path: Path) -> None:
    ahead, stopped = CheckpointFolder(tmp_path, "d"), CheckpointFolder(tmp_path, "d")
    first, *later = [Position(epoch, 0) for epoch in range(1, 501)]
    ahead.write_rank([first], 2, 0, {"epoch": 1})
    stopped.write_rank([first], 2, 1, {"epoch": 1})
    ahead.complete([first], 2)

    for position in later:
        ahead.write_rank([position], 2, 0, {"epoch": position.epoch})
        ahead.complete([position], 2)
    assert 10 < len(list(tmp_path.iterdir())) < 200
    assert require_latest(stopped).position == first

    stopped.write_rank(later, 2, 1, {"epoch": 500})
    stopped.complete(later, 2)

    latest = require_latest(ahead)
    assert latest.epoch == 500
    assert [load(latest, rank)["epoch"] for rank in range(2)] == [500, 500]
    ahead.remove_replaced()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_slowest_rank_removes_no_parts_of_the_ranks_ahead(tmp_path: Path) -> None:
    ahead, stopped = CheckpointFolder(tmp_path, "d"), CheckpointFolder(tmp_path, "d")
    positions = [Position(epoch, 0) for epoch in range(1, 21)]
    for position in positions:
        ahead.write_rank([position], 2, 0, {"epoch": position.epoch})

    stopped.write_rank(positions, 2, 1, {"epoch": 20})
    stopped.complete(positions, 2)

    assert require_latest(stopped).position == positions[-1]
    assert len(list(tmp_path.glob("*/rank-0.pt"))) == 20
    # A part at an earlier position could complete nothing newer.
    assert len(list(tmp_path.glob("*/rank-1.pt"))) == 1
    next_position = Position(21, 0)
    ahead.write_rank([next_position], 2, 0, {"epoch": 21})
    names = {path.name[:11] for path in tmp_path.iterdir()}
    assert names == {"epoch-00020", "epoch-00021"}


def test_two_slow_ranks_complete_a_checkpoint_that_both_have_crossed(tmp_path: Path) -> None:
    ahead, first_slow, last_slow = [CheckpointFolder(tmp_path, "d") for _ in range(3)]
    positions = [Position(epoch, 0) for epoch in range(1, 11)]
    for position in positions:
        ahead.write_rank([position], 3, 0, {"rank": 0})
    # They were stopped at different times, and so never write at the same last position.
    first_slow.write_rank(positions[:7], 3, 1, {"rank": 1})
    last_slow.write_rank(positions, 3, 2, {"rank": 2})

    last_slow.complete(positions, 3)

    latest = require_latest(ahead)
    assert latest.position == positions[6]
    assert [load(latest, rank)["rank"] for rank in range(3)] == [0, 1, 2]


def test_a_finished_run_leaves_no_incomplete_checkpoints(tmp_path: Path) -> None:
    files = make_files(tmp_path, workers=3)
    settings: dict[str, Any] = {"algorithm": "ad-psgd", "epochs": 12, "batch_size": 4}
    cluster = CLUSTER.model_copy(update={"slow_ranks": {2: 40.0}})

    run(train=toy_rows(60), workers=3, cluster=cluster, files=files.__getitem__, **settings)
    for rank_files in files:
        rank_files.close()

    folders = list((tmp_path / "checkpoints").iterdir())
    assert 1 <= len(folders) <= 2
    assert all((folder / "complete.json").exists() for folder in folders)


def test_the_digest_depends_on_the_settings_that_change_the_numbers() -> None:
    def digest(model: dict[str, Any] | None = None, **train: Any) -> str:
        return settings_digest(HlfSettings(**(model or {})).to_json(), settings(**train))

    default = digest()
    assert digest(workers=2) == default
    assert digest(epochs=9) == default
    assert digest(device="cpu") == default
    assert digest(checkpoint_steps=5, stall_seconds=9, reader="arrow", threads=2) == default
    changed = [
        digest(learning_rate=0.2),
        digest(algorithm="d-psgd"),
        digest(seed=2),
        digest(slowmo={"tau": 4}),
        digest(optimizer="sgd"),
        digest({"hidden": [9]}),
        # Another number of workers owns other events.
        digest(skew={}),
        digest(skew={}, workers=2),
    ]
    assert len({default, *changed}) == 9
    # The rate of each epoch depends on their number.
    until_the_end = {"decay": "cosine"}
    assert digest(schedule=until_the_end, epochs=9) != digest(schedule=until_the_end)
    steps = {"decay": "step", "milestones": [1]}
    assert digest(schedule=steps, epochs=9) == digest(schedule=steps)
    assert TrainSettings.SPEED_ONLY.issubset(TrainSettings.model_fields)


@pytest.mark.slow
def test_a_rank_waits_for_a_checkpoint_that_storage_shows_late(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    thread = threading.Timer(0.6, write_checkpoint, (folder, Position(2, 5)))
    thread.start()

    assert folder.await_complete(Position(2, 5), 2) == folder.latest()
    thread.join()


@pytest.mark.slow
def test_a_checkpoint_that_only_rank_0_sees_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.checkpoints._SECONDS_TO_APPEAR", 0.1)

    message = r"rank 0 resumes from .*epoch-00002.*storage that all hosts share"
    with pytest.raises(CheckpointError, match=message):
        CheckpointFolder(tmp_path, "d").await_complete(Position(2, 0), 2)


class Rank1Transport(Transport):
    """Rank 1 of two; its rank 0 broadcasts these numbers."""

    rank, world_size = 1, 2

    def __init__(self, numbers: list[int]) -> None:
        super().__init__()
        self._numbers = numbers

    async def broadcast(self, vector: Any) -> None:
        vector[:] = self._numbers


def test_all_ranks_continue_from_the_checkpoint_that_rank_0_sees(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    first = write_checkpoint(folder, Position(1, 0))
    second = write_checkpoint(folder, Position(2, 0))

    assert agreed_checkpoint(folder, Transport()) == second
    assert agreed_checkpoint(folder, Rank1Transport([1, 0, 2])) == first
    assert agreed_checkpoint(folder, Rank1Transport([0, 0, 0])) is None
