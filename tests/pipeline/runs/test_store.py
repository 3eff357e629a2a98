"""Version folders and the pointer: a version is complete or absent."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from published_by_hand import example_manifest, example_model_manifest

from hep_core.atomic_files import write_atomically
from hep_core.integrity import file_digest
from pipeline.errors import RunFolderError
from pipeline.runs import own_folders
from pipeline.runs.kernel_cache import KERNELS
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version


def make(store: StageStore | Registry, digest: str = "abcdef0123456789") -> Path:
    folder = store.next_folder(digest)
    store.create(folder)
    (folder / "data").write_text(folder.name)
    return folder


def commit(store: StageStore, **manifest: Any) -> Version:
    return store.commit(make(store), example_manifest(store.name, **manifest))


def test_commits_follow_each_other_and_old_versions_stay(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    for index in (1, 2):
        current_before = store.current()
        folder = make(store)
        assert (store.current(), store.is_in_use(folder)) == (current_before, False)
        version = store.commit(folder, example_manifest("ingest", seconds=index))
        assert store.is_in_use(folder)
    current = store.current()
    assert current is not None
    assert (current.name, current.manifest.seconds) == ("0002-abcdef01", 2)
    # The marker is no output.
    assert [file.path for file in version.files] == ["data"]
    assert json.loads(store.pointer.read_text()) == {"version": version.name}
    assert (tmp_path / "ingest" / "0001-abcdef01" / "data").exists()


@pytest.mark.parametrize("writes", range(3))
def test_a_kill_between_manifest_and_pointer_leaves_the_version_before_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    store = StageStore(tmp_path, "ingest")
    first = commit(store)
    remaining = iter(range(writes))

    def killed(path: Path, document: Any) -> None:
        if next(remaining, None) is None:
            raise KeyboardInterrupt
        write_atomically(path, document)

    monkeypatch.setattr("pipeline.runs.store.write_atomically", killed)
    with contextlib.suppress(KeyboardInterrupt):
        commit(store)
    current = store.current()
    assert current is not None
    assert current.name == ("0002-abcdef01" if writes == 2 else first.name)
    assert store.complete() == [first.name, "0002-abcdef01"][: 1 + writes]


def test_a_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of its versions on object storage were unused then."""
    store = StageStore(tmp_path, "ingest")
    commit(store)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", fails)
    monkeypatch.setattr(os, "listdir", fails)
    with pytest.raises(OSError, match="Input/output error"):
        store.complete()


