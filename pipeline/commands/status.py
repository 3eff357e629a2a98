"""`status`: the versions and models in use, and the state of their files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from hep_core.input_errors import InputFileError, shortened_list
from pipeline.errors import RunFolderError
from pipeline.run_folder import RunFolder
from pipeline.runs.manifest import Improvement, Seconds, Time, VersionName
from pipeline.runs.model_registry import Registry
from pipeline.runs.outputs import OutputFile, changed_files, damaged_files, suspect_files
from pipeline.runs.own_folders import keeping_claims
from pipeline.runs.version_store import AnyVersion, VersionStore
from pipeline.stages.table import STAGES
from pipeline.terminal.grid import Grid

#: How many damaged files of a version are listed where not all are asked for.
_FILES_LISTED: Final = 8


class VersionStatus(BaseModel):
    """A version in use. What is not known of it is left out of the JSON."""

    version: str | None
    """Its name; None if the pointer, the file that names it, is damaged."""
    folder: str | None
    damage: str = ""
    """A sentence about a damaged pointer or manifest, or about files; empty without damage."""
    damaged_files: list[str] = []
    """Paths or URLs of its files that are gone or not what was written."""


class StageStatus(VersionStatus):
    """The version in use of a stage, with keys of its manifest if that can be read."""

    created: Time | None = None
    seconds: Seconds | None = None
    upstream: dict[str, VersionName] | None = None
    code_version: str | None = None


class ModelStatus(VersionStatus):
    """The model in use of a network, with keys of its manifest if that can be read."""

    promoted: Time | None = None
    train: VersionName | None = None
    improvement: Improvement | None = None
    code_version: str | None = None


class Status(BaseModel):
    """The versions and models in use of a run folder; None where there is none."""

    stages: dict[str, StageStatus | None]
    in_use: dict[str, ModelStatus | None]
    """By network."""

    def as_json(self) -> dict[str, Any]:
        """Return the versions by stage, and under `in_use` the models by network."""
        document = self.model_dump(mode="json", exclude_unset=True)
        return {**document["stages"], "in_use": document["in_use"]}

    @property
    def versions(self) -> list[VersionStatus]:
        """All versions and models in use."""
        all_versions = [*self.stages.values(), *self.in_use.values()]
        return [version for version in all_versions if version is not None]


AnyStatus = TypeVar("AnyStatus", bound=VersionStatus)


# It reads all files for minutes, and `clean` may remove none of these versions meanwhile.
@keeping_claims()
def status(run_folder: RunFolder, *, reads_all: bool = False) -> Status:
    """Return the version in use of each stage and the model of each network, with their damage.

    Files are checked as `plan` checks them, which reads no large file whole; see `damaged_files`.

    Args:
        run_folder: The run folder.
        reads_all: Whether to read every file. Files with damage are then marked as suspect, so that
            `plan` knows them from then on. The cached outputs of the kernels belong to no version;
            see `changed_cache`.
    """
    find_damage = _changed_and_suspect_files if reads_all else damaged_files
    stages = {}
    for stage in STAGES:
        store = run_folder.store(stage.name)
        stages[stage.name] = _version_in_use(store, StageStatus, find_damage)
    in_use = {}
    for registry in Registry.of_all_networks(run_folder.config.run_dir):
        in_use[registry.name] = _version_in_use(registry, ModelStatus, find_damage)
    return Status(stages=stages, in_use=in_use)


def damages(state: Status, *, all_files: bool) -> list[str]:
    """List sentences about what is damaged, each followed by its files, or by the first of them."""
    lines = []
    for version in state.versions:
        if not version.damage:
            continue
        lines.append(version.damage)
        paths = version.damaged_files
        num_listed = len(paths) if all_files else _FILES_LISTED
        lines += [f"gone or damaged: {path}" for path in paths[:num_listed]]
        if len(paths) > num_listed:
            lines.append(f"and {len(paths) - num_listed} more; `status --verify` lists all")
    return lines


def status_table(run_folder: RunFolder, state: Status) -> Grid:
    """Return the result of `status` as a table, with a row for each stage and network."""
    title = str(run_folder.config.run_dir.absolute())
    table = Grid("stage", "version", "made", "seconds", title=title)
    for stage, version in state.stages.items():
        table.add_row(stage, *_cells(version, "created", "seconds"))
    for network, model in state.in_use.items():
        table.add_row(f"{network} in use", *_cells(model, "promoted"), "-")
    return table


def verify(run_folder: RunFolder) -> list[str]:
    """Compare the files of all versions and models in use with their digests; see `status`.

    Returns:
        Paths of the missing or changed files.
    """
    paths = []
    for version in status(run_folder, reads_all=True).versions:
        paths += version.damaged_files
    return paths


def _changed_and_suspect_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Return the files of a version that are gone or changed, and mark them; it reads them all."""
    changed = changed_files(folder, files)
    if changed:
        suspect_files(folder, [file.path for file in changed])
    return changed


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


def _cells(version: VersionStatus | None, *keys: str) -> list[str]:
    """Return the cells of a row: the version's name, then `keys` of its manifest; else `-`."""
    if version is None:
        return ["-"] * (1 + len(keys))
    name = version.version or "?"
    if version.damage:
        return [name, "damaged", *["-"] * (len(keys) - 1)]
    values = version.model_dump(mode="json")
    cells = [name]
    for key in keys:
        value = values[key]
        cells.append(f"{value:.1f}" if isinstance(value, float) else str(value))
    return cells


def _version_in_use(
    store: VersionStore[AnyVersion],
    status_type: type[AnyStatus],
    find_damage: Callable[[Path, Collection[OutputFile]], list[OutputFile]],
) -> AnyStatus | None:
    """Describe the version in use of a store; None if there is none.

    `find_damage` returns the damaged ones among the files of a version, from its folder and files.
    """
    name = None
    try:
        name = store.name_in_use()
        version = store.current()
    except RunFolderError as problem:
        folder = str(store.folder / name) if name else None
        return status_type(version=name, folder=folder, damage=str(problem))
    if version is None:
        return None
    values: dict[str, Any] = {"version": version.name, "folder": str(version.folder)}
    manifest_keys = status_type.model_fields.keys() - VersionStatus.model_fields.keys()
    manifest = version.manifest.model_dump(mode="json", include=set(manifest_keys))
    values |= {key: manifest[key] for key in status_type.model_fields if key in manifest}
    try:
        damaged = find_damage(version.folder, version.files)
    except InputFileError as problem:
        values["damage"] = f"the files of {version.folder} cannot be checked: {problem}"
    else:
        if damaged:
            paths = [str(file.location(version.folder)) for file in damaged]
            values["damage"] = (
                f"{len(paths)} files of {version.folder} are gone or damaged. "
                f"`python -m pipeline {version.writer}` makes them again."
            )
            values["damaged_files"] = paths
    return status_type.model_validate(values)
