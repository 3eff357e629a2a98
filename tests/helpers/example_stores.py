"""Stores with versions of one file, which nothing computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from published_by_hand import example_manifest

from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version

#: Digest of the fingerprint of all these versions.
DIGEST = "abcdef0123456789"


def create_version(store: StageStore | Registry) -> Path:
    """Create the next version folder, with a file `data`."""
    folder = store.next_folder(DIGEST)
    store.create(folder)
    (folder / "data").write_text(folder.name)
    return folder


def commit_version(store: StageStore, **manifest: Any) -> Version:
    """Publish the next version; `manifest` are changes of its manifest."""
    return store.commit(create_version(store), example_manifest(store.name, **manifest))


def current_version(store: StageStore) -> Version:
    """The version in use."""
    version = store.current()
    assert version is not None
    return version


def change_manifest(version: Version, **changes: Any) -> None:
    """Change keys of a manifest file behind the back of its store; None removes a key."""
    path = version.folder / "manifest.json"
    document = json.loads(path.read_text()) | changes
    for key, value in changes.items():
        if value is None:
            del document[key]
    path.write_text(json.dumps(document))
