"""Checkpoints on disk: complete or absent, for these settings only; damage is an error."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import threading
import zipfile
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated import UNEVEN_CLUSTER, models, run, settings, toy_rows

from hep_studies.simulator.simulate import Simulated
from models.networks.hlf_settings import HlfSettings
from training.errors import CheckpointError
from training.launching.rank import agreed_checkpoint
from training.loop.checkpoints import Checkpoint, CheckpointFolder, settings_digest
from training.loop.records import DiskFiles
from training.settings import TrainSettings
from training.transports.transport import Transport

WORKERS = 3
CHOSEN: dict[str, Any] = {
    "algorithm": "swarm-sgd",
    "slowmo": {"tau": 4},
    "epochs": 3,
    "batch_size": 8,
    "sharding": "static",
}


class PowerCutError(Exception):
    """The run ends here."""


class CutFiles(DiskFiles):
    """The power fails at the end of the second epoch."""

    def record(self, record: dict[str, Any]) -> None:
        if record["epoch"] == 1:
            raise PowerCutError
        super().record(record)


def training(
    out: Path, *, files_of: type[DiskFiles] = DiskFiles, workers: int = WORKERS
) -> Simulated:
    """Three epochs of five steps; a checkpoint after three steps of each and at its end. Resumes where it can."""
    out.mkdir(exist_ok=True)
    files = [
        files_of(out, rank=rank, world_size=workers, digest="d", save_model=lambda _: None)
        for rank in range(workers)
    ]
    return run(
        train=toy_rows(120, groups=6),
        cluster=UNEVEN_CLUSTER,
        workers=workers,
        checkpoint_steps=3,
        files=files.__getitem__,
        resume=files[0].checkpoints.latest(),
        **CHOSEN,
    )


def epochs_on_disk(out: Path, rank: int) -> list[int]:
    lines = (out / "metrics" / f"rank-{rank}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["epoch"] for line in lines]


def written(
    folder: CheckpointFolder, position: tuple[int, int], *, workers: int = 2, value: float = 0.0
) -> Checkpoint:
    """A checkpoint of a few numbers."""
    for rank in range(workers):
        folder.write_rank(
            [position], workers, rank, {"value": torch.full((100,), value + rank), "name": "x"}
        )
    folder.complete([position], workers)
    found = folder.latest()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """The run without interruption."""
    return training(tmp_path_factory.mktemp("whole"))


def assert_continues(out: Path, whole: Simulated, position: tuple[int, int]) -> None:
    latest = CheckpointFolder(out / "checkpoints", "d").latest()
    assert latest is not None
    assert (latest.epoch, latest.step, latest.world_size) == (*position, WORKERS)
    np.testing.assert_array_equal(models(training(out)), models(whole))
    for rank in range(WORKERS):
        assert epochs_on_disk(out, rank) == [0, 1, 2]


def test_a_run_that_was_interrupted_continues_from_its_last_checkpoint(
    tmp_path: Path, whole: Simulated
) -> None:
    with pytest.raises(PowerCutError):
        training(tmp_path, files_of=CutFiles)
    assert_continues(tmp_path, whole, (1, 3))


@pytest.mark.parametrize(
    ("name", "call"),
    [("torch.save", 9), ("training.loop.checkpoints.CheckpointFolder.complete", 3)],
    ids=["while rank 2 writes", "before it is complete"],
)
def test_a_crash_during_the_third_checkpoint_leaves_the_one_before(
    name: str, call: int, tmp_path: Path, whole: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = (
        {"save": torch.save, "complete": CheckpointFolder.complete}[name.rpartition(".")[2]],
        count(1),
    )

    def fail(*arguments: Any) -> None:
        if next(calls) == call:
            if name == "torch.save":
                arguments[1].write(b"PK")
            raise PowerCutError
        original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(name, fail)
        with pytest.raises(PowerCutError):
            training(tmp_path)
    assert (tmp_path / "checkpoints" / "epoch-00001-step-00000003-of-3-d").is_dir()
    assert_continues(tmp_path, whole, (1, 0))


def test_fewer_workers_continue_and_leave_no_records_of_those_who_are_gone(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        training(tmp_path, files_of=CutFiles)
    training(tmp_path, workers=2)
    assert [epochs_on_disk(tmp_path, rank) for rank in range(2)] == [[0, 1, 2]] * 2
    assert not (tmp_path / "metrics" / "rank-2.jsonl").exists()
    assert sorted(path.name[-6:] for path in (tmp_path / "checkpoints").iterdir()) == [
        "of-2-d",
        "of-2-d",
    ]


def test_a_checkpoint_is_of_one_setting_and_that_of_another_does_not_outlive_it(
    tmp_path: Path,
) -> None:
    old, new = CheckpointFolder(tmp_path, "old"), CheckpointFolder(tmp_path, "new")
    first = written(old, (20, 0), value=7.0)
    # A crash after the first rank of a run with other settings came to the same place.
    new.write_rank([(20, 0)], 2, 0, {"value": torch.zeros(3)})
    new.complete([(20, 0)], 2)
    assert new.latest() is None
    assert old.latest() == first
    assert [first.load(rank)["value"][0].item() for rank in range(2)] == [7.0, 8.0]
    for epoch in (1, 2, 3):
        assert written(new, (epoch, 0)).epoch == epoch
    assert old.latest() is None


def test_a_run_that_returns_to_an_earlier_place_does_not_mix_with_what_it_wrote_there_before(
    tmp_path: Path,
) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    written(folder, (1, 4), value=1.0)
    others = written(folder, (2, 0), workers=3)
    folder.write_rank([(2, 4)], 2, 1, {"value": torch.full((1,), 5.0)})
    # The run of three resumes with two workers from the beginning of the epoch before.
    folder.forget_after((1, 0), others)
    assert folder.latest() == others
    folder.write_rank([(1, 4)], 2, 0, {"value": torch.zeros(1)})
    folder.complete([(1, 4)], 2)
    assert folder.latest() == others, "rank 1 has not written it yet"
    assert not list(tmp_path.glob("*step-00000004*/rank-1.pt"))


def test_whoever_writes_last_completes_a_checkpoint_and_those_who_are_ahead_keep_theirs(
    tmp_path: Path,
) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    for epoch in (1, 2, 3):
        folder.write_rank([(epoch, 0)], 2, 0, {"value": torch.ones(1)})
        folder.complete([(epoch, 0)], 2)
        assert folder.latest() is None
    for epoch in (1, 2, 3):
        folder.write_rank([(epoch, 0)], 2, 1, {"value": torch.ones(1)})
        for _ in range(2):
            folder.complete([(epoch, 0)], 2)
        latest = folder.latest()
        assert latest is not None
        assert latest.epoch == epoch
    assert len(list(tmp_path.iterdir())) == 2


def test_a_rank_that_completed_a_checkpoint_failed_when_another_completed_a_later_one_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first, later = CheckpointFolder(tmp_path, "d"), (1, 0), (2, 0)
    for rank, positions in ((0, [first]), (1, [first, later])):
        folder.write_rank(positions, 2, rank, {"rank": rank})
    fsync, others = os.fsync, iter([1])

    def overtaken(file: int) -> None:
        """Rank 0 passes the later one while rank 1 writes that the first is complete."""
        for _ in others:
            folder.write_rank([later], 2, 0, {"rank": 0})
            folder.complete([later], 2)
            folder.write_rank([(3, 0)], 2, 0, {"rank": 0})
            folder.write_rank([(3, 0)], 2, 1, {"rank": 1})
            folder.complete([(3, 0)], 2)
        fsync(file)

    monkeypatch.setattr(os, "fsync", overtaken)
    folder.complete([first, later], 2)
    assert next(others, None) is None
    found = folder.latest()
    assert found is not None
    assert found.epoch == 3
    assert [found.load(rank)["rank"] for rank in range(2)] == [0, 1]


def test_a_rank_that_was_stopped_for_long_left_hundreds_of_parts_to_remove(tmp_path: Path) -> None:
    ahead, stopped = CheckpointFolder(tmp_path, "d"), CheckpointFolder(tmp_path, "d")
    places = [(epoch, 0) for epoch in range(1, 501)]
    both = places[:1]
    for folder, rank in ((ahead, 0), (stopped, 1)):
        folder.write_rank(both, 2, rank, {"at": 1})
    ahead.complete(both, 2)
    for place in places[1:]:
        ahead.write_rank([place], 2, 0, {"at": place[0]})
        ahead.complete([place], 2)
    assert 10 < len(list(tmp_path.iterdir())) < 200
    found = stopped.latest()
    assert found is not None
    assert found.epoch == 1
    stopped.write_rank(places[1:], 2, 1, {"at": 500})
    stopped.complete(places[1:], 2)
    found = ahead.latest()
    assert found is not None
    assert found.epoch == 500
    assert [found.load(rank)["at"] for rank in range(2)] == [500, 500]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_without_the_last_file_or_of_another_version_is_no_checkpoint(
    tmp_path: Path,
) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    assert folder.latest() is None
    found = written(folder, (1, 0))
    folder.write_rank([(2, 0)], 2, 0, {"value": torch.ones(3)})
    latest = folder.latest()
    assert latest == found
    path = found.folder / "complete.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 0}))
    assert folder.latest() is None


def test_a_damaged_part_is_said_with_its_path(tmp_path: Path) -> None:
    found = written(CheckpointFolder(tmp_path, "d"), (1, 0))
    path = found.folder / "rank-1.pt"
    content = path.read_bytes()
    damages = [content[:size] for size in range(0, len(content), 97)] + [
        b"no checkpoint",
        b"\x80\x02.",
        content + b"x",
    ]
    damages += [
        content[:place] + b"\xff\xff" + content[place + 2 :] for place in range(0, len(content), 61)
    ]
    for damage in damages:
        path.write_bytes(damage)
        with contextlib.suppress(CheckpointError):
            # Where it is loaded, nothing that matters was damaged: bytes between the parts of a zip file mean nothing.
            loaded = found.load(1)
            assert loaded["value"].tolist() == [1.0] * 100
            assert loaded["name"] == "x"
    path.unlink()
    with pytest.raises(
        CheckpointError, match=r"rank-1\.pt is damaged.*The same command resumes before it"
    ):
        found.load(1)
    assert found.load(0)["name"] == "x"


def another_step(content: bytes) -> bytes:
    """A digit of the description, as a bad disk or a person changes it."""
    return content.replace(b'"step": 5', b'"step": 3')


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda content: content.replace(b"value", b"vamue", 1),
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *product(["rank-0.pt", "rank-1.pt"], DAMAGES),
        *product(["complete.json"], ["another step", "half", "empty"]),
    ],
)
def test_a_damaged_checkpoint_is_left_out_for_the_older_one_and_named(
    tmp_path: Path, name: str, damage: str
) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    older, newest = written(folder, (1, 0)), written(folder, (2, 5))
    assert folder.latest() == newest
    assert folder.damage() == []
    path = newest.folder / name
    path.write_bytes(DAMAGES.get(damage, another_step)(path.read_bytes()))
    assert folder.latest() == older
    (words,) = folder.damage()
    assert words.startswith(f"{path} is damaged")
    assert words.endswith(
        "not continue from this checkpoint, but from an older one if there is one."
    )


@pytest.mark.parametrize("content", ["", '{"epoch": 1}', "null", "[]"])
def test_without_an_older_checkpoint_a_training_begins_anew(tmp_path: Path, content: str) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    (written(folder, (1, 0)).folder / "complete.json").write_text(content)
    assert folder.latest() is None
    assert len(folder.damage()) == 1


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    found = written(CheckpointFolder(tmp_path, "d"), (1, 0))
    torch.save({"value": Hostile()}, found.folder / "rank-0.pt")
    (found.folder / "rank-1.pt").write_bytes(pickle.dumps(Hostile(), protocol=2))
    for rank in range(2):
        with pytest.raises(CheckpointError):
            found.load(rank)
    assert not (tmp_path / "executed").exists()


def test_the_digest_is_of_everything_that_the_numbers_depend_on() -> None:
    def digest(model: dict[str, Any] | None = None, **train: Any) -> str:
        return settings_digest(HlfSettings(**(model or {})).to_json(), settings(**train))

    same = digest()
    assert digest(workers=2) == digest(epochs=9) == digest(device="cpu") == same
    assert digest(checkpoint_steps=5, stall_seconds=9, reader="arrow", threads=2) == same
    others = [
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
    assert len({same, *others}) == 9
    assert TrainSettings.SPEED_ONLY.issubset(TrainSettings.model_fields)


@pytest.mark.slow
def test_a_checkpoint_that_storage_shows_late_is_waited_for(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    thread = threading.Timer(0.6, written, (folder, (2, 5)))
    thread.start()
    assert folder.await_complete(2, 5, 2) == folder.latest()
    thread.join()


@pytest.mark.slow
def test_a_checkpoint_that_only_rank_0_sees_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.checkpoints._SECONDS_TO_APPEAR", 0.1)
    with pytest.raises(
        CheckpointError, match=r"rank 0 resumes from .*epoch-00002.*storage that all hosts share"
    ):
        CheckpointFolder(tmp_path, "d").await_complete(2, 0, 2)


class _Rank1(Transport):
    """Rank 1 of two, whose rank 0 broadcasts this."""

    rank, world_size = 1, 2

    def __init__(self, sent: list[int]) -> None:
        super().__init__()
        self._sent = sent

    async def broadcast(self, vector: Any) -> None:
        vector[:] = self._sent


def test_all_ranks_continue_from_the_checkpoint_that_rank_0_found(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    first, second = written(folder, (1, 0)), written(folder, (2, 0))
    assert agreed_checkpoint(folder, Transport()) == second
    assert agreed_checkpoint(folder, _Rank1([1, 0, 2])) == first
    assert agreed_checkpoint(folder, _Rank1([0, 0, 0])) is None


@pytest.mark.parametrize("name", ["rank-1.pt", "complete.json"])
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ESTALE, "Stale file handle"),
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
    ],
)
def test_an_error_of_the_system_passes_over_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, name: str
) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    written(folder, (1, 0))
    newest = written(folder, (2, 5))
    read_text_of, zip_file = Path.read_text, zipfile.ZipFile

    def read_text(path: Path, *arguments: Any, **options: Any) -> str:
        if path == newest.folder / name:
            raise error
        return read_text_of(path, *arguments, **options)

    def open_zip(path: Path) -> zipfile.ZipFile:
        if path == newest.folder / name:
            raise error
        return zip_file(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text)
        patch.setattr(zipfile, "ZipFile", open_zip)
        with pytest.raises(type(error)):
            folder.latest()
    assert folder.latest() == newest
