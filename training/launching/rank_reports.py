"""What ranks and launcher report to each other: errors, and small files in the folder of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil

from features.errors import FeatureError
from hep_core.allocation import lack_of_memory, limit_and_advice
from hep_core.atomic_files import new_file
from hep_core.integrity import DamagedOutputError
from hep_core.plugins import PluginError, plugin_error
from models.errors import ModelError
from training.errors import DivergedError, LaunchError, TrainingError
from training.settings import TrainSettings

#: The modules that ranks run.
_PROGRAMS: Final = {"training.launching.rank_process", "training.launching.agent_process"}
_RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def described(error: BaseException) -> dict[str, Any]:
    """An error in plain values, from which another process raises it again."""
    told = plugin_error(error) or error
    message = str(told) or type(told).__name__
    reason = lack_of_memory(error)
    if reason:
        message = (
            f"there is no memory ({reason}): on {socket.gethostname()} {limit_and_advice(reason)}"
        )
    known = isinstance(
        told, TrainingError | ModelError | FeatureError | PluginError | DamagedOutputError | OSError
    )
    return {
        # A full disk, for example, is no bug of this program.
        "known": known or bool(reason),
        "diverged": isinstance(error, DivergedError),
        "damaged": isinstance(error, DamagedOutputError),
        "message": message,
        "traceback": "".join(traceback.format_exception(error)),
    }


def raise_described(where: str, content: dict[str, Any]) -> NoReturn:
    """Raise what `described` gave."""
    if content["damaged"] and (damage := DamagedOutputError.from_message(content["message"])):
        raise damage
    message = f"{where}: {content['message']}"
    if content["known"]:
        raise (DivergedError if content["diverged"] else LaunchError)(message)
    error = RuntimeError(message)
    error.add_note(content["traceback"])
    raise error


class LaunchFiles:
    """`present/`, `errors/` and `stalls/rank-<n>.json`, `signs/rank-<n>`, `started`, `lost_ranks.jsonl`, and more."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs.json"
        """Tells the ranks what is left to do."""
        self.log = folder / "ranks.log"
        """What the ranks print."""
        self._started = folder / "started"
        self._errors = folder / "errors"
        self.present = folder / "present"
        self.stalls = folder / "stalls"
        self.signs = folder / "signs"
        self._lost_ranks = folder / "lost_ranks.jsonl"

    def clear(self) -> None:
        """Remove all files except the losses, before each attempt."""
        self._started.unlink(missing_ok=True)
        for path in (self._errors, self.present):
            shutil.rmtree(path, ignore_errors=True)
        self.clear_stalls()

    def write_heartbeat(self, what: str) -> None:
        """Note how far the start of this rank is, as far as it knows its number before MPI has begun."""
        found = [os.environ[name] for name in _RANK_VARIABLES if name in os.environ]
        # A host that does not see the folder says so later.
        with suppress(OSError):
            if found:
                content = {"host": socket.gethostname(), "pid": os.getpid(), "what": what}
                _write(self.present / f"rank-{found[0]}.json", content)

    def presence(self) -> dict[int, dict[str, Any]]:
        """What each rank has noted of its start: its host, process and how far it is."""
        return dict(map(_read, self.present.glob("rank-*.json")))

    def end_ranks_here(self) -> None:
        """End the ranks on this host that outlive their launcher: they would write beside those of the next start."""
        for content in self.presence().values():
            if content["host"] == socket.gethostname():
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(content["pid"])
                    if _PROGRAMS & {*process.cmdline()}:
                        process.kill()
                        process.wait()

    def clear_stalls(self) -> None:
        """Remove the reports before the ranks begin to watch, since any report ends the job."""
        for path in (self.stalls, self.signs):
            shutil.rmtree(path, ignore_errors=True)

    def mark_started(self) -> None:
        """All ranks have found each other."""
        self._started.touch()

    @property
    def has_started(self) -> bool:
        """Whether all ranks have started."""
        return self._started.exists()

    def report_error(self, rank: int, error: BaseException) -> None:
        """Write a rank's error."""
        _write(self._errors / f"rank-{rank}.json", described(error))

    def first_error(self) -> tuple[int, dict[str, Any]] | None:
        """The rank that failed first, and its error."""
        first = min(
            self._errors.glob("rank-*.json"), key=lambda path: path.stat().st_mtime_ns, default=None
        )
        return None if first is None else _read(first)

    def record_loss(self, words: str) -> None:
        """Record that a rank was lost."""
        with self._lost_ranks.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": words}) + "\n")

    def lost_ranks(self) -> list[str]:
        """Sentences about the losses so far."""
        if not self._lost_ranks.exists():
            return []
        return [
            json.loads(line)["what"]
            for line in self._lost_ranks.read_text(encoding="utf-8").splitlines()
        ]


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    with new_file(path) as unfinished:
        unfinished.write_text(json.dumps(content), encoding="utf-8")


