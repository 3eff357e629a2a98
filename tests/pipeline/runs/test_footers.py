"""What manifests say of the files on object storage."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier

import pytest

from pipeline.runs import object_store
from pipeline.runs.object_store import ObjectStore


def test_the_footers_of_files_on_object_storage_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"events/part-{index}.parquet" for index in range(3)]
    (tmp_path / "0001-abcdef01" / "events").mkdir(parents=True)
    for path in paths:
        (tmp_path / "0001-abcdef01" / path).write_text(path)
    all_are_asked_for = Barrier(len(paths))

    def footer_of(path: Path) -> str:
        all_are_asked_for.wait(timeout=60)
        return f"footer of {path.name}"

    monkeypatch.setattr(object_store, "footer_of", footer_of)

    files = ObjectStore(tmp_path, tmp_path / "run").written(
        "0001-abcdef01", {path: f"digest of {path}" for path in paths}
    )

    assert [file.path for file in files] == paths
    assert [file.digest for file in files] == [f"digest of {path}" for path in paths]
    assert [file.footer for file in files] == [
        f"footer of part-{index}.parquet" for index in range(3)
    ]
