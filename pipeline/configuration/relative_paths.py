"""Paths in a config: `~` and variables are replaced, and relative paths in a file start at the folder of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ingestion.paths import PathError, located
from pipeline.errors import ConfigError

#: Keys of all paths; a star is each number of a list.
PATHS: Final = (
    "run_dir",
    "storage",
    "samples.*.files.*",
    "simulate.processes.*.file",
    "compare.workload.folder",
    "spark.executor_python",
    "train.launcher_args.*",
)
#: Words that may be paths, and start nowhere.
_WORDS: Final = ("spark.executor_python", "train.launcher_args.*")


def locate_paths(content: Any, folder: str | Path, place: str) -> None:
    """Write out all paths of a config, in place.

    Values of the wrong type, and paths that are written out already, stay unchanged.

    Raises:
        ConfigError: A path has an unknown variable or user.
    """
    for keys in PATHS:
        _locate(content, keys.split("."), "" if keys in _WORDS else folder, f"{place}: ")


def _locate(content: Any, keys: list[str], folder: str | Path, place: str) -> None:
    key, *inner = keys
    items = dict(enumerate(content)) if isinstance(content, list) else content if isinstance(content, dict) else {}
    for name in items if key == "*" else [key] if key in items else []:
        if inner:
            _locate(items[name], inner, folder, f"{place}{name}.")
        elif isinstance(items[name], str):
            try:
                content[name] = located(items[name], folder)
            except PathError as cause:
                raise ConfigError(f"{place}{name}: {cause}.") from None