def _read(path: Path) -> tuple[int, dict[str, Any]]:
    """The number of a rank, and what it wrote."""
    return int(path.stem.removeprefix("rank-")), json.loads(path.read_text(encoding="utf-8"))


#: Least time without any news from a start [s]; a rank needs seconds to load its libraries.
_LEAST_SECONDS: Final = 300.0
#: Time for mpirun to end after the ranks have reported a standstill [s].
_END_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.5
#: Length of a start after which it says what it waits for; then after twice as long, and so on [s].
_SILENCE_SECONDS: Final = 20.0
_RANKS_SHOWN: Final = 3
_WAIT_OF_SRUN: Final = re.compile(r"^srun: .*(temporarily disabled|queued|waiting|retrying)")


class StartLimit:
    """A thread that stops a launcher whose ranks do not start, or that does not end after a standstill.

    The time counts from the last news: a rank began, is in MPI, or trains.

    `settings`: number of ranks and the time without progress. `on_wait`: called now and then with what a long start
    waits for.
    """

    def __init__(
        self,
        files: LaunchFiles,
        settings: TrainSettings,
        stop: Callable[[], None],
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._files, self._settings, self._stop, self._on_wait = files, settings, stop, on_wait
        self._seconds = max(settings.stall_seconds, _LEAST_SECONDS)
        self.late = ""
        """What did not come, if the launcher was stopped for that."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The launcher has ended."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        seen, since = -1, time.monotonic()
        begun, silence = time.monotonic(), _SILENCE_SECONDS
        while not self._over.wait(_LOOK_SECONDS):
            if self._files.stalls.exists():
                if not self._over.wait(_END_SECONDS):
                    self._stop()
                return
            news = sum(path.stat().st_mtime_ns for path in self._files.present.glob("rank-*.json"))
            trains = {path.name for path in self._files.signs.glob("rank-*")}
            if time.monotonic() - begun > silence and not self._files.has_started:
                self._on_wait(f"for {silence:g} s the start waits: {self._awaited(trains)}")
                silence *= 2
            if news != seen or len(trains) == self._settings.workers:
                seen, since = news, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                self.late = (
                    f"the ranks did not start within {self._seconds:g} s:\n{self._missing(trains)}"
                )
                self._stop()
                return

    def _awaited(self, trains: set[str]) -> str:
        """What the start waits for, on one line."""
        log = self._files.log.read_text(errors="replace")
        waits_of_srun = [line for line in log.splitlines() if _WAIT_OF_SRUN.search(line)]
        if waits_of_srun:
            return f"{waits_of_srun[-1].strip()}; an earlier step of this job may still end on these nodes"
        missing = self._missing(trains).splitlines()
        more = f" and {len(missing) - _RANKS_SHOWN} more" if len(missing) > _RANKS_SHOWN else ""
        return ", ".join(line.strip() for line in missing[:_RANKS_SHOWN]) + more

    def _missing(self, trains: set[str]) -> str:
        present = self._files.presence()
        lines = [
            f"  rank {rank} on {present[rank]['host']}: {present[rank]['what']}"
            if rank in present
            else f"  rank {rank}: its process did not come"
            for rank in range(self._settings.workers)
            if f"rank-{rank}" not in trains
        ]
        return "\n".join(lines)