def test_versions_are_ordered_by_number(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    (store.folder / "9998-00000000").mkdir(parents=True)
    for _ in range(2):
        commit(store)
    assert store.complete() == ["9999-abcdef01", "10000-abcdef01"]
    for index in (10001, 10002):
        own_folders.make(store.folder / f"{index}-11111111")
    assert [path.name for path in store.unfinished()] == ["10002-11111111", "10001-11111111"]


def test_create_removes_unfinished_versions_and_no_finished_ones(
    tmp_path: Path,
) -> None:
    store = StageStore(tmp_path, "ingest")
    commit(store)
    unfinished = make(store)
    following = make(store)
    assert not unfinished.exists()
    assert (unfinished.name, following.name) == ("0002-abcdef01", "0003-abcdef01")
    assert (tmp_path / "ingest" / "0001-abcdef01").exists()


def test_a_version_with_manifest_but_without_pointer_is_not_seen(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    commit(store, seconds=1)
    folder = make(store)
    (folder / "manifest.json").write_text('{"number": 2}')
    current = store.current()
    assert current is not None
    assert current.manifest.seconds == 1
    assert make(store).name == "0003-abcdef01"


@pytest.mark.parametrize("manifest", ["{}", "{", '{"manifest_version": 1}'])
def test_only_a_complete_version_of_this_code_is_put_in_use_after_a_kill(
    tmp_path: Path, manifest: str
) -> None:
    store = StageStore(tmp_path, "ingest")
    first = commit(store, seconds=1)
    second = commit(store, seconds=2)
    store.point_to(first.name)
    assert store.recovered() == second == store.current()
    store.pointer.unlink()
    assert store.recovered() == second
    (make(store) / "manifest.json").write_text(manifest)
    assert store.recovered() == second
    stranger = store.folder / "0009-abcdef01"
    stranger.mkdir()
    (stranger / "manifest.json").write_text((second.folder / "manifest.json").read_text())
    assert store.recovered() == second
    # A version that earlier code made is none: its stage runs again.
    (second.folder / "manifest.json").write_text('{"manifest_version": 1}')
    assert store.current() is None


NOTES = [
    "2026-11-21-my-notes",
    "0007-deadbeef",
    "0001-abcdef01-backup",
    "\u00b2-x",
    "12",
    "0008-DEADBEEF",
]


@pytest.mark.parametrize("name", NOTES)
def test_a_folder_that_somebody_else_made_is_left_alone(tmp_path: Path, name: str) -> None:
    store = StageStore(tmp_path, "ingest")
    commit(store)
    notes = store.folder / name
    notes.mkdir()
    (notes / "notes").write_text("mine")
    make(store)
    store.remove_unfinished()
    assert (notes / "notes").read_text() == "mine"
    assert store.unfinished() == []
    assert store.complete() == ["0001-abcdef01"]


def test_the_name_of_a_folder_that_somebody_else_made_is_not_used(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    (tmp_path / "ingest").mkdir()
    # As of an archive that is not mounted.
    (tmp_path / "ingest" / "0003-abcdef01").symlink_to(tmp_path / "nowhere")
    assert make(store).name == "0004-abcdef01"


def test_links_to_versions_are_read_and_not_removed(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    archive = tmp_path / "archive"
    archive.mkdir()
    for published in (True, False):
        folder = make(store)
        if published:
            store.commit(folder, example_manifest("ingest", seconds=1))
        folder.rename(archive / folder.name)
        folder.symlink_to(archive / folder.name)
    current = store.current()
    assert current is not None
    assert current.manifest.seconds == 1
    make(store)
    store.remove_unfinished()
    store.discard(store.folder / "0002-abcdef01")
    assert sorted(path.name for path in archive.iterdir()) == ["0001-abcdef01", "0002-abcdef01"]
    assert (archive / "0002-abcdef01" / "data").exists()


SPOILT_POINTERS = {
    "": "no JSON",
    "{": "no JSON",
    "[" * 100_000: "no JSON",
    '{"version": 1' + "0" * 5000 + "}": "no JSON",
    "null": "valid dictionary",
    "[]": "valid dictionary",
    "{}": "the key 'version' is missing",
    '{"version": null}': "version: .*valid string",
    '{"version": "0009-none"}': "version: .*'0009-none' is no name of a version",
    '{"version": "../features/0001-abcdef01"}': "version: .*is no name of a version",
    '{"version": "0009-abcdef01"}': "there is no folder .*0009-abcdef01",
}


@pytest.mark.parametrize("text", SPOILT_POINTERS, ids=lambda text: text[:40])
def test_a_damaged_pointer_is_named_with_its_key_and_the_fix(tmp_path: Path, text: str) -> None:
    store = StageStore(tmp_path, "ingest")
    commit(store)
    store.pointer.write_text(text)
    message = rf"current\.json is damaged: .*{SPOILT_POINTERS[text]}.* `python -m pipeline ingest` makes it again"
    with pytest.raises(RunFolderError, match=f"(?s){message}"):
        store.current()
    assert not store.is_in_use(store.folder / "0001-abcdef01")


@pytest.mark.parametrize("damage_kind", ["folder", "link to nothing", "no text"])
def test_a_pointer_that_is_no_text_file_is_named(tmp_path: Path, damage_kind: str) -> None:
    store = StageStore(tmp_path, "ingest")
    commit(store)
    store.pointer.unlink()
    if damage_kind == "folder":
        store.pointer.mkdir()
    elif damage_kind == "no text":
        store.pointer.write_bytes(b"\xff\xfe")
    else:
        store.pointer.symlink_to(tmp_path / "nothing")
    with pytest.raises(
        RunFolderError,
        match=r"current\.json is damaged: .* `python -m pipeline ingest` makes it again",
    ):
        store.current()


def test_a_damaged_pointer_is_set_to_the_newest_complete_version(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    commit(store)
    newest = commit(store)
    store.pointer.write_text("[]")
    assert store.recovered() == newest == store.current()
    (newest.folder / "manifest.json").write_text("{}")
    with pytest.raises(RunFolderError, match="'manifest_version' is missing"):
        store.recovered()


def test_a_link_to_a_version_of_another_stage_is_damage(tmp_path: Path) -> None:
    stage_store, store = StageStore(tmp_path, "features"), StageStore(tmp_path, "ingest")
    created = commit(stage_store)
    store.folder.mkdir()
    (store.folder / created.name).symlink_to(created.folder)
    store.point_to(created.name)
    with pytest.raises(
        RunFolderError, match=r"manifest\.json is damaged: stage: it is that of 'features'"
    ):
        store.current()


OUTPUT = {"path": "data", "size": 3, "digest": "0", "content": "0", "lies_in": ""}
SPOILT_KEYS: list[tuple[str, Any, str]] = [
    ("manifest_version", "3", "manifest_version: "),
    ("manifest_version", 4, "a later release wrote it"),
    ("created", "yesterday", "created: "),
    ("seconds", -1, "seconds: "),
    ("fingerprint", {"inputs": {}, "config": {}}, r"'fingerprint\.code' is missing"),
    ("upstream", {"ingest": "../0001-abcdef01"}, r"upstream\.ingest: .*is no name of a version"),
    ("config", [], "config: "),
    ("inputs", {}, "inputs: "),
    ("inputs", [3], r"inputs\.0: "),
    ("counters", 7, "counters: "),
    ("checks", [{"name": "a"}], r"'checks\.0\.passed' is missing"),
    ("outputs", [3], r"outputs\.0: "),
    ("outputs", [{"path": "data"}], r"'outputs\.0\.size' is missing"),
    ("outputs", [OUTPUT | {"path": "../../data"}], r"outputs: .*leads out of the folder"),
    ("outputs", [OUTPUT | {"path": "/data"}], r"outputs: .*leads out of the folder"),
    ("seconds", 2.0, "it was changed after it was written"),
    ("counters", {"events": 8}, "it was changed after it was written"),
]


@pytest.mark.parametrize(("key", "value", "message"), SPOILT_KEYS)
def test_a_wrong_value_in_a_manifest_is_named_with_its_key(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    store = StageStore(tmp_path, "ingest")
    version = commit(store, counters={"events": 7})
    path = version.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(
        RunFolderError,
        match=rf"(?s)manifest\.json is damaged: .*{message}.* `python -m pipeline ingest` makes",
    ):
        store.current()
    assert store.manifest_of(version.name) is None


@pytest.mark.parametrize("key", [*example_manifest("ingest"), "outputs"])
def test_a_key_that_a_manifest_lacks_is_named(tmp_path: Path, key: str) -> None:
    store = StageStore(tmp_path, "ingest")
    path = commit(store).folder / "manifest.json"
    document = json.loads(path.read_text())
    del document[key]
    path.write_text(json.dumps(document))
    with pytest.raises(
        RunFolderError, match=rf"manifest\.json is damaged: the key '{key}' is missing"
    ):
        store.current()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"x"', "7", "[" * 100_000], ids=lambda text: text[:9]
)
def test_a_manifest_that_is_no_object_is_named(tmp_path: Path, text: str) -> None:
    store = StageStore(tmp_path, "ingest")
    path = commit(store).folder / "manifest.json"
    path.write_text(text)
    with pytest.raises(
        RunFolderError,
        match=r"manifest\.json is damaged: .* `python -m pipeline ingest` makes it again",
    ):
        store.current()
    assert store.manifest_of("0001-abcdef01") is None


def test_a_manifest_without_a_digest_is_that_of_earlier_code(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    version = commit(store)
    path = version.folder / "manifest.json"
    document = json.loads(path.read_text())
    del document["seal"]
    path.write_text(json.dumps(document))
    actual = store.current()
    assert actual is not None
    assert actual.manifest.seal is None


def test_a_manifest_that_was_rewritten_is_whole(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    version = commit(store)
    store.update_manifest(version, seconds=2.0)
    actual = store.current()
    assert actual is not None
    assert actual.manifest.seconds == 2.0


def test_the_manifest_of_a_model_is_checked_and_names_the_way_back(tmp_path: Path) -> None:
    store = Registry(tmp_path, "hlf")
    version = store.commit(make(store), example_model_manifest("hlf"))
    assert store.current() == version
    path = version.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"train": 7}))
    message = r"train: .*Remove .*current\.json and run `promote`"
    with pytest.raises(RunFolderError, match=message):
        store.current()


def test_unused_outputs_go_with_their_folders_and_those_in_use_stay(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "features")
    folder = store.next_folder("0123456789")
    store.create(folder)
    kernel_outputs = [{"lies_in": name, "name": "used.parquet"} for name in ("first", "whole")]
    store.commit(
        folder,
        example_manifest("features", counters={"kernel_outputs": kernel_outputs}),
    )
    kernels = store.folder / KERNELS
    files = {
        "first": ["used", "unused"],
        "second": ["used"],
        "shared": ["unused"],
        "whole": ["used"],
    }
    for name, stems in files.items():
        own_folders.make(kernels / name)
        for stem in stems:
            (kernels / name / f"{stem}.arrow").touch()
    # Something else lies in this folder: it stays.
    (kernels / "shared" / "notes.txt").touch()
    # Nor are folders removed that somebody else made.
    for name in ("theirs.arrow", "notes.txt"):
        (kernels / "theirs").mkdir(exist_ok=True)
        (kernels / "theirs" / name).touch()
    assert [path.name for path in store.unused_kernel_outputs()] == ["first", "second", "shared"]
    store.remove_unused_kernel_outputs()
    leftovers = sorted(path.relative_to(kernels).as_posix() for path in kernels.glob("*/[!m]*"))
    assert leftovers == [
        "first/used.arrow",
        "shared/notes.txt",
        "theirs/notes.txt",
        "theirs/theirs.arrow",
        "whole/used.arrow",
    ]
    assert not (kernels / "second").exists()


def test_only_models_with_a_readable_manifest_count_as_promoted(tmp_path: Path) -> None:
    registry = Registry(tmp_path, "hlf")
    first, second, third = (
        registry.commit(make(registry), example_model_manifest("hlf")) for _ in range(3)
    )
    registry.withdraw(third, "2026-01-02T00:00:00+00:00")
    (second.folder / "manifest.json").write_text("{}")
    assert registry.promoted() == [first.name]
    registry.pointer.unlink()
    recovered = registry.recovered()
    assert recovered is not None
    assert recovered.name == first.name


def test_a_kernel_output_without_a_digest_is_changed_only_if_it_is_gone(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "features")
    names = ("known", "changed", "unknown", "gone")
    outputs = [{"lies_in": "first", "name": f"{name}.parquet", "file_digest": ""} for name in names]
    folder = store.folder / KERNELS / "first"
    folder.mkdir(parents=True)
    for name in names[:3]:
        (folder / f"{name}.arrow").write_text(name)
    outputs[0]["file_digest"] = file_digest(folder / "known.arrow")
    outputs[1]["file_digest"] = "another"
    commit(store, counters={"kernel_outputs": outputs})
    assert store.changed_kernel_outputs() == [
        folder / "changed.arrow",
        folder / "gone.arrow",
    ]


def test_a_new_file_that_equals_the_damaged_one_before_it_has_its_own_digest(
    tmp_path: Path,
) -> None:
    store = StageStore(tmp_path, "report")
    first = commit(store)
    (first.folder / "data").write_text("replaced")
    folder = store.next_folder("abcdef0123456789")
    store.create(folder)
    (folder / "data").write_text("replaced")
    second = store.commit(folder, example_manifest("report"))
    assert second.verified() == second
