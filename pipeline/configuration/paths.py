"""Paths that users name in a config or an option: `~` and variables as in a shell; outputs go to local folders."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

from hep_core.paths import ExpandedPath, PathError, expand_path
from pipeline.errors import ConfigError
from pipeline.runs.code_meaning import ROOT

#: Keys of all paths; a star is each number of a list.
PATHS: Final = (
    "run_dir",
    "storage",
    "samples.*.files.*",
    "evaluate.data.*",
    "simulate.processes.*.file",
    "compare.workload.folder",
    "spark.executor_python",
    "train.launcher_args.*",
)
#: Words that may be paths, and start nowhere.
_WORDS: Final = ("spark.executor_python", "train.launcher_args.*")
#: A scheme, and a slash: of `s3://bucket`, a path keeps `s3:/bucket`.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: Begin of the paths of the bundled events, in any config.
_BUNDLED: Final = "bundled://"


def locate_paths(content: Any, folder: str | Path, place: str) -> None:
    """Write out all paths of a config, in place.

    Values of the wrong type, and paths that are written out already, stay unchanged.
    """
    for keys in PATHS:
        _locate(content, keys.split("."), "" if keys in _WORDS else folder, f"{place}: ")


def _locate(content: Any, keys: list[str], folder: str | Path, place: str) -> None:
    key, *inner = keys
    items = (
        dict(enumerate(content))
        if isinstance(content, list)
        else content
        if isinstance(content, dict)
        else {}
    )
    for name in items if key == "*" else [key] if key in items else []:
        if inner:
            _locate(items[name], inner, folder, f"{place}{name}.")
        elif isinstance(items[name], str):
            bundled = ExpandedPath(items[name].replace(_BUNDLED, f"{bundled_events()}/", 1))
            try:
                content[name] = (
                    bundled
                    if items[name].startswith(_BUNDLED)
                    else expand_path(items[name], folder)
                )
            except PathError as cause:
                raise ConfigError(f"{place}{name}: {cause}.") from None


def bundled_events() -> Path:
    """The folder of the bundled events: `samples/` of a checkout, also without its path there; else that of a wheel."""
    folder = ROOT / "samples"
    if not folder.is_dir():
        folder = Path(sys.prefix) / "share" / "hep-pipeline" / "samples"
    return Path(folder.name) if folder == Path.cwd() / folder.name else folder


def local_folder(words: str | Path) -> Path:
    """The path of a folder; `~` and variables are as in a shell. This makes nothing.

    Examples:
        >>> local_folder("runs/mine")
        PosixPath('runs/mine')
    """
    if _URL.match(str(words)):
        raise ValueError(
            f"'{words}' is a URL, and outputs go to local file systems only; name a folder"
        )
    return Path(expand_path(str(words)))


def folder_of_option(words: Path, option: str) -> Path:
    """`local_folder` of an option of the command line."""
    try:
        return local_folder(words)
    except (ValueError, PathError) as cause:
        raise ConfigError(f"{option}: {cause}.") from cause
