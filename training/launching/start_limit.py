"""The launcher's watch over the ranks until their own watchdogs run, and over an mpirun that does not see their end."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from ingestion.environment import PROGRAM
from training.launching import loopback_only
from training.launching.rank_reports import LaunchFiles
from training.settings import TrainSettings

#: Least time without any news from a start [s]; a rank needs seconds to load its libraries.
_LEAST_SECONDS: Final = 300.0
#: Time for mpirun to end after the ranks have reported a standstill [s].
_END_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.5
#: Arguments that may lead mpirun to other hosts, and variables of an allocation or a list of hosts.
_OTHER_HOSTS: Final = re.compile(r"host|file|^-H$|dvm|plm|ras")
_ALLOCATION: Final = re.compile(r"(SLURM_JOB|PBS_|LSB_|FLUX_|PE_HOST|.*hostfile$)")
#: The modules that ranks run.
_PROGRAMS: Final = {"training.launching.rank_process", "training.agents.agent_process"}
_RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def without_network(settings: TrainSettings, where: Sequence[str], folder: Path) -> list[str]:
    """Words before mpirun that keep the network out of a run on this host alone; none for several hosts.

    Args:
        settings: Launcher and its arguments.
        where: Further arguments of mpirun.
        folder: The ranks need it.
    """
    leads_away = where or any(_OTHER_HOSTS.search(word) for word in settings.launcher_args)
    if settings.launcher != "mpirun" or leads_away or any(_ALLOCATION.match(name) for name in os.environ):
        return []
    return [*PROGRAM, loopback_only.__name__, str(folder)] if sys.platform == "linux" else []


def say_present(files: LaunchFiles, what: str) -> None:
    """Note how far the start of this rank is, as far as it knows its number before MPI has begun."""
    found = [os.environ[name] for name in _RANK_VARIABLES if name in os.environ]
    # A host that does not see the folder says so later.
    with suppress(OSError):
        if found:
            files.present.mkdir(exist_ok=True)
            content = {"host": socket.gethostname(), "pid": os.getpid(), "what": what}
            path = files.present / f"rank-{found[0]}.json"
            path.with_suffix(".new").write_text(json.dumps(content), encoding="utf-8")
            path.with_suffix(".new").replace(path)


def end_ranks_here(files: LaunchFiles) -> None:
    """End the ranks on this host that outlive their launcher: they would write beside those of the next start."""
    for path in files.present.glob("rank-*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["host"] == socket.gethostname():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(content["pid"])
                if _PROGRAMS & {*process.cmdline()}:
                    process.kill()
                    process.wait()


class StartLimit:
    """A thread that stops a launcher whose ranks do not start, or that does not end after a standstill.

    The time counts from the last news: a rank began, is in MPI, or trains.

    Args:
        files: What the ranks report.
        settings: Number of ranks and the time without progress.
        stop: Ends the launcher.
    """

    def __init__(self, files: LaunchFiles, settings: TrainSettings, stop: Callable[[], None]) -> None:
        self._files, self._settings, self._stop = files, settings, stop
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
        while not self._over.wait(_LOOK_SECONDS):
            if self._files.stalls.exists():
                if not self._over.wait(_END_SECONDS):
                    self._stop()
                return
            news = sum(path.stat().st_mtime_ns for path in self._files.present.glob("rank-*.json"))
            trains = {path.name for path in self._files.signs.glob("rank-*")}
            if news != seen or len(trains) == self._settings.workers:
                seen, since = news, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                self.late = f"the ranks did not start within {self._seconds:g} s:\n{self._missing(trains)}"
                self._stop()
                return

    def _missing(self, trains: set[str]) -> str:
        lines = []
        for rank in range(self._settings.workers):
            path = self._files.present / f"rank-{rank}.json"
            content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            if content is None:
                lines.append(f"  rank {rank}: its process did not come")
            elif path.stem not in trains:
                lines.append(f"  rank {rank} on {content['host']}: {content['what']}")
        return "\n".join(lines)
