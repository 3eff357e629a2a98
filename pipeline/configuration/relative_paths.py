"""Relative paths in a config file start at the folder of the file."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.runs.store import POINTER


def count_from_folder(path: Path, content: dict[str, Any]) -> None:
    """Make relative paths in a config start at the folder of its file, in place.

    Args:
        path: The file.
        content: Content of the file; values of the wrong type stay unchanged.

    Raises:
        ConfigError: A path exists only from the current folder, at which paths of earlier releases started.
    """
    folder = path.parent
    if folder.resolve() == Path.cwd():
        return
    run_dir = content.get("run_dir")
    if isinstance(run_dir, str) and not run_dir.startswith("~"):
        content["run_dir"] = _moved("run_dir", run_dir, path, str(folder), is_there=_is_run_folder)
    simulate = content.get("simulate")
    processes = simulate.get("processes") if isinstance(simulate, dict) else None
    for number, process in enumerate(processes if isinstance(processes, list) else []):
        if isinstance(process, dict) and isinstance(file := process.get("file"), str):
            where = f"simulate.processes.{number}.file"
            process["file"] = _moved(where, file, path, str(folder), is_there=os.path.exists)
    samples = content.get("samples")
    for number, sample in enumerate(samples if isinstance(samples, list) else []):
        files = sample.get("files") if isinstance(sample, dict) else None
        if isinstance(files, list):
            # In a pattern, the name of the folder is escaped.
            sample["files"] = [
                _moved(f"samples.{number}.files", each, path, _folder_for(each, folder), is_there=_matches)
                if isinstance(each, str)
                else each
                for each in files
            ]


def _folder_for(pattern: str, folder: Path) -> str:
    return glob.escape(str(folder)) if glob.has_magic(pattern) else str(folder)


def _moved(key: str, name: str, path: Path, folder: str, *, is_there: Callable[[str], bool]) -> str:
    """A path from a folder; absolute paths and URLs stay unchanged."""
    if "://" in name:
        return name
    moved = os.path.join(folder, name)  # noqa: PTH118 - patterns keep their signs
    if not is_there(moved) and is_there(name):
        raise ConfigError(
            f"{path}: {key}: '{name}' exists in the current folder, but relative paths in a config file start at the "
            f"folder of the file, {path.parent}. Write '{os.path.relpath(name, path.parent)}' or an absolute path."
        )
    return moved


def _is_run_folder(name: str) -> bool:
    return bool(glob.glob(f"*/{POINTER}", root_dir=name))  # noqa: PTH207 - pathlib raises if a name is too long


def _matches(pattern: str) -> bool:
    found = glob.iglob(pattern, recursive=True)  # noqa: PTH207 - the pattern may be absolute
    return os.path.exists(pattern) or any(True for _ in found)  # noqa: PTH110 - pathlib raises if a name is too long
