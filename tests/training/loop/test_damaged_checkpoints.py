"""A damaged checkpoint is named and never used; an older one is."""

from __future__ import annotations

import contextlib
import errno
import json
import pickle
import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from example_checkpoints import load, write_checkpoint

from training.errors import CheckpointError
from training.loop.checkpoints import CheckpointFolder
from training.readers.units import Position

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda file_bytes: file_bytes.replace(b"value", b"vamue", 1),
    "another step": lambda file_bytes: file_bytes.replace(b'"step": 5', b'"step": 3'),
    "half": lambda file_bytes: file_bytes[: len(file_bytes) // 2],
    "empty": lambda _: b"",
}


def test_an_incomplete_folder_and_another_version_are_no_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    assert folder.latest() is None
    checkpoint = write_checkpoint(folder, Position(1, 0))

    folder.write_rank([Position(2, 0)], 2, 0, {"value": torch.ones(3)})
    assert folder.latest() == checkpoint

    path = checkpoint.folder / "complete.json"
    document = json.loads(path.read_text()) | {"version": 0}
    path.write_text(json.dumps(document))
    assert folder.latest() is None


def test_a_damaged_part_is_never_loaded_with_other_content(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(CheckpointFolder(tmp_path, "d"), Position(1, 0))
    path = checkpoint.folder / "rank-1.pt"
    file_bytes = path.read_bytes()
    truncated = [file_bytes[:size] for size in range(0, len(file_bytes), 97)]
    overwritten = []
    for offset in range(0, len(file_bytes), 61):
        damaged_bytes = bytearray(file_bytes)
        damaged_bytes[offset : offset + 2] = b"\xff\xff"
        overwritten.append(bytes(damaged_bytes))
    remaining = [b"no checkpoint", b"\x80\x02.", file_bytes + b"x"]

    for damaged in [*truncated, *overwritten, *remaining]:
        path.write_bytes(damaged)
        # Bytes between the members of a zip file mean nothing: then it loads as it was.
        with contextlib.suppress(CheckpointError):
            loaded = load(checkpoint, 1)
            assert loaded["value"].tolist() == [1.0] * 100
            assert loaded["name"] == "x"


def test_the_error_of_a_missing_part_names_its_path(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(CheckpointFolder(tmp_path, "d"), Position(1, 0))
    (checkpoint.folder / "rank-1.pt").unlink()

    message = r"rank-1\.pt is damaged.*The same command resumes before it"
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(1)
    assert load(checkpoint, 0)["name"] == "x"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *product(["rank-0.pt", "rank-1.pt"], ["a flipped bit", "half", "empty"]),
        *product(["complete.json"], ["another step", "half", "empty"]),
    ],
)
def test_a_damaged_checkpoint_is_named_and_an_older_one_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    older = write_checkpoint(folder, Position(1, 0))
    newest = write_checkpoint(folder, Position(2, 5))
    assert folder.latest() == newest
    assert folder.describe_damage() == []

    path = newest.folder / name
    path.write_bytes(DAMAGES[damage](path.read_bytes()))

    assert folder.latest() == older
    (sentence,) = folder.describe_damage()
    assert sentence.startswith(f"{path} is damaged")
    assert sentence.endswith("but from an older one if there is one.")


@pytest.mark.parametrize("name", ["rank-0.pt", "complete.json"])
def test_an_intact_checkpoint_behind_the_end_hides_no_damage(tmp_path: Path, name: str) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    damaged = write_checkpoint(folder, Position(2, 0))
    write_checkpoint(folder, Position(4, 0))
    (damaged.folder / name).write_bytes(b"")

    end = Position(2, 0)
    assert folder.latest(end=end) is None
    (sentence,) = folder.describe_damage(end=end)
    assert sentence.startswith(f"{damaged.folder / name} is damaged")
    assert folder.describe_damage(end=Position(1, 0)) == []


@pytest.mark.parametrize("text", ["", '{"epoch": 1}', "null", "[]"])
def test_without_an_older_checkpoint_a_training_begins_anew(tmp_path: Path, text: str) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    checkpoint = write_checkpoint(folder, Position(1, 0))

    (checkpoint.folder / "complete.json").write_text(text)

    assert folder.latest() is None
    assert len(folder.describe_damage()) == 1


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    checkpoint = write_checkpoint(CheckpointFolder(tmp_path, "d"), Position(1, 0))
    torch.save({"value": Hostile()}, checkpoint.folder / "rank-0.pt")
    (checkpoint.folder / "rank-1.pt").write_bytes(pickle.dumps(Hostile(), protocol=2))

    for rank in range(2):
        with pytest.raises(CheckpointError):
            checkpoint.load(rank)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["rank-1.pt", "complete.json"])
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ESTALE, "Stale file handle"),
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
    ],
)
def test_an_error_of_the_system_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, name: str
) -> None:
    folder = CheckpointFolder(tmp_path, "d")
    write_checkpoint(folder, Position(1, 0))
    newest = write_checkpoint(folder, Position(2, 5))
    read_text, zip_file = Path.read_text, zipfile.ZipFile

    def read_text_or_fail(path: Path, *arguments: Any, **options: Any) -> str:
        if path == newest.folder / name:
            raise error
        return read_text(path, *arguments, **options)

    def open_zip_or_fail(path: Path) -> zipfile.ZipFile:
        if path == newest.folder / name:
            raise error
        return zip_file(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text_or_fail)
        patch.setattr(zipfile, "ZipFile", open_zip_or_fail)
        with pytest.raises(type(error)):
            folder.latest()
    assert folder.latest() == newest
