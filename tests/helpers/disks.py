"""Disks of a chosen size, to be filled, and disks that are read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def disk_at(folder: Path, mebibytes: int) -> Iterator[None]:
    """Mount an empty disk of a size at a folder during the block; skip where that is impossible."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk of a chosen size can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nobody write into a folder during the block, not even root; skip where root is needed."""
    mount = ["mount", "--bind", str(folder), str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)  # noqa: S607
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


def fill(file: Path) -> None:
    """Write a file that takes all the space of its disk."""
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    assert os.statvfs(file).f_bavail == 0
