"""The files of a manifest are on disk before the manifest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.runs.store import StageStore

FILES = ("train/part-00000.parquet", "hlf/model/weights.pt", "hlf/model.onnx", "metrics.json")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What gets to the disk, and what gets its name, in this order, as paths below the stage."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def flushed(descriptor: int) -> None:
        fsync(descriptor)
        found = [
            path
            for path in (tmp_path / "train", *tmp_path.rglob("*"))
            if os.path.samestat(path.stat(), os.fstat(descriptor))
        ]
        done.extend(path.relative_to(tmp_path / "train").as_posix() for path in found)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"-> {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    return done


def test_files_and_folders_are_on_the_disk_before_the_manifest_and_that_before_the_pointer(
    tmp_path: Path, steps: list[str]
) -> None:
    store = StageStore(tmp_path, "train")
    folder = store.next_folder("abcdef0123")
    store.begin(folder)
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    store.commit(folder, {})
    manifest, pointer = steps.index("-> manifest.json"), steps.index("-> current.json")
    written = [*FILES, "train", "hlf", "hlf/model", "."]
    expected = {os.path.normpath(f"{folder.name}/{name}") for name in written}
    assert expected <= {*steps[:manifest]}
    assert f"{folder.name}/.manifest.json.new" in steps[:manifest]
    assert folder.name in steps[manifest:pointer]
    assert ".current.json.new" in steps[manifest:pointer]
    assert "." in steps[pointer:]
