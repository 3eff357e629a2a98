"""Real cgroups with limits, for processes that a test starts; a test is skipped where none can be
made."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from hep_core.cgroups import cgroups

#: Enters the cgroups whose folders come before `--`, then becomes the program behind it.
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
_PERIOD_US = 100_000
#: Time for the processes of a cgroup to be gone.
_SECONDS_TO_END = 60


@contextmanager
def cgroup_with(
    *, cores: float | None = None, memory_bytes: int | None = None
) -> Iterator[list[str]]:
    """A cgroup below that of this process.

    Yields:
        The words before a command line that run it in this cgroup.
    """
    with ExitStack() as stack:
        folders = []
        if cores is not None:
            folder = stack.enter_context(_group("cpu"))
            quota = str(int(cores * _PERIOD_US))
            _write_limit(folder, {"cpu.cfs_quota_us": quota, "cpu.max": f"{quota} {_PERIOD_US}"})
            folders.append(str(folder))
        if memory_bytes is not None:
            folder = stack.enter_context(_group("memory"))
            limit = str(memory_bytes)
            _write_limit(folder, {"memory.limit_in_bytes": limit, "memory.max": limit})
            folders.append(str(folder))
        yield ["sh", "-c", _ENTER, "sh", *folders, "--"]


@contextmanager
def _group(controller: str) -> Iterator[Path]:
    """Make a cgroup below that of this process, and remove it in the end."""
    folder = _make_group(controller)
    try:
        yield folder
    finally:
        _remove_group(folder)


def _make_group(controller: str) -> Path:
    """Return the folder of a new cgroup; skip the test where none can be made."""
    for group in cgroups(controller):
        folder = group.folder / f"hep-pipeline-test-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            if any(folder.glob(f"{controller}.*")):
                return folder
            folder.rmdir()
    pytest.skip(f"no cgroup of the controller {controller} can be made here")


def _remove_group(folder: Path) -> None:
    """Remove a cgroup, which is busy until its last killed process is gone."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _write_limit(folder: Path, value_of_file: dict[str, str]) -> None:
    """Write a limit into the file that this version of cgroups has."""
    for name, value in value_of_file.items():
        if (folder / name).exists():
            (folder / name).write_text(value)
