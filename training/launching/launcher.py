"""Starts a training run, and restarts it if a rank is lost.

One worker runs in this process, several under mpirun or srun.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from hep_core.allocation import memory_limit
from hep_core.environment import MODULE_COMMAND
from training.errors import DivergedError, LaunchError, StalledError, TrainingError
from training.launching.launcher_log import drop_noise, names_signal, parse_rank_loss
from training.launching.memory_use import MemoryWatch
from training.launching.mpirun import (
    Hosts,
    advise_after_failed_start,
    end_launcher,
    no_hosts,
    rank_command,
    rank_environment,
)
from training.launching.rank_reports import LaunchFiles, StartLimit
from training.launching.run_spec import RunSpec
from training.loop.progress import Progress
from training.loop.watchdog import read_reports
from training.readers.sharding import plan_epoch
from training.readers.units import Position
from training.settings import TrainSettings
from training.transports.transport import Transport

#: Most characters of the log that an error quotes.
_LOG_CHARACTERS: Final = 2000
#: Exit statuses above it are those of programs that a signal ended.
_SIGNAL_STATUS: Final = 128
#: Message of mpirun when a killed mpirun with the same process number left its files. It removes
#: them, so that the next start succeeds.
_FILES_OF_ANOTHER: Final = "PMIx server's listener thread failed to start"


def launch(
    spec: RunSpec,
    *,
    on_progress: Callable[[Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
    on_wait: Callable[[str], None] = lambda _: None,
    hosts: Hosts = no_hosts,
    run: RunRanks | None = None,
) -> None:
    """Train with the configured number of workers; returns when all are done.

    Resumes from the newest checkpoint in `spec.out_dir`, if there is one. One worker trains in this
    process; several are ranks, processes of their own.

    Args:
        spec: The run.
        on_progress: Called with the progress of rank 0.
        on_loss: Called with a sentence when a rank is lost, or a checkpoint is damaged.
        on_wait: Called with a sentence about the wait of a long start.
        hosts: Holds the hosts during each start of the ranks (`train.launcher: spark`).
        run: Runs all ranks once, without mpirun or srun (`train.launcher: spark-agents`).

    Raises:
        TrainingError: It cannot start, a rank failed or was lost too often, or no rank made
            progress. The message comes from that rank, or says what each was doing.
    """
    # A single worker needs no launcher.
    if spec.train.workers == 1:
        # The launcher of ranks needs none of what they load.
        from training.launching.rank import train  # noqa: PLC0415

        _prepare_run(spec, on_loss)
        train(spec, Transport(), on_progress=on_progress)
        return
    (spec.out_dir / "summary.json").unlink(missing_ok=True)

    def report_progress(_: int, progress: Progress) -> None:
        on_progress(progress)

    run_ranks = run or partial(_run_ranks, hosts)
    _launch(Job([spec], spec.out_dir, run_ranks, report_progress, on_wait), on_loss)


def launch_all(
    specs: Sequence[RunSpec],
    folder: Path,
    *,
    on_progress: Callable[[int, Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
) -> None:
    """Train several runs in ranks that start only once, since a start takes seconds.

    The runs train one after the other. Each resumes from the newest checkpoint in its `out_dir`;
    runs with a summary there are skipped.

    `specs`: all with the same number of workers and the same launcher. `folder`: folder of the
    ranks' log and errors. `on_progress`: called with the number of a run and the progress of rank 0
    in it. `on_loss`: as in `launch`.

    Raises:
        TrainingError: As in `launch`; the message names the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(specs, folder, partial(_run_ranks, no_hosts), on_progress)
    try:
        _launch(job, on_loss)
    except (DivergedError, LaunchError, StalledError, RuntimeError) as error:
        # The runs train one after the other, so the first without a summary has failed.
        failed_run = specs[next(iter(job.unfinished_runs()), -1)]
        location = f"in the run {failed_run.out_dir}"
        if isinstance(error, TrainingError):
            raise type(error)(f"{location}: {error}") from error
        error.add_note(location)
        raise


ReportProgress = Callable[[int, Progress], None]
"""Called with the number of a run and its progress."""


class Job(NamedTuple):
    """Runs that the same ranks train."""

    specs: Sequence[RunSpec]
    folder: Path
    """Folder of the ranks' log and errors."""
    run: RunRanks
    """Starts all ranks once."""
    report_progress: ReportProgress
    """Called with the progress of rank 0."""
    on_wait: Callable[[str], None] = lambda _: None

    @property
    def settings(self) -> TrainSettings:
        """How the ranks start."""
        return self.specs[0].train

    @property
    def files(self) -> LaunchFiles:
        """The reports between ranks and launcher."""
        return LaunchFiles(self.folder)

    def unfinished_runs(self) -> list[int]:
        """Return the numbers of the runs that have no summary, which ranks write at their end."""
        return [
            run_number
            for run_number, spec in enumerate(self.specs)
            if not (spec.out_dir / "summary.json").exists()
        ]


