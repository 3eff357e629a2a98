"""`status`: the versions and models in use, and the state of their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pipeline.run_folder import RunFolder
from pipeline.runs.model_registry import Registry
from pipeline.runs.outputs import changed_files
from pipeline.runs.store import StageStore
from pipeline.stages.table import STAGES
from pipeline.terminal.grid import Grid

#: Keys of manifests that `status` shows.
_OF_STAGES: Final = ("created", "seconds", "upstream", "code_version")
_OF_MODELS: Final = ("promoted", "train", "improvement", "code_version")


def status(run_folder: RunFolder) -> dict[str, Any]:
    """The version in use of each stage, and under `in_use` the model of each network; None if there is none."""
    found: dict[str, Any] = {stage.name: _brief(run_folder.store(stage.name), _OF_STAGES) for stage in STAGES}
    found["in_use"] = {each.stage: _brief(each, _OF_MODELS) for each in Registry.all_of(run_folder.config.run_dir)}
    return found


def table_of(run_folder: RunFolder) -> Grid:
    """The result of `status` as a table."""
    table = Grid("stage", "version", "made", "seconds", title=str(run_folder.config.run_dir.absolute()))
    found = status(run_folder)
    models = found.pop("in_use")
    for name, each in found.items():
        row = [each["version"], each["created"], f"{each['seconds']:.1f}"] if each else ["-", "-", "-"]
        table.add_row(name, *row)
    for name, each in models.items():
        row = [each["version"], each["promoted"]] if each else ["-", "-"]
        table.add_row(f"{name} in use", *row, "-")
    return table


def verify(run_folder: RunFolder) -> list[str]:
    """Paths of files of the versions and models in use that are missing or changed."""
    versions = [version for store in run_folder.stores() if (version := store.current())]
    return [str(file.place(each.folder)) for each in versions for file in changed_files(each.folder, each.files)]


def _brief(store: StageStore, keys: Sequence[str]) -> dict[str, Any] | None:
    version = store.current()
    if version is None:
        return None
    return {"version": version.name, "folder": str(version.folder), **{key: version.manifest[key] for key in keys}}
