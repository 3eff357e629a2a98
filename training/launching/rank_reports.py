"""Reports between ranks and launcher: errors, and small files in the folder of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Self

import psutil

from features.errors import FeatureError
from hep_core.allocation import lack_of_memory, limit_and_advice
from hep_core.atomic_files import new_file
from hep_core.input_errors import InputFileError
from hep_core.integrity import DamagedOutputError
from hep_core.plugins import PluginError, plugin_error
from models.errors import ModelError
from training.errors import DivergedError, LaunchError, TrainingError
from training.loop.watchdog import RunningTime
from training.settings import TrainSettings

#: The modules that ranks run.
_PROGRAMS: Final = {"training.launching.rank_process", "training.launching.agent_process"}
#: Errors that are no bug of this program. A full disk, for example, is an OSError, and a server that
#: does not answer an InputFileError.
_KNOWN_ERRORS: Final = (
    TrainingError,
    ModelError,
    FeatureError,
    InputFileError,
    PluginError,
    DamagedOutputError,
    OSError,
)
#: Variables in which launchers tell a process its rank, before MPI has begun.
_RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def rank_from_environment(environment: Mapping[str, str]) -> int | None:
    """Return the rank that a launcher told a process by its environment; None without one."""
    for name in _RANK_VARIABLES:
        if name in environment:
            return int(environment[name])
    return None


class RankError(NamedTuple):
    """An error of a rank in plain values, from which the launcher raises it again."""

    known: bool
    """Whether it is no bug of this program."""
    diverged: bool
    """Whether the loss is no longer finite."""
    damaged: bool
    """Whether an output of an earlier stage is damaged."""
    message: str
    traceback: str

    @classmethod
    def from_exception(cls, error: BaseException) -> Self:
        """Describe an error.

        If a plugin of the user caused it, the plugin's error is described. A lack of memory gets a
        message with the limit and advice.
        """
        cause = plugin_error(error) or error
        message = str(cause) or type(cause).__name__
        is_known = isinstance(cause, _KNOWN_ERRORS)
        memory_reason = lack_of_memory(error)
        if memory_reason:
            is_known = True
            message = (
                f"there is no memory ({memory_reason}): "
                f"on {socket.gethostname()} {limit_and_advice(memory_reason)}"
            )
        return cls(
            known=is_known,
            diverged=isinstance(error, DivergedError),
            damaged=isinstance(error, DamagedOutputError),
            message=message,
            traceback="".join(traceback.format_exception(error)),
        )

    def raise_again(self, location: str) -> NoReturn:
        """Raise the error in this process, with the type that the launcher's callers expect.

        An unknown error, a bug, becomes a `RuntimeError` with the traceback of the rank.

        `location`: names the rank, at the begin of the message.
        """
        if self.damaged:
            damage = DamagedOutputError.from_message(self.message)
            if damage:
                raise damage
        message = f"{location}: {self.message}"
        if self.diverged:
            raise DivergedError(message)
        if self.known:
            raise LaunchError(message)
        error = RuntimeError(message)
        error.add_note(self.traceback)
        raise error


class Heartbeat(NamedTuple):
    """A rank's note of how far its start is."""

    host: str
    pid: int
    """Number of its process on this host."""
    what: str
    """How far it is; it completes a sentence that begins with the rank."""


