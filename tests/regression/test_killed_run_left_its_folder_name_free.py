"""After `kill -9` the next run took the same version folder name, where orphaned tasks could still write."""

from __future__ import annotations

from pathlib import Path

from pipeline.runs.store import StageStore


def test_the_name_of_an_unfinished_version_is_not_used_again(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    killed = store.next_folder("abcdef0123")
    store.begin(killed)
    assert store.next_folder("abcdef0123").name != killed.name
