"""`status`: the versions and models in use, and the state of their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pipeline.errors import RunFolderError
from pipeline.run_folder import RunFolder, in_use
from pipeline.runs.model_registry import Registry
from pipeline.runs.outputs import changed_files, suspect_files
from pipeline.runs.store import StageStore
from pipeline.stages.table import STAGES
from pipeline.terminal.grid import Grid

#: Keys of manifests that `status` shows.
_OF_STAGES: Final = ("created", "seconds", "upstream", "code_version")
_OF_MODELS: Final = ("promoted", "train", "improvement", "code_version")


def status(run_folder: RunFolder) -> dict[str, Any]:
    """The version in use of each stage, and under `in_use` the model of each network; None if there is none.

    Of a damaged one there are its name, if the pointer can be read, and the `damage` in words.
    """
    content: dict[str, Any] = {}
    for stage in STAGES:
        content[stage.name] = _brief(run_folder.store(stage.name), _OF_STAGES)
    registries = Registry.all_of(run_folder.config.run_dir)
    content["in_use"] = {registry.stage: _brief(registry, _OF_MODELS) for registry in registries}
    return content


def damages(content: dict[str, Any]) -> list[str]:
    """What is damaged, in words; `content` is the result of `status`."""
    stages = {name: brief for name, brief in content.items() if name != "in_use"}
    briefs = [*stages.values(), *content["in_use"].values()]
    return [brief["damage"] for brief in briefs if brief and "damage" in brief]


def table_of(run_folder: RunFolder, content: dict[str, Any]) -> Grid:
    """The result of `status` as a table."""
    table = Grid(
        "stage", "version", "made", "seconds", title=str(run_folder.config.run_dir.absolute())
    )
    for name, brief in content.items():
        if name != "in_use":
            table.add_row(name, *_row(brief, "created", "seconds"))
    for network, brief in content["in_use"].items():
        table.add_row(f"{network} in use", *_row(brief, "promoted"), "-")
    return table


def verify(run_folder: RunFolder) -> list[str]:
    """Paths of files of the versions and models in use that are missing or changed; `plan` knows them from then on."""
    changed = []
    for store in run_folder.stores():
        version = in_use(store)
        if version is None:
            continue
        damaged = changed_files(version.folder, version.files)
        if damaged:
            suspect_files(version.folder, [file.path for file in damaged])
        changed += [str(file.place(version.folder)) for file in damaged]
        changed += map(str, store.changed_kernel_outputs(version))
    return changed


def _row(brief: dict[str, Any] | None, *keys: str) -> list[str]:
    """The cells of a version: its name, and some keys of its manifest."""
    if brief is None:
        return ["-"] * (1 + len(keys))
    if "damage" in brief:
        return [brief["version"] or "?", "damaged", *["-"] * (len(keys) - 1)]
    cells = [f"{brief[key]:.1f}" if key == "seconds" else brief[key] for key in keys]
    return [brief["version"], *cells]


def _brief(store: StageStore, keys: Sequence[str]) -> dict[str, Any] | None:
    """What is known of the version in use."""
    name = None
    try:
        name = store.name_in_use()
        version = store.current()
    except RunFolderError as damage:
        folder = str(store.folder / name) if name else None
        return {"version": name, "folder": folder, "damage": str(damage)}
    if version is None:
        return None
    values = {key: version.manifest[key] for key in keys}
    return {"version": version.name, "folder": str(version.folder), **values}
