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


class NoCgroupError(Exception):
    """This machine lets us make no cgroup."""


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
        try:
            if cores is not None:
                folders.append(stack.enter_context(cores_group(cores)))
            if memory_bytes is not None:
                folders.append(stack.enter_context(_memory_group(memory_bytes)))
        except NoCgroupError as error:
            pytest.skip(str(error))
        yield ["sh", "-c", _ENTER, "sh", *map(str, folders), "--"]


@contextmanager
def cores_group(
    cores: float, *, period_us: int = _PERIOD_US, label: str = "cores"
) -> Iterator[Path]:
    """Make a cgroup whose processes together get some cores, and remove it in the end.

    Yields the folder of the group; a number of a process in its `cgroup.procs` brings that in.

    Args:
        cores: Number of cores, such as 0.5.
        period_us: Time in which the kernel gives out the quota: the processes stop when it is used
            up, until the next period.
        label: Tells groups of this process apart.

    Raises:
        NoCgroupError: None can be made here.
    """
    with _group("cpu", label) as folder:
        quota = str(int(cores * period_us))
        # The quota must never be longer than the period allows, so the period is first.
        _write_limit(folder, {"cpu.cfs_period_us": str(period_us)})
        _write_limit(folder, {"cpu.cfs_quota_us": quota, "cpu.max": f"{quota} {period_us}"})
        yield folder


@contextmanager
def _memory_group(memory_bytes: int) -> Iterator[Path]:
    """Make a cgroup whose processes together get some bytes of memory; as `cores_group`."""
    with _group("memory", "memory") as folder:
        limit = str(memory_bytes)
        _write_limit(folder, {"memory.limit_in_bytes": limit, "memory.max": limit})
        yield folder


@contextmanager
def _group(controller: str, label: str) -> Iterator[Path]:
    """Make a cgroup below that of this process, and remove it in the end."""
    folder = _make_group(controller, label)
    try:
        yield folder
    finally:
        _remove_group(folder)


def _make_group(controller: str, label: str) -> Path:
    """Return the folder of a new cgroup."""
    for group in cgroups(controller):
        folder = group.folder / f"hep-pipeline-test-{os.getpid()}-{label}"
        with suppress(OSError):
            folder.mkdir()
            if any(folder.glob(f"{controller}.*")):
                return folder
            folder.rmdir()
    raise NoCgroupError(f"no cgroup of the controller {controller} can be made here")


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
