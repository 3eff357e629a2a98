"""Tests MPI and measures messages with real ranks; lists the devices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from ingestion.environment import PROGRAM
from training.errors import LaunchError
from training.launching.launcher import Hosts, no_hosts, rank_command, rank_environment
from training.launching.start_limit import without_network
from training.settings import TrainSettings
from training.simulation.probe import ALL_REDUCE, PUSH, Measurement

_TIMEOUT: Final = 120
_LAST_WORDS: Final = 600
#: Of the network of the high-level features.
_NBYTES: Final = 8052


def probe_mpi(settings: TrainSettings, hosts: Hosts = no_hosts) -> str:
    """Start the ranks; test MPI, and measure messages of the size of a small network.

    Args:
        settings: The run.
        hosts: As in `training.launching.launcher.launch`.

    Returns:
        A sentence about them.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    measured = measure_messages(settings, (_NBYTES,), hosts)
    names = {ALL_REDUCE: "all-reduce", PUSH: "push to a server"}
    times = ", ".join(
        f"{names.get(each.operation, f'pairwise average ({each.operation})')} {each.seconds * 1e6:,.1f} us"
        for each in measured
    )
    return f"{settings.workers} ranks start; messages of {_NBYTES:,} bytes take: {times}"


def measure_messages(settings: TrainSettings, sizes: Sequence[int], hosts: Hosts = no_hosts) -> list[Measurement]:
    """All-reduces, averages and pushes of vectors of some sizes, between the ranks of a run.

    Args:
        settings: The run.
        sizes: Sizes of the vectors [bytes].
        hosts: As in `training.launching.launcher.launch`.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    module = ("training.simulation.probe", settings.algorithm.transport_options.network or "", *map(str, sizes))
    try:
        with hosts(settings.workers) as where:
            command = rank_command(settings, Path(), where)
            launcher = command[: command.index(sys.executable)]
            done = subprocess.run(
                [*without_network(settings, where, Path.cwd()), *launcher, *PROGRAM, *module],
                env=rank_environment(threads=settings.threads),
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=_TIMEOUT,
            )
    except subprocess.TimeoutExpired as cause:
        raise LaunchError(f"{settings.workers} ranks did not finish a short test of MPI in {_TIMEOUT} s.") from cause
    line = next((line for line in done.stdout.splitlines() if line.startswith("{")), "{}")
    found: dict[str, Any] = json.loads(line)
    if done.returncode or not found or "error" in found:
        reason = found.get("error") or done.stderr.strip()[-_LAST_WORDS:]
        raise LaunchError(f"{settings.workers} ranks failed a short test of MPI: {reason}")
    return [Measurement(**each) for each in found["measured"]]


def describe_devices() -> str:
    """A sentence about the devices for training."""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"devices: {', '.join(names)}" if names else "devices: CPU only (torch sees no GPU)"