class LaunchFiles:
    """The files in the folder of a run through which ranks and launcher report to each other."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs.json"
        """The runs that the ranks have to do."""
        self.log = folder / "ranks.log"
        """The output of the ranks."""
        self._started = folder / "started"
        """Exists as soon as all ranks have found each other."""
        self._errors = folder / "errors"
        """Folder of `rank-<n>.json`, the error of a rank."""
        self.present = folder / "present"
        """Folder of `rank-<n>.json`, a `Heartbeat` during the start."""
        self.stalls = folder / "stalls"
        """Folder of `rank-<n>.json`, a report at a standstill; see `Watchdog`."""
        self.signs = folder / "signs"
        """Folder of `rank-<n>`, which a rank touches when it makes progress; see `Watchdog`."""
        self._lost_ranks = folder / "lost_ranks.jsonl"
        """A line for each loss of a rank in this command: its cause, and whether in a start."""

    def clear(self) -> None:
        """Remove all files except the losses, before each attempt."""
        self._started.unlink(missing_ok=True)
        for path in (self._errors, self.present):
            shutil.rmtree(path, ignore_errors=True)
        self.clear_stalls()

    def clear_stalls(self) -> None:
        """Remove the reports before the ranks begin to watch, since any report ends the job."""
        for path in (self.stalls, self.signs):
            shutil.rmtree(path, ignore_errors=True)

    def read_log(self) -> str:
        """Return the output of the ranks so far."""
        return self.log.read_text(errors="replace")

    def write_heartbeat(self, activity: str) -> None:
        """Note how far the start of this rank is.

        A rank that does not know its number before MPI has begun notes nothing. `activity`:
        completes a sentence that begins with the rank.
        """
        rank = rank_from_environment(os.environ)
        # Errors of the file system are ignored, since a host that lacks the folder says so later.
        with suppress(OSError):
            if rank is not None:
                heartbeat = Heartbeat(socket.gethostname(), os.getpid(), activity)
                _write(self.present / f"rank-{rank}.json", heartbeat._asdict())

    def heartbeats(self) -> dict[int, Heartbeat]:
        """Return the note of each rank about its start, by rank."""
        heartbeats: dict[int, Heartbeat] = {}
        for path in self.present.glob("rank-*.json"):
            heartbeats[_rank_of_path(path)] = Heartbeat(**_read(path))
        return heartbeats

    def end_ranks_here(self) -> None:
        """Kill the ranks on this host that outlive their launcher.

        They would write beside those of the next start. A process is a rank if the number from its
        heartbeat still belongs to a process that runs one of our programs.
        """
        for heartbeat in self.heartbeats().values():
            if heartbeat.host == socket.gethostname():
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(heartbeat.pid)
                    if _PROGRAMS & {*process.cmdline()}:
                        process.kill()
                        process.wait()

    def mark_started(self) -> None:
        """Note that all ranks have found each other: the start has succeeded."""
        self._started.touch()

    @property
    def has_started(self) -> bool:
        """Whether all ranks have started."""
        return self._started.exists()

    def report_error(self, rank: int, error: BaseException) -> None:
        """Write a rank's error."""
        _write(self._errors / f"rank-{rank}.json", RankError.from_exception(error)._asdict())

    def first_error(self) -> tuple[int, RankError] | None:
        """Return the rank that failed first, by the times of the files, and its error; or None."""
        paths = sorted(self._errors.glob("rank-*.json"), key=lambda path: path.stat().st_mtime_ns)
        return (_rank_of_path(paths[0]), RankError(**_read(paths[0]))) if paths else None

    def record_loss(self, cause: str) -> None:
        """Record that a rank was lost, and whether all ranks had started."""
        loss = {"what": cause, "in_start": not self.has_started}
        with self._lost_ranks.open("a", encoding="utf-8") as file:
            file.write(json.dumps(loss) + "\n")

    def lost_ranks(self) -> list[str]:
        """Return the causes of the losses so far, the first one first."""
        return [loss["what"] for loss in self._losses()]

    def last_start_failed(self) -> bool:
        """Return whether the last loss was before all ranks had started."""
        losses = self._losses()
        return bool(losses) and losses[-1]["in_start"]

    def _losses(self) -> list[dict[str, Any]]:
        """Return the losses so far, the first one first."""
        if not self._lost_ranks.exists():
            return []
        lines = self._lost_ranks.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def forget_losses(self) -> None:
        """Remove the losses of an earlier command."""
        self._lost_ranks.unlink(missing_ok=True)


