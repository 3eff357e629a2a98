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
from training.simulation.probe import Measurement
from training.transports.exchange_test import PARAMETERS

_TIMEOUT: Final = 120
_LAST_WORDS: Final = 600


def probe_mpi(settings: TrainSettings, hosts: Hosts = no_hosts) -> str:
    """Start the ranks; try windows, locks and accumulation between neighbours, and averages in both ways.

    Args:
        settings: The run.
        hosts: As in `training.launching.launcher.launch`.

    Returns:
        Sentences about the library and its speed.

    Raises:
        LaunchError: The ranks do not start, or a part of MPI does not work.
    """
    sharing = settings.algorithm.sharing
    words = ("training.transports.exchange_test", sharing.overlap, sharing.network or "")
    return describe(_answer(settings, "a short test of MPI", *words, hosts=hosts), settings)


def measure_messages(settings: TrainSettings, sizes: Sequence[int]) -> list[Measurement]:
    """All-reduces, averages and commits of vectors of some sizes, between the ranks of a run.

    Args:
        settings: The run.
        sizes: Sizes of the vectors [bytes].

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    sharing = settings.algorithm.sharing
    words = ("training.simulation.probe", sharing.protocol, sharing.network or "", *map(str, sizes))
    return [Measurement(**each) for each in _answer(settings, "the measurement of messages", *words)["measured"]]


def _answer(
    settings: TrainSettings, what: str, module: str, *arguments: str, hosts: Hosts = no_hosts
) -> dict[str, Any]:
    """The JSON that rank 0 of a program prints.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    try:
        with hosts(settings.workers) as where:
            command = rank_command(settings, Path(), where)
            launcher = command[: command.index(sys.executable)]
            done = subprocess.run(
                [*without_network(settings, where, Path.cwd()), *launcher, *PROGRAM, module, *arguments],
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


def describe(result: dict[str, Any], settings: TrainSettings) -> str:
    """The result of the test in two sentences.

    Args:
        result: What `training.transports.exchange_test` prints.
        settings: The run that the test is for.

    Raises:
        LaunchError: A part of MPI does not work.
    """
    if result["problems"]:
        raise LaunchError(f"one-sided communication is wrong: {'; '.join(result['problems'])}")
    helps = "; averages there need the partner to enter MPI" if result["target_must_help"] else ""
    return (
        f"{result['library']}: {settings.workers} ranks reach each other's memory in {result['seconds'] * 1e6:.1f} us "
        f"(lock, read, write, unlock){helps}\n"
        f"an average of {PARAMETERS:,} parameters with a partner that computes takes "
        f"{_time(result['averages']['locked'])} in MPI's windows and {_time(result['averages']['sockets'])} through "
        f"sockets; {_use(result['auto'], result['overlap'], settings)}"
    )


def _time(average: float | str) -> str:
    return f"an unknown time ({average})" if isinstance(average, str) else f"{average * 1e6:,.0f} us"


def _use(auto: str, overlap: str, settings: TrainSettings) -> str:
    """Which of the ways `train` will use, and when it averages."""
    algorithm = settings.algorithm
    if not (algorithm.traits.pairs or algorithm.traits.server):
        return f"train uses neither, since {algorithm.name} makes all-reduces or exchanges with neighbours only"
    way = auto if algorithm.sharing.protocol == "auto" else algorithm.sharing.protocol
    ways = {"sockets": "sockets", "locked": "windows (locked)", "additive": "windows (additive)"}
    why = f"the workers {'do not share' if auto == 'sockets' else 'share'} memory"
    chosen = why if algorithm.sharing.protocol == "auto" else "train.algorithm.exchange"
    when = ""
    if algorithm.sharing.overlap == "auto":
        beside = way == "sockets" or overlap == "thread"
        when = ", beside the gradient" if beside else ", before the gradient, since the gradients need all cores"
    return f"train with {algorithm.name} uses {ways[way]}: {chosen}{when}"


def describe_devices() -> str:
    """A sentence about the devices for training."""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"devices: {', '.join(names)}" if names else "devices: CPU only (torch sees no GPU)"
