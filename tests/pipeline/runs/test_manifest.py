"""Damaged pointers and manifests are named, with their key and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from example_stores import change_manifest, commit_version, create_version, current_version
from published_by_hand import example_manifest, example_model_manifest

from pipeline.errors import RunFolderError
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path, "ingest")


DAMAGED_POINTERS = {
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


@pytest.mark.parametrize("text", DAMAGED_POINTERS, ids=lambda text: text[:40])
def test_a_damaged_pointer_is_named_with_its_key_and_the_fix(store: StageStore, text: str) -> None:
    version = commit_version(store)
    store.pointer.write_text(text)

    reason = DAMAGED_POINTERS[text]
    message = rf"(?s)current\.json is damaged: .*{reason}.* `python -m pipeline ingest` makes it"
    with pytest.raises(RunFolderError, match=message):
        store.current()

    assert not store.is_in_use(version.folder)


@pytest.mark.parametrize("replacement", ["folder", "broken link", "bytes"])
def test_a_pointer_that_is_no_text_file_is_named(store: StageStore, replacement: str) -> None:
    commit_version(store)
    store.pointer.unlink()
    if replacement == "folder":
        store.pointer.mkdir()
    elif replacement == "bytes":
        store.pointer.write_bytes(b"\xff\xfe")
    else:
        store.pointer.symlink_to(store.folder / "nothing")

    message = r"current\.json is damaged: .* `python -m pipeline ingest` makes it again"
    with pytest.raises(RunFolderError, match=message):
        store.current()


def test_a_link_to_a_version_of_another_stage_is_damage(store: StageStore, tmp_path: Path) -> None:
    features = commit_version(StageStore(tmp_path, "features"))
    store.folder.mkdir()
    (store.folder / features.name).symlink_to(features.folder)
    store.point_to(features.name)

    message = r"manifest\.json is damaged: stage: it is that of 'features'"
    with pytest.raises(RunFolderError, match=message):
        store.current()


OUTPUT = {"path": "data", "size": 3, "digest": "0", "content": "0", "lies_in": ""}
WRONG_VALUES: list[tuple[str, Any, str]] = [
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


@pytest.mark.parametrize(("key", "value", "reason"), WRONG_VALUES)
def test_a_wrong_value_is_named_with_its_key(
    store: StageStore, key: str, value: Any, reason: str
) -> None:
    version = commit_version(store, counters={"events": 7})
    change_manifest(version, **{key: value})

    message = rf"(?s)manifest\.json is damaged: .*{reason}.* `python -m pipeline ingest` makes"
    with pytest.raises(RunFolderError, match=message):
        store.current()

    assert store.manifest_of(version.name) is None


@pytest.mark.parametrize("key", [*example_manifest("ingest"), "outputs"])
def test_a_missing_key_is_named(store: StageStore, key: str) -> None:
    change_manifest(commit_version(store), **{key: None})

    message = rf"manifest\.json is damaged: the key '{key}' is missing"
    with pytest.raises(RunFolderError, match=message):
        store.current()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"x"', "7", "[" * 100_000], ids=lambda text: text[:9]
)
def test_a_manifest_that_is_no_object_is_named(store: StageStore, text: str) -> None:
    version = commit_version(store)
    (version.folder / "manifest.json").write_text(text)

    message = r"manifest\.json is damaged: .* `python -m pipeline ingest` makes it again"
    with pytest.raises(RunFolderError, match=message):
        store.current()

    assert store.manifest_of(version.name) is None


def test_a_manifest_of_earlier_code_needs_no_seal(store: StageStore) -> None:
    change_manifest(commit_version(store), seal=None)

    assert current_version(store).manifest.seal is None


def test_an_updated_manifest_has_a_valid_seal(store: StageStore) -> None:
    store.update_manifest(commit_version(store), seconds=2.0)

    assert current_version(store).manifest.seconds == 2.0


def test_a_damaged_manifest_of_a_model_names_the_way_back(tmp_path: Path) -> None:
    registry = Registry(tmp_path, "hlf")
    model = registry.commit(create_version(registry), example_model_manifest("hlf"))
    path = model.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"train": 7}))

    message = r"train: .*Remove .*current\.json and run `promote`"
    with pytest.raises(RunFolderError, match=message):
        registry.current()
