"""Starts a training run: one worker in this process, several under mpirun or srun; restarts it if a rank is lost."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from hep_core.allocation import memory_limit
from hep_core.environment import MODULE_COMMAND
from training.errors import DivergedError, LaunchError, StalledError, TrainingError
from training.launching.launcher_log import parse_rank_loss, without_noise
from training.launching.memory_use import MemoryWatch
from training.launching.mpirun import Hosts, no_hosts, rank_command, rank_environment
from training.launching.rank import RunSpec, train
from training.launching.rank_reports import LaunchFiles, StartLimit, raise_described
from training.loop.checkpoints import CheckpointFolder, settings_digest
from training.loop.progress import Progress
from training.loop.watchdog import read_reports
from training.readers.sharding import plan_epoch
from training.settings import TrainSettings
from training.transports.transport import Transport

_GRACE_SECONDS: Final = 10
_LAST_WORDS: Final = 2000
#: Exit statuses above it are those of programs that a signal ended.
_SIGNALS: Final = 128
#: Message of mpirun when a killed mpirun with the same process id left its files; it then removes them.
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

    Resumes from the newest checkpoint in `spec.out_dir`, if there is one.

    `on_progress`: called with the progress of rank 0. `on_loss`: called with a sentence when a rank is lost and all
    start again. `on_wait`: called with what a long start of the ranks waits for. `hosts`: holds the hosts during each
    start of the ranks (`train.launcher: spark`). `run`: runs all ranks once, without mpirun or srun
    (`train.launcher: spark-agents`).

    Raises:
        TrainingError: It cannot start, a rank failed or was lost too often, or no rank made progress; the message comes
            from that rank, or says what each was doing.
    """
    if spec.train.workers == 1:
        for words in _damaged_checkpoints(spec):
            on_loss(words)
        spec.save(spec.out_dir / "run.json")
        train(spec, Transport(), on_progress=on_progress)
        return
    (spec.out_dir / "summary.json").unlink(missing_ok=True)
    tell: Tell = lambda _, progress: on_progress(progress)  # noqa: E731 - typed
    _launch(Job([spec], spec.out_dir, run or partial(_run_ranks, hosts), tell, on_wait), on_loss)


