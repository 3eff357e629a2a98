"""Paths that users name in a config or an option: `~` and variables as in a shell.

Outputs go to local folders.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from hep_core.paths import ExpandedPath, PathError, expand_path, expand_pattern, pattern_in
from pipeline.errors import ConfigError
from pipeline.runs.code_meaning import ROOT

#: A scheme, and a slash: of `s3://bucket`, a path keeps `s3:/bucket`.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
#: Start of the paths of the bundled events, in any config.
_BUNDLED: Final = "bundled://"
#: An address of MLflow that names a folder or a file of SQLite: its scheme, and the path.
_LOCAL_ADDRESS: Final = re.compile(
    r"(?P<scheme>file:(?!//)|sqlite(?:\+\w+)?:///|(?![A-Za-z][A-Za-z0-9+.-]*:))(?P<path>.+)"
)
#: Addresses of MLflow, and a part of one, that are no paths though they look like some.
_NO_PATHS_OF_MLFLOW: Final = ("databricks", "databricks-uc", "uc", ":memory:")


def locate_paths(values: Any, folder: str | Path, source: str) -> None:
    """Replace all paths of a config, in place, by paths that hold from the current folder.

    `~` and variables are replaced, and relative paths start at `folder`. Values of the wrong type,
    and paths that are written out already, stay unchanged. `source` is the file or option, for
    messages.
    """
    for keys, expand in PATHS.items():
        _locate(values, keys.split("."), partial(expand, folder=folder), f"{source}: ")


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
        if first_key not in ("*", str(key)):
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


def _expand_argument(argument: str, folder: str | Path) -> ExpandedPath:  # noqa: ARG001
    """Return an argument written out; it may be the name of a program, so it starts in no folder."""
    return expand_path(argument)


def _expand_program(program: str, folder: str | Path) -> ExpandedPath:
    """Return a program written out; as in a shell, a name without a slash is none of a file."""
    start = folder if "/" in program else ""
    return expand_path(program, start)


def _expand_address(address: str, folder: str | Path) -> ExpandedPath:
    """Return an address of MLflow written out, if it is that of a folder or of a file of SQLite."""
    if isinstance(address, ExpandedPath):
        return address
    local_address = _LOCAL_ADDRESS.fullmatch(address)
    if local_address is None or local_address["path"] in _NO_PATHS_OF_MLFLOW:
        return ExpandedPath(address)
    scheme, path = local_address["scheme"], local_address["path"]
    # In the path of a folder, MLflow takes %20 for a space.
    start = str(folder) if scheme.startswith("sqlite") else quote(str(folder))
    return ExpandedPath(scheme + expand_path(path, start))


class _Expand(Protocol):
    """Writes a path out; a relative one starts in `folder`."""

    def __call__(self, text: str, /, folder: str | Path) -> ExpandedPath: ...


#: How the paths at each key are written out. A star is each number of a list, or each key.
PATHS: Final[Mapping[str, _Expand]] = {
    "run_dir": expand_path,
    "storage": expand_path,
    "samples.*.files.*": _expand_pattern,
    "evaluate.data.*": _expand_pattern,
    "simulate.processes.*.file": expand_path,
    "compare.workload.folder": expand_path,
    "mlflow.uri": _expand_address,
    "notify.0": _expand_program,
    "spark.executor_python": _expand_argument,
    "train.launcher_args.*": _expand_argument,
    "train_by_network.*.launcher_args.*": _expand_argument,
}


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
