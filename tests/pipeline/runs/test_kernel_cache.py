"""The cache of kernel outputs: what a run may take over, and what may be removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_stores import commit_version, create_version
from published_by_hand import example_manifest

from hep_core.integrity import file_digest
from pipeline.runs import own_folders
from pipeline.runs.kernel_cache import KERNELS
from pipeline.runs.store import StageStore


def test_unused_outputs_are_removed_with_their_folders(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "features")
    used = [{"lies_in": name, "name": "used.parquet"} for name in ("mixed", "used")]
    commit_version(store, counters={"kernel_outputs": used})
    kernels = store.folder / KERNELS
    files = {
        "mixed": ["used.arrow", "unused.arrow"],
        "unused": ["used.arrow"],
        "with notes": ["unused.arrow", "notes.txt"],
        "used": ["used.arrow"],
    }
    for name, file_names in files.items():
        own_folders.make(kernels / name)
        for file_name in file_names:
            (kernels / name / file_name).touch()
    (kernels / "of somebody else").mkdir()
    (kernels / "of somebody else" / "unused.arrow").touch()

    unused = [path.name for path in store.unused_kernel_outputs()]
    store.remove_unused_kernel_outputs()

    assert unused == ["mixed", "unused", "with notes"]
    remaining = [path.relative_to(kernels).as_posix() for path in kernels.glob("*/*.*")]
    assert sorted(remaining) == [
        "mixed/used.arrow",
        "of somebody else/unused.arrow",
        "used/used.arrow",
        "with notes/notes.txt",
    ]
    assert not (kernels / "unused").exists()


def test_an_output_without_a_recorded_digest_is_changed_only_if_it_is_gone(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "features")
    folder = store.folder / KERNELS / "first"
    folder.mkdir(parents=True)
    for name in ("intact", "changed", "without digest"):
        (folder / f"{name}.arrow").write_text(name)
    digests = {
        "intact": file_digest(folder / "intact.arrow"),
        "changed": "another",
        "without digest": "",
        "gone": "",
    }
    outputs = [
        {"lies_in": "first", "name": f"{name}.parquet", "file_digest": digest}
        for name, digest in digests.items()
    ]

    commit_version(store, counters={"kernel_outputs": outputs})

    assert store.changed_kernel_outputs() == [folder / "changed.arrow", folder / "gone.arrow"]


@pytest.mark.parametrize("later_storage", ["second", None])
def test_outputs_on_an_earlier_storage_are_looked_for_there(
    tmp_path: Path, later_storage: str | None
) -> None:
    # Local folders stand for object storage, which has no folders that must be made.
    stored = tmp_path / "first" / "features"
    stored.mkdir(parents=True)
    store = StageStore(tmp_path / "run", "features", storage=tmp_path / "first")
    folder = create_version(store)
    (stored / folder.name).mkdir()
    (stored / folder.name / "rows.npy").write_text("rows")
    kernels = stored / KERNELS / folder.name
    kernels.mkdir(parents=True)
    (kernels / "intact.arrow").write_text("intact")
    (kernels / "changed.arrow").write_text("changed")
    digests = {"intact": file_digest(kernels / "intact.arrow"), "changed": "another"}
    outputs = [
        {"lies_in": folder.name, "name": f"{name}.parquet", "file_digest": digest}
        for name, digest in digests.items()
    ]
    counters = {"kernel_outputs": outputs}
    store.commit(folder, example_manifest("features", counters=counters))

    later_folder = None if later_storage is None else tmp_path / later_storage
    later = StageStore(tmp_path / "run", "features", storage=later_folder)

    assert later.changed_kernel_outputs() == [kernels / "changed.arrow"]