def launch_all(
    specs: Sequence[RunSpec],
    folder: Path,
    *,
    on_progress: Callable[[int, Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
) -> None:
    """Train several runs, one after the other, in ranks that start only once, since a start takes seconds.

    Each run resumes from the newest checkpoint in its `out_dir`; runs with a summary there are skipped.

    `specs`: all with the same number of workers and the same launcher. `folder`: folder of the ranks' log and errors.
    `on_progress`: called with the number of a run and the progress of rank 0 in it.

    Raises:
        TrainingError: As in `launch`; the message names the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(specs, folder, partial(_run_ranks, no_hosts), on_progress)
    try:
        _launch(job, on_loss)
    except (DivergedError, LaunchError, StalledError, RuntimeError) as error:
        where = f"in the run {specs[next(iter(job.left()), -1)].out_dir}"
        if isinstance(error, TrainingError):
            raise type(error)(f"{where}: {error}") from error
        error.add_note(where)
        raise


Tell = Callable[[int, Progress], None]
"""Called with the number of a run and its progress."""


class Job(NamedTuple):
    """Runs that the same ranks train."""

    specs: Sequence[RunSpec]
    folder: Path
    """Folder of the ranks' log and errors."""
    run: RunRanks
    tell: Tell
    on_wait: Callable[[str], None] = lambda _: None

    @property
    def settings(self) -> TrainSettings:
        """How the ranks start."""
        return self.specs[0].train

    @property
    def files(self) -> LaunchFiles:
        """What ranks and launcher report to each other."""
        return LaunchFiles(self.folder)

    def left(self) -> list[int]:
        """Numbers of the runs that have no summary, which the ranks write at the end of each."""
        return [
            number
            for number, spec in enumerate(self.specs)
            if not (spec.out_dir / "summary.json").exists()
        ]


RunRanks = Callable[[Job], tuple[int, str]]
"""Starts all ranks and follows them to their end; returns the status of the launcher, 0 if all went well, and who was
late."""


def _launch(job: Job, on_loss: Callable[[str], None]) -> None:
    """Start the ranks while there is work left, and restart them when one was lost, as the settings allow."""
    for spec in job.specs:
        _refuse_impossible(spec)
        for words in _damaged_checkpoints(spec):
            on_loss(words)
        # The spec later also shows the data of a model's training.
        spec.save(spec.out_dir / "run.json")
    most = job.settings.max_restarts
    # Lost ranks of an earlier command do not count.
    (job.folder / "lost_ranks.jsonl").unlink(missing_ok=True)
    while (left := job.left()) and not _attempt(job, left):
        lost = job.files.lost_ranks()
        if len(lost) > most:
            raise LaunchError(
                f"a rank was lost, {len(lost)} time(s) so far ({lost[-1]}), and train.max_restarts is {most}. If the "
                f"cause is not named, does a machine fail? The same command resumes from the last checkpoint."
            )
        on_loss(f"a rank was lost ({lost[-1]}); all start again from the last checkpoint")


def _damaged_checkpoints(spec: RunSpec) -> list[str]:
    """Sentences about damaged checkpoints, which the ranks leave out for an older one."""
    digest = settings_digest(spec.workload.meaning, spec.train)
    return CheckpointFolder(spec.out_dir / "checkpoints", digest).describe_damage()


def _refuse_impossible(spec: RunSpec) -> None:
    """Refuse impossible runs before the workers start, since these take seconds to find out."""
    workload, settings = spec.workload.open(), spec.train
    if settings.has_static_shards:
        rows = workload.group_rows("train")
        plan_epoch(
            rows,
            world_size=settings.workers,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epoch=0,
        )


def _attempt(job: Job, left: Sequence[int]) -> bool:
    """Run all ranks once; False if one was lost."""
    files = job.files
    files.clear()
    runs = [
        {"number": number, "spec": str((job.specs[number].out_dir / "run.json").absolute())}
        for number in left
    ]
    files.runs.write_text(json.dumps(runs, indent=1), encoding="utf-8")
    steps: list[Progress] = []

    def tell(number: int, progress: Progress) -> None:
        steps[:] = [progress]
        job.tell(number, progress)

    with MemoryWatch(files) as memory:
        status, late = job.run(job._replace(tell=tell))
        if (
            status
            and not files.has_started
            and _FILES_OF_ANOTHER in files.log.read_text(errors="replace")
        ):
            status, late = job.run(job._replace(tell=tell))
    # After the loss of a host, mpirun's exit status is 0.
    if status == 0 and not job.left():
        return True
    _raise_error_of_rank(files)
    _raise_stall(job.settings, files, late)
    kill = memory.kill(by_signal=status < 0 or status > _SIGNALS)
    if kill and not steps:
        raise LaunchError(
            f"{kill}. No step was made, so another start would end in the same way. {memory_limit().advice} The same "
            f"command starts again."
        )
    if not (kill or files.has_started):
        _raise_failed_start(job.settings, files, status)
    ended = f"{job.settings.launcher} itself {_how_it_ended(status)}, and the ranks with it"
    files.record_loss(
        kill
        or (
            ended if status < 0 else parse_rank_loss(files.log.read_text(errors="replace")) or ended
        )
    )
    return False


def _run_ranks(hosts: Hosts, job: Job) -> tuple[int, str]:
    worker = [*MODULE_COMMAND, "training.launching.rank_process", str(job.files.runs), "--launched"]
    with (
        hosts(job.settings.workers) as where,
        job.files.log.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            rank_command(job.settings, worker, where, folder=job.folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=rank_environment(job.settings, where),
        ) as process,
    ):
        limit = StartLimit(job.files, job.settings, partial(_stop, process), job.on_wait)
        try:
            _follow(process, job.tell)
        except BaseException:
            # On Ctrl-C and on errors: no rank may outlive its launcher.
            _stop(process)
            raise
        finally:
            limit.end()
            job.files.end_ranks_here()
    return process.returncode, limit.late


def _follow(process: subprocess.Popen[str], tell: Tell) -> None:
    if process.stdout is None:
        raise AssertionError("the ranks were started without a pipe for their output")
    for line in process.stdout:
        try:
            content = json.loads(line)
            number, progress = content.pop("run"), Progress(**content)
        except (ValueError, TypeError, LookupError, AttributeError):
            # MPI's own messages; they matter only if the run fails, and the error then quotes ranks.log.
            continue
        tell(number, progress)
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
    return (
        f"was ended by signal {-status} ({signal.strsignal(-status)})"
        if status < 0
        else f"ended with {status}"
    )


def _raise_error_of_rank(files: LaunchFiles) -> None:
    """Raise the error of the rank that failed first, if one has failed."""
    failed = files.first_error()
    if failed is not None:
        rank, content = failed
        raise_described(f"training failed on rank {rank}", content)


def _raise_stall(settings: TrainSettings, files: LaunchFiles, late: str) -> None:
    """Raise a stall, or a start that took too long, if there was one."""
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


def _raise_failed_start(settings: TrainSettings, files: LaunchFiles, status: int) -> NoReturn:
    lost, log = files.lost_ranks(), files.log.read_text(errors="replace")
    before = f"a rank was lost ({lost[-1]}), and then " if lost else ""
    if status < 0:
        raise LaunchError(
            f"{before}{settings.launcher} {_how_it_ended(status)} while the ranks started: out of memory, a limit "
            f"of this machine, or a person? The ranks ended too; the same command starts them again."
        )
    raise LaunchError(
        f"{before}the ranks did not start: status {status}: {parse_rank_loss(log) or 'no output'}\n"
        f"The last output:\n{without_noise(log)[-_LAST_WORDS:]}\n"
        f"If it names an option, check train.launcher_args. Else run `python -m pipeline doctor`, or train "
        f"with --workers 1 to see whether MPI is the cause."
    )
