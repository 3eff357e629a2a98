"""Paths that users name in a config or an option: `~` and variables as in a shell.

Outputs go to local folders.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from hep_core.paths import ExpandedPath, PathError, expand_path, expand_pattern, pattern_in
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
#: Keys of patterns among these.
_PATTERNS: Final = ("samples.*.files.*", "evaluate.data.*")
#: Arguments that may be paths, and start in no folder.
_ARGUMENTS: Final = ("spark.executor_python", "train.launcher_args.*")
#: A scheme, and a slash: of `s3://bucket`, a path keeps `s3:/bucket`.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
#: Start of the paths of the bundled events, in any config.
_BUNDLED: Final = "bundled://"


def locate_paths(values: Any, folder: str | Path, source: str) -> None:
    """Replace all paths of a config, in place, by paths that hold from the current folder.

    `~` and variables are replaced, and relative paths start at `folder`. Values of the wrong type,
    and paths that are written out already, stay unchanged. `source` is the file or option, for
    messages.
    """
    for keys in PATHS:
        # An argument may be the name of a program, to which no folder belongs.
        start = "" if keys in _ARGUMENTS else folder
        expand = _expand_pattern if keys in _PATTERNS else expand_path
        _locate(values, keys.split("."), partial(expand, folder=start), f"{source}: ")


def _locate(
    values: Any, keys: list[str], expand: Callable[[str], ExpandedPath], location: str
) -> None:
    """Replace the paths at some keys of `values`, in place.

    It takes the first key, and calls itself with the rest for the value there; `*` stands for each
    key or item.

    Args:
        values: The values.
        keys: The keys.
        expand: Returns a path as it is written out.
        location: The start of messages.
    """
    first_key, *inner_keys = keys
    if isinstance(values, list):
        items = dict(enumerate(values))
    elif isinstance(values, dict):
        items = values
    else:
        return
    # The list is a copy, since values are replaced meanwhile.
    for key in list(items):
        if first_key not in ("*", key):
            continue
        if inner_keys:
            _locate(items[key], inner_keys, expand, f"{location}{key}.")
        elif isinstance(items[key], str):
            try:
                values[key] = expand(items[key])
            except PathError as cause:
                raise ConfigError(f"{location}{key}: {cause}.") from None


def _expand_pattern(pattern: str, folder: str | Path) -> ExpandedPath:
    """Return a pattern written out; `bundled://` starts in the folder of the bundled events."""
    if pattern.startswith(_BUNDLED):
        return pattern_in(bundled_events(), pattern.removeprefix(_BUNDLED))
    return expand_pattern(pattern, folder)


def bundled_events() -> Path:
    """Return the folder of the bundled events: `samples/` of a checkout, else that of a wheel.

    If it lies in the current folder, its name alone is returned.
    """
    folder = ROOT / "samples"
    if not folder.is_dir():
        folder = Path(sys.prefix) / "share" / "hep-pipeline" / "samples"
    is_in_current_folder = folder == Path.cwd() / folder.name
    return Path(folder.name) if is_in_current_folder else folder


def local_folder(path: str | Path) -> Path:
    """Return the path of a folder, with `~` and variables as in a shell; this creates nothing.

    Raises:
        ValueError: It is a URL.

    Examples:
        >>> local_folder("runs/mine")
        PosixPath('runs/mine')
    """
    if _URL.match(str(path)):
        raise ValueError(
            f"'{path}' is a URL, and outputs go to local file systems only; name a folder"
        )
    return Path(expand_path(str(path)))


def folder_of_option(path: Path, option: str) -> Path:
    """Return `local_folder` of an option of the command line; errors name the option."""
    try:
        return local_folder(path)
    except (ValueError, PathError) as cause:
        raise ConfigError(f"{option}: {cause}.") from cause