def _write(path: Path, report: dict[str, Any]) -> None:
    """Write a report as JSON, atomically; the folder is made if it is missing."""
    path.parent.mkdir(exist_ok=True)
    with new_file(path) as unfinished:
        unfinished.write_text(json.dumps(report), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _rank_of_path(path: Path) -> int:
    return int(path.stem.removeprefix("rank-"))


#: Least time without any news from a start [s]; a rank needs seconds to load its libraries.
_LEAST_SECONDS: Final = 300.0
#: Time for mpirun to end after the ranks have reported a standstill [s].
_END_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.5
#: Length of a start after which it says what it waits for; then after twice as long, and so on [s].
_SILENCE_SECONDS: Final = 20.0
_MAX_RANKS_IN_MESSAGE: Final = 3
_WAIT_OF_SRUN: Final = re.compile(r"^srun: .*(temporarily disabled|queued|waiting|retrying)")


class StartLimit:
    """A thread that stops a launcher whose ranks do not start, or that does not end after a stall.

    The time counts from the last news: a rank began, is in MPI, or trains. Of each time in which
    this process was suspended, 3 s count at most.

    `settings`: number of ranks and the time without progress. `on_wait`: called now and then with a
    sentence about the wait of a long start.
    """

    def __init__(
        self,
        files: LaunchFiles,
        settings: TrainSettings,
        stop: Callable[[], None],
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._files, self._settings, self._stop, self._on_wait = files, settings, stop, on_wait
        self._limit_seconds = max(settings.stall_seconds, _LEAST_SECONDS)
        self.missing_ranks = ""
        """The ranks that did not start, as text; empty unless the launcher was stopped for that."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching: the launcher has ended."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        """Stop the launcher, if needed, until the launch is over; runs in the thread.

        There are two reasons: the ranks have reported a standstill, but mpirun does not end within
        20 s; or the start has had no news for longer than the limit. Meanwhile a long start says
        what it waits for, after 20 s, 40 s, 80 s and so on.
        """
        running = RunningTime(self._limit_seconds)
        begin = last_news = running.seconds()
        last_heartbeats = -1
        silence_seconds = _SILENCE_SECONDS
        while not self._is_over.wait(_LOOK_SECONDS):
            if self._files.stalls.exists():
                if not self._is_over.wait(_END_SECONDS):
                    self._stop()
                return
            heartbeat_paths = self._files.present.glob("rank-*.json")
            # The sum of the times changes with each new or changed heartbeat.
            heartbeats = sum(path.stat().st_mtime_ns for path in heartbeat_paths)
            training = {path.name for path in self._files.signs.glob("rank-*")}
            now = running.seconds()
            if now - begin > silence_seconds and not self._files.has_started:
                reason = self._describe_wait(training)
                self._on_wait(f"for {silence_seconds:g} s the start waits: {reason}")
                silence_seconds *= 2
            # When all ranks train, the start is over, and the watchdog takes care of stalls.
            if heartbeats != last_heartbeats or len(training) == self._settings.workers:
                last_heartbeats, last_news = heartbeats, now
            elif now - last_news > self._limit_seconds:
                missing = "\n".join(self._describe_missing(training))
                self.missing_ranks = (
                    f"the ranks did not start within {self._limit_seconds:g} s:\n{missing}"
                )
                self._stop()
                return

    def _describe_wait(self, training: set[str]) -> str:
        """Return the reason for which the start waits, on one line.

        It is the last message of srun about a wait, else the first three ranks that do not train.

        `training`: names of the signs of the ranks that train, `rank-<n>`.
        """
        log_lines = self._files.read_log().splitlines()
        waits_of_srun = [line for line in log_lines if _WAIT_OF_SRUN.search(line)]
        if waits_of_srun:
            return (
                f"{waits_of_srun[-1].strip()}; "
                f"an earlier step of this job may still end on these nodes"
            )
        missing = [line.strip() for line in self._describe_missing(training)]
        num_more = len(missing) - _MAX_RANKS_IN_MESSAGE
        text = ", ".join(missing[:_MAX_RANKS_IN_MESSAGE])
        return f"{text} and {num_more} more" if num_more > 0 else text

    def _describe_missing(self, training: set[str]) -> list[str]:
        """Return a line about each rank that does not train yet: how far its start is.

        `training`: as in `_describe_wait`.
        """
        heartbeats = self._files.heartbeats()
        lines: list[str] = []
        for rank in range(self._settings.workers):
            if f"rank-{rank}" in training:
                continue
            if rank in heartbeats:
                heartbeat = heartbeats[rank]
                lines.append(f"  rank {rank} on {heartbeat.host}: {heartbeat.what}")
            else:
                lines.append(f"  rank {rank}: its process did not come")
        return lines
