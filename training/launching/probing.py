"""Tests MPI and measures messages with real ranks; lists the devices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from training.errors import LaunchError
from training.launching.launcher import rank_command, rank_environment
from training.settings import TrainSettings
from training.simulation.probe import Measurement

_TIMEOUT: Final = 120
_LAST_WORDS: Final = 600


def probe_mpi(settings: TrainSettings) -> str:
    """Start the ranks and try windows, locks and accumulation between neighbours.

    Returns:
        A sentence about the library and its speed.

    Raises:
        LaunchError: The ranks do not start, or a part of MPI does not work.
    """
    return describe(_answer(settings, "a short test of MPI", "training.transports.self_test"), settings.workers)


def measure_messages(settings: TrainSettings, sizes: Sequence[int]) -> list[Measurement]:
    """All-reduces and averages of vectors of some sizes, between the ranks of a run.

    Args:
        settings: The run.
        sizes: Sizes of the vectors [bytes].

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    sharing = settings.algorithm.sharing
    words = ("training.simulation.probe", sharing.protocol, sharing.network or "", *map(str, sizes))
    return [Measurement(**each) for each in _answer(settings, "the measurement of messages", *words)["measured"]]


def _answer(settings: TrainSettings, what: str, module: str, *arguments: str) -> dict[str, Any]:
    """The JSON that rank 0 of a program prints.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    command = rank_command(settings, Path())
    launcher = command[: command.index(sys.executable)]
    try:
        done = subprocess.run(
            [*launcher, sys.executable, "-m", module, *arguments],
            env=rank_environment(threads=settings.threads),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired as cause:
        raise LaunchError(f"{settings.workers} ranks did not finish {what} in {_TIMEOUT} s.") from cause
    line = next((line for line in done.stdout.splitlines() if line.startswith("{")), "{}")
    found: dict[str, Any] = json.loads(line)
    if done.returncode or not found or "error" in found:
        reason = found.get("error") or done.stderr.strip()[-_LAST_WORDS:]
        raise LaunchError(f"{settings.workers} ranks failed {what}: {reason}")
    return found


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
