"""`status`: the versions and models in use, and the state of their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hep_core.input_errors import shortened_list
from pipeline.errors import RunFolderError
from pipeline.run_folder import RunFolder
from pipeline.runs.model_registry import Registry
from pipeline.runs.outputs import changed_files, suspect_files
from pipeline.runs.version_store import AnyVersion, VersionStore
from pipeline.stages.table import STAGES
from pipeline.terminal.grid import Grid

#: Keys of manifests that `status` shows: of a stage's version, and of a promoted model.
_KEYS_OF_STAGES: Final = ("created", "seconds", "upstream", "code_version")
_KEYS_OF_MODELS: Final = ("promoted", "train", "improvement", "code_version")


def status(run_folder: RunFolder) -> dict[str, Any]:
    """Return the version in use of each stage, and under `in_use` the model of each network.

    A value is None where there is no version; else it holds `version` (its name), `folder`, and
    some keys of the manifest. For a damaged version it holds the text `damage` instead, and the
    name if the pointer, the file that names the version in use, can be read.
    """
    state: dict[str, Any] = {}
    for stage in STAGES:
        state[stage.name] = _version_in_use(run_folder.store(stage.name), _KEYS_OF_STAGES)
    registries = Registry.of_all_networks(run_folder.config.run_dir)
    state["in_use"] = {
        registry.name: _version_in_use(registry, _KEYS_OF_MODELS) for registry in registries
    }
    return state


def damages(state: dict[str, Any]) -> list[str]:
    """List sentences about what is damaged; `state` is the result of `status`."""
    stages = [version for name, version in state.items() if name != "in_use"]
    models = state["in_use"].values()
    return [version["damage"] for version in (*stages, *models) if version and "damage" in version]


def status_table(run_folder: RunFolder, state: dict[str, Any]) -> Grid:
    """Return the result of `status` as a table, with a row for each stage and network."""
    title = str(run_folder.config.run_dir.absolute())
    table = Grid("stage", "version", "made", "seconds", title=title)
    for stage, version in state.items():
        if stage != "in_use":
            table.add_row(stage, *_cells(version, "created", "seconds"))
    for network, version in state["in_use"].items():
        table.add_row(f"{network} in use", *_cells(version, "promoted"), "-")
    return table


def verify(run_folder: RunFolder) -> list[str]:
    """Compare the files of all versions and models in use with their digests.

    It reads every file. Versions with missing or changed files are marked as suspect, so `plan`
    knows them from then on. The cached outputs of the kernels belong to no version; see
    `changed_cache`.

    Returns:
        Paths of the missing or changed files.
    """
    paths = []
    for store in run_folder.stores():
        version = store.readable_current()
        if version is None:
            continue
        damaged_files = changed_files(version.folder, version.files)
        if damaged_files:
            suspect_files(version.folder, [file.path for file in damaged_files])
        paths += [str(file.location(version.folder)) for file in damaged_files]
    return paths


def changed_cache(run_folder: RunFolder) -> str:
    """Name the cached outputs of the kernels that are gone or damaged; empty if all are intact.

    They are no damage of the run folder: `features` compares each output with its digest before it
    reuses it, and computes a damaged one again.
    """
    features = run_folder.store("features")
    if features.readable_current() is None:
        return ""
    paths = [str(path) for path in features.changed_kernel_outputs()]
    if not paths:
        return ""
    return (
        f"note: {len(paths)} cached outputs of the kernels are gone or damaged: "
        f"{shortened_list(paths)}. No result depends on them: `features` computes them again when "
        "it runs next."
    )


def _cells(version: dict[str, Any] | None, *keys: str) -> list[str]:
    """Return the cells of a row: the version's name, then `keys` of its manifest; else `-`."""
    if version is None:
        return ["-"] * (1 + len(keys))
    if "damage" in version:
        name = version["version"] or "?"
        return [name, "damaged", *["-"] * (len(keys) - 1)]
    cells = {key: version[key] for key in ("version", *keys)}
    if "seconds" in cells:
        cells["seconds"] = f"{cells['seconds']:.1f}"
    return list(cells.values())


def _version_in_use(store: VersionStore[AnyVersion], keys: Sequence[str]) -> dict[str, Any] | None:
    """Describe the version in use of a store by name, folder and some keys of its manifest.

    None if there is none; see `status` for a damaged one.
    """
    name = None
    try:
        name = store.name_in_use()
        version = store.current()
    except RunFolderError as damage:
        folder = str(store.folder / name) if name else None
        return {"version": name, "folder": folder, "damage": str(damage)}
    if version is None:
        return None
    manifest = version.manifest.model_dump(mode="json", include=set(keys))
    values = {key: manifest[key] for key in keys}
    return {"version": version.name, "folder": str(version.folder), **values}
