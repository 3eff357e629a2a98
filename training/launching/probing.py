"""Tests MPI with real ranks and lists the devices, for `doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import torch

from training.errors import LaunchError
from training.launching.launcher import rank_command, rank_environment
from training.settings import TrainSettings

_TIMEOUT: Final = 120
_LAST_WORDS: Final = 600


def probe_mpi(settings: TrainSettings) -> str:
    """Start the ranks and try windows, locks and accumulation between neighbours.

    Returns:
        A sentence about the library and its speed.

    Raises:
        LaunchError: The ranks do not start, or a part of MPI does not work.
    """
    command = rank_command(settings, Path())
    launcher = command[: command.index(sys.executable)]
    try:
        done = subprocess.run(
            [*launcher, sys.executable, "-m", "training.transports.self_test"],
            env=rank_environment(threads=settings.threads),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired as cause:
        raise LaunchError(f"{settings.workers} ranks did not finish a short test of MPI in {_TIMEOUT} s.") from cause
    if done.returncode:
        raise LaunchError(f"{settings.workers} ranks failed a short test of MPI: {done.stderr.strip()[-_LAST_WORDS:]}")
    return describe(json.loads(done.stdout.splitlines()[-1]), settings.workers)


def describe(result: dict[str, Any], workers: int) -> str:
    """The result of the test in a sentence.

    Raises:
        LaunchError: A part of MPI does not work.
    """
    if result["problems"]:
        raise LaunchError(f"one-sided communication is wrong: {'; '.join(result['problems'])}")
    helps = "; averages need the partner to enter MPI" if result["target_must_help"] else ""
    return (
        f"{result['library']}: {workers} ranks reach each other's memory in {result['seconds'] * 1e6:.1f} us "
        f"(lock, read, write, unlock){helps}"
    )


def describe_devices() -> str:
    """A sentence about the devices for training."""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"devices: {', '.join(names)}" if names else "devices: CPU only (torch sees no GPU)"
