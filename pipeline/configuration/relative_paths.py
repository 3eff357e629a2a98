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
    if path.parent.resolve() == Path.cwd():
        return
    run_dir = content.get("run_dir")
    if isinstance(run_dir, str) and not run_dir.startswith("~"):
        content["run_dir"] = _moved("run_dir", run_dir, path, is_there=_is_run_folder)
    for number, process in _mappings(content.get("simulate"), "processes"):
        if isinstance(file := process.get("file"), str):
            process["file"] = _moved(f"simulate.processes.{number}.file", file, path, is_there=os.path.exists)
    for number, sample in _mappings(content, "samples"):
        files: Any = sample.get("files")
        for place, pattern in enumerate(files if isinstance(files, list) else []):
            if isinstance(pattern, str):
                files[place] = _moved(f"samples.{number}.files", pattern, path, is_there=_matches)


def _mappings(section: Any, key: str) -> list[tuple[int, dict[str, Any]]]:
    """Numbers and items of a list in a section, without those of a wrong type."""
    found = section.get(key) if isinstance(section, dict) else None
    return [each for each in enumerate(found if isinstance(found, list) else []) if isinstance(each[1], dict)]


def _moved(key: str, name: str, path: Path, *, is_there: Callable[[str], bool]) -> str:
    """A path or pattern from the folder of a file; absolute paths and URLs stay unchanged."""
    if "://" in name:
        return name
    # In a pattern, the name of the folder is escaped.
    is_pattern = is_there is _matches and glob.has_magic(name)
    folder = glob.escape(str(path.parent)) if is_pattern else str(path.parent)
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
