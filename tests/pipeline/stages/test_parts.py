"""What happens to the parts of a stage when a version begins."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from published_by_hand import example_manifest

from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.store import StageStore
from pipeline.stages.base import Context
from pipeline.stages.parts import begin_parts, unchanged_parts
from pipeline.stages.train import Train

PARTS = {"hlf": Fingerprint({}, {}, {})}
FILES = [
    "checkpoints/1/complete.json",
    "checkpoints/2/complete.json",
    "made-from",
    "model/model.json",
    "model/weights.pt",
]


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    """With a version in use, of one network."""
    store = StageStore(tmp_path, "train")
    folder = store.next_folder("0" * 8)
    store.create(folder)
    for name in FILES:
        path = folder / "hlf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PARTS["hlf"].digest if name == "made-from" else name)
    store.commit(folder, example_manifest("train"))
    return store


def next_version(store: StageStore) -> Path:
    """Begin the next version, which takes the network over."""
    folder = store.next_folder("1" * 8)
    store.create(folder, keep=[path for path in store.unfinished() if Train().can_continue(path)])
    context = SimpleNamespace(
        out_dir=folder, current=store.current(), taken_over_parts=frozenset({"hlf"})
    )
    begin_parts(store, cast("Context", context), PARTS, afresh=False)
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("files", range(len(FILES)))
def test_a_part_is_taken_over_whole_after_a_kill(
    store: StageStore, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    link, leftovers = os.link, iter(range(files))

    def killed(old: Any, new: Any) -> None:
        if next(leftovers, None) is None:
            raise KeyboardInterrupt
        link(old, new)

    monkeypatch.setattr(os, "link", killed)
    with pytest.raises(KeyboardInterrupt):
        next_version(store)
    monkeypatch.setattr(os, "link", link)
    folder = next_version(store)
    assert files_in(folder / "hlf") == FILES
    assert sorted(path.name for path in folder.iterdir()) == ["hlf", "made-by-hep-pipeline"]


def test_only_complete_parts_with_the_same_inputs_are_taken_over() -> None:
    networks = {
        name: Fingerprint({}, {"rate": index}, {})
        for index, name in enumerate(("hlf", "inclusive"))
    }
    fingerprint_before = Fingerprint({}, {}, {}, networks)
    assert unchanged_parts(fingerprint_before, fingerprint_before, ["dataset.json"]) == {
        "hlf",
        "inclusive",
    }
    assert unchanged_parts(fingerprint_before, fingerprint_before, ["hlf/model/weights.pt"]) == {
        "inclusive"
    }
    assert unchanged_parts(None, fingerprint_before, []) == frozenset()
    second = {**networks, "hlf": networks["inclusive"], "particles": networks["hlf"]}
    assert unchanged_parts(fingerprint_before, Fingerprint({}, {}, {}, second), []) == {"inclusive"}


@pytest.mark.parametrize(
    ("digest", "afresh"), [(None, False), ("of other settings", False), (None, True)]
)
def test_only_interrupted_work_with_the_same_inputs_is_continued(
    store: StageStore, digest: str | None, afresh: bool
) -> None:
    interrupted = store.next_folder("1" * 8)
    store.create(interrupted)
    (interrupted / "hlf").mkdir()
    (interrupted / "hlf" / "made-from").write_text(digest or PARTS["hlf"].digest)
    (interrupted / "hlf" / "work").touch()
    folder = store.next_folder("2" * 8)
    store.create(folder, keep=[interrupted])
    context = SimpleNamespace(out_dir=folder, current=store.current(), taken_over_parts=frozenset())
    begin_parts(store, cast("Context", context), PARTS, afresh=afresh)
    is_continued = digest is None and not afresh
    assert files_in(folder / "hlf") == (["made-from", "work"] if is_continued else ["made-from"])
    assert (folder / "hlf" / "made-from").read_text() == PARTS["hlf"].digest


def test_a_part_is_copied_where_the_file_system_has_no_links(
    store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    assert files_in(next_version(store) / "hlf") == FILES