RunRanks = Callable[[Job], tuple[int, str]]
"""Starts all ranks and follows them to their end.

It returns the exit status of the launcher, 0 if all went well, and a description of the ranks that
did not start in time, empty for none.
"""


def _launch(job: Job, on_loss: Callable[[str], None]) -> None:
    """Start the ranks while there are unfinished runs; restart them after a loss.

    Raises:
        TrainingError: As in `launch`; also after more losses than `train.max_restarts`.
    """
    for spec in job.specs:
        _check_shards(spec)
        _prepare_run(spec, on_loss)
    max_restarts = job.settings.max_restarts
    job.files.forget_losses()
    while job.unfinished_runs() and not _attempt(job, on_loss):
        lost = job.files.lost_ranks()
        if len(lost) > max_restarts:
            raise LaunchError(
                f"a rank was lost, {len(lost)} time(s) so far ({lost[-1]}), and train.max_restarts "
                f"is {max_restarts}. If the cause is not named, does a machine fail? The same "
                f"command resumes from the last checkpoint."
            )
        on_loss(f"a rank was lost ({lost[-1]}); all start again from the last checkpoint")


def _prepare_run(spec: RunSpec, on_loss: Callable[[str], None]) -> None:
    """Report damaged checkpoints, which the ranks leave out, and write the spec for the ranks."""
    folder = spec.out_dir / "checkpoints"
    if folder.exists():
        from training.loop.checkpoints import CheckpointFolder  # noqa: PLC0415 - as above
        from training.loop.resumption import settings_digest  # noqa: PLC0415 - as above

        checkpoints = CheckpointFolder(folder, settings_digest(spec.workload.meaning, spec.train))
        end = Position(spec.train.epochs, 0)
        for sentence in checkpoints.describe_damage(end=end):
            on_loss(sentence)
    # The file stays, and shows later which data a model was trained on.
    spec.save(spec.out_dir / "run.json")


def _check_shards(spec: RunSpec) -> None:
    """Raise an error if there are fewer rows than workers, which need seconds to find that out."""
    settings = spec.train
    if settings.has_static_shards:
        plan_epoch(
            spec.workload.train_group_rows(),
            world_size=settings.workers,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epoch=0,
        )


def _attempt(job: Job, on_loss: Callable[[str], None]) -> bool:
    """Run all ranks once; returns whether all runs are finished, False if a rank was lost.

    The error of a rank is raised. Complete runs stay complete if ranks end badly after them, which
    `on_loss` tells. Else the reasons are checked in turn: a standstill or a slow start, a kill for
    memory before the first step, and ranks that did not start. Each of these raises an error.
    Otherwise a rank was lost, which is recorded, and a restart may help. That is so too for a rank
    that a signal has ended during the start, unless the start before failed in the same way: MPI
    may crash there on busy nodes (https://github.com/open-mpi/ompi/issues/12495).
    """
    files = job.files
    files.clear()
    _write_runs(job)
    has_progress = False

    def note_progress(run_number: int, progress: Progress) -> None:
        nonlocal has_progress
        has_progress = True
        job.report_progress(run_number, progress)

    with MemoryWatch(files) as memory:
        # A start that only removed the files of another mpirun is repeated.
        status, missing_ranks = job.run(job._replace(report_progress=note_progress))
        met_old_files = not files.has_started and _FILES_OF_ANOTHER in files.read_log()
        if status and met_old_files:
            status, missing_ranks = job.run(job._replace(report_progress=note_progress))
    # The runs are checked too, since mpirun's exit status after the loss of a host is 0.
    is_complete = not job.unfinished_runs()
    if status == 0 and is_complete:
        return True
    _raise_error_of_rank(files)
    if is_complete:
        # All ranks had written all their results before the summary was written.
        cause = _cause_of_loss(job.settings, files, status)
        on_loss(f"a rank ended badly after the training ({cause}); the results are complete")
        return True
    _raise_stall(job.settings, files, missing_ranks)
    memory_kill = memory.kill(by_signal=status < 0 or status > _SIGNAL_STATUS)
    if memory_kill and not has_progress:
        raise LaunchError(
            f"{memory_kill}. No step was made, so another start would end in the same way. "
            f"{memory_limit().advice} The same command starts again."
        )
    is_first_crash = names_signal(files.read_log()) and not files.last_start_failed()
    if not (memory_kill or files.has_started or is_first_crash):
        _raise_failed_start(job.settings, files, status)
    files.record_loss(memory_kill or _cause_of_loss(job.settings, files, status))
    return False


