"""A stage does not start where there is no room for what it writes."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.errors import RunFolderError
from pipeline.space import LEAST_BYTES, out_of_room, refuse_full_disk, size_of


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def before(tmp_path: Path) -> Path:
    folder = tmp_path / "0001-ab"
    (folder / "train").mkdir(parents=True)
    # Sparse: it has a size and takes no space.
    with (folder / "train" / "part.parquet").open("wb") as file:
        file.truncate(3 * LEAST_BYTES)
    return folder


def free(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12 - number, number))


def test_the_last_version_says_how_much(tmp_path: Path, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert size_of(before) == 3 * LEAST_BYTES
    free(monkeypatch, 3 * LEAST_BYTES)
    refuse_full_disk(tmp_path, "features", before)
    free(monkeypatch, 3 * LEAST_BYTES - 1)
    with pytest.raises(RunFolderError, match=r"features needs about 201 MB \(as the last version, 0001-ab\).*clean"):
        refuse_full_disk(tmp_path, "features", before)


def test_a_little_is_asked_for_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, LEAST_BYTES)
    refuse_full_disk(tmp_path, "report", None)
    free(monkeypatch, LEAST_BYTES - 1)
    with pytest.raises(RunFolderError, match="report needs about 67 MB"):
        refuse_full_disk(tmp_path, "report", None)


def test_a_full_disk_is_known_behind_what_a_library_makes_of_it() -> None:
    # matplotlib's PDF writer fails so, when it closes the file that it could not write.
    full = OSError(errno.ENOSPC, "No space left on device")
    found = None
    try:
        try:
            raise full
        finally:
            raise AttributeError("'Stream' object has no attribute 'pos'")
    except AttributeError as error:
        found = error
    assert out_of_room(found) is full
    assert out_of_room(OSError(errno.ENOENT, "No such file")) is None
