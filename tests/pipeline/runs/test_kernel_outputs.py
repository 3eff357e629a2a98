"""Outputs of the kernels that no version in use names."""

from __future__ import annotations

from pathlib import Path

from pipeline.runs import own_folders
from pipeline.runs.kernel_outputs import remove_unused_outputs
from pipeline.runs.store import StageStore
from pipeline.runs.stored_files import KERNELS


def test_unused_outputs_go_with_their_folders_and_those_in_use_stay(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "features")
    folder = store.next_folder("0123456789")
    store.begin(folder)
    store.commit(folder, {"counters": {"kernel_outputs": [{"lies_in": "first", "name": "used.parquet"}]}})
    kernels = store.folder / KERNELS
    files = {"first": ["used", "unused"], "second": ["used"], "shared": ["unused"]}
    for name, stems in files.items():
        own_folders.make(kernels / name)
        for stem in stems:
            (kernels / name / f"{stem}.arrow").touch()
    # Something else lies in this folder: it stays.
    (kernels / "shared" / "notes.txt").touch()
    remove_unused_outputs(store)
    left = sorted(path.relative_to(kernels).as_posix() for path in kernels.glob("*/[!m]*"))
    assert left == ["first/used.arrow", "shared/notes.txt"]
    assert not (kernels / "second").exists()
