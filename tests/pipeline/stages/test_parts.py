"""Parts of a stage that a new version takes over or continues."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from published_by_hand import example_manifest

from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.store import StageStore
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
    """A store with a version in use, of one network."""
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
    interrupted = [path for path in store.unfinished() if Train().can_continue(path)]
    store.create(folder, keep=interrupted)
    context: Any = SimpleNamespace(
        out_dir=folder, current=store.current(), taken_over_parts=frozenset({"hlf"})
    )
    begin_parts(store, context, PARTS, afresh=False)
    return folder


def files_in(folder: Path) -> list[str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in paths)


@pytest.mark.parametrize("num_links", range(len(FILES)))
def test_a_part_is_taken_over_whole_after_a_kill(
    store: StageStore, monkeypatch: pytest.MonkeyPatch, num_links: int
) -> None:
    link = os.link
    linked = []

    def interrupt_after_links(source: Path, target: Path) -> None:
        if len(linked) == num_links:
            raise KeyboardInterrupt
        link(source, target)
        linked.append(target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", interrupt_after_links)
        with pytest.raises(KeyboardInterrupt):
            next_version(store)

    folder = next_version(store)

    assert files_in(folder / "hlf") == FILES
    assert sorted(path.name for path in folder.iterdir()) == ["hlf", "made-by-hep-pipeline"]


def test_only_complete_parts_with_the_same_inputs_are_taken_over() -> None:
    hlf, inclusive = (Fingerprint({}, {"rate": rate}, {}) for rate in (0, 1))
    fingerprint = Fingerprint({}, {}, {}, {"hlf": hlf, "inclusive": inclusive})
    changed = Fingerprint({}, {}, {}, {"hlf": inclusive, "inclusive": inclusive, "particles": hlf})

    assert unchanged_parts(fingerprint, fingerprint, ["dataset.json"]) == {"hlf", "inclusive"}
    assert unchanged_parts(fingerprint, fingerprint, ["hlf/model/weights.pt"]) == {"inclusive"}
    assert unchanged_parts(None, fingerprint, []) == frozenset()
    assert unchanged_parts(fingerprint, changed, []) == {"inclusive"}


@pytest.mark.parametrize(
    ("digest", "afresh", "files"),
    [
        (PARTS["hlf"].digest, False, ["made-from", "work"]),
        ("of other settings", False, ["made-from"]),
        (PARTS["hlf"].digest, True, ["made-from"]),
    ],
)
def test_only_interrupted_work_with_the_same_inputs_is_continued(
    store: StageStore, digest: str, afresh: bool, files: list[str]
) -> None:
    interrupted = store.next_folder("1" * 8)
    store.create(interrupted)
    (interrupted / "hlf").mkdir()
    (interrupted / "hlf" / "made-from").write_text(digest)
    (interrupted / "hlf" / "work").touch()
    folder = store.next_folder("2" * 8)
    store.create(folder, keep=[interrupted])
    context: Any = SimpleNamespace(
        out_dir=folder, current=store.current(), taken_over_parts=frozenset()
    )

    begin_parts(store, context, PARTS, afresh=afresh)

    assert files_in(folder / "hlf") == files
    assert (folder / "hlf" / "made-from").read_text() == PARTS["hlf"].digest


def test_a_part_is_copied_where_the_file_system_has_no_links(
    store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)

    assert files_in(next_version(store) / "hlf") == FILES