def _write_runs(job: Job) -> None:
    """Write the list of unfinished runs for the ranks."""
    runs: list[dict[str, Any]] = []
    for run_number in job.unfinished_runs():
        path = job.specs[run_number].out_dir / "run.json"
        runs.append({"number": run_number, "spec": str(path.absolute())})
    job.files.runs.write_text(json.dumps(runs, indent=1), encoding="utf-8")


def _cause_of_loss(settings: TrainSettings, files: LaunchFiles, status: int) -> str:
    """Return the cause of a lost rank from the log, or how the launcher itself ended.

    `status`: exit status of the launcher, negative if a signal ended it.
    """
    if status >= 0:
        cause = parse_rank_loss(files.read_log())
        if cause:
            return cause
    return f"{settings.launcher} itself {_describe_end(status)}, and the ranks with it"


def _run_ranks(hosts: Hosts, job: Job) -> tuple[int, str]:
    """Run all ranks once by mpirun or srun; the result is that of `RunRanks`.

    The standard output has the progress. The standard input stays open, and its end ends rank 0.
    Ranks that read from a server keep the network.
    """
    needs_network = any(spec.workload.reads_from_server for spec in job.specs)
    readable_folder = None if needs_network else job.folder
    worker = [*MODULE_COMMAND, "training.launching.rank_process", str(job.files.runs), "--launched"]
    with (
        hosts(job.settings.workers) as host_arguments,
        job.files.log.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            rank_command(job.settings, worker, host_arguments, folder=readable_folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # MPI and the system may print any bytes.
            errors="replace",
            env=rank_environment(job.settings, host_arguments),
        ) as process,
    ):
        limit = StartLimit(job.files, job.settings, partial(end_launcher, process), job.on_wait)
        try:
            _follow(process, job.report_progress)
        except BaseException:
            # After Ctrl-C or an error, no rank may outlive its launcher.
            end_launcher(process)
            raise
        finally:
            limit.end()
            job.files.end_ranks_here()
    return process.returncode, limit.missing_ranks


def _follow(process: subprocess.Popen[str], report_progress: ReportProgress) -> None:
    """Read the progress of rank 0 until the launcher ends."""
    if process.stdout is None:
        raise AssertionError("the ranks were started without a pipe for their output")
    for line in process.stdout:
        try:
            message = json.loads(line)
            run_number = message.pop("run")
            progress = Progress(**message)
        except (ValueError, TypeError, LookupError, AttributeError):
            # The line is a message of MPI itself. It matters only if the run fails, and the error
            # then quotes ranks.log.
            continue
        report_progress(run_number, progress)
    process.wait()


def _describe_end(status: int) -> str:
    if status < 0:
        return f"was ended by signal {-status} ({signal.strsignal(-status)})"
    return f"ended with {status}"


def _raise_error_of_rank(files: LaunchFiles) -> None:
    """Raise the error of the rank that failed first, if one has failed."""
    first_error = files.first_error()
    if first_error is not None:
        rank, error = first_error
        error.raise_again(f"training failed on rank {rank}")


def _raise_stall(settings: TrainSettings, files: LaunchFiles, missing_ranks: str) -> None:
    """Raise an error if the ranks reported a standstill, or did not start in time.

    `missing_ranks`: a description of the ranks that did not start in time; empty for none.
    """
    if files.stalls.exists():
        raise StalledError(
            f"no progress for {settings.stall_seconds:g} s (train.stall_seconds):\n"
            f"{read_reports(files.stalls, settings.workers)}\n"
            f"If a step may take that long, raise train.stall_seconds; else run "
            f"`python -m pipeline doctor`. The same command resumes from the last checkpoint."
        )
    if missing_ranks:
        raise LaunchError(
            f"{missing_ranks}\nA host without the program, a firewall between hosts, or a "
            f"stranger's connection to a port of {settings.launcher} can be the cause: run `python "
            f"-m pipeline doctor`. If a start may take that long, raise train.stall_seconds. The "
            f"same command continues from the last checkpoint, if there is one."
        )


def _raise_failed_start(settings: TrainSettings, files: LaunchFiles, status: int) -> NoReturn:
    """Raise an error about ranks that did not start, with the cause that the log names.

    `status`: exit status of the launcher, negative if a signal ended it.
    """
    lost = files.lost_ranks()
    beginning = f"a rank was lost ({lost[-1]}), and then " if lost else ""
    if status < 0:
        raise LaunchError(
            f"{beginning}{settings.launcher} {_describe_end(status)} while the ranks started: out "
            f"of memory, a limit of this machine, or a person? The ranks ended too; the same "
            f"command starts them again."
        )
    log = files.read_log()
    raise LaunchError(
        f"{beginning}the ranks did not start: status {status}: "
        f"{parse_rank_loss(log) or 'no output'}\n"
        f"The last output:\n{drop_noise(log)[-_LOG_CHARACTERS:]}\n"
        f"{advise_after_failed_start(settings)}"
    )
