"""The memory of ranks on this host, and whether the kernel kills some of them for it."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import Final, Self

import psutil

from hep_core.allocation import MIB, killed_for_memory, line_about_memory, memory_limit
from hep_core.scarce_memory import prefer_to_kill
from training.launching.rank_reports import LaunchFiles, rank_from_environment

#: Messages of launchers and batch systems after a signal or a lack of memory has ended a rank.
_ENDED: Final = re.compile(
    r"on signal \d|oom[- _]?kill|srun: error: .*(Killed|Out Of Memory)", re.IGNORECASE
)
_SECONDS_BETWEEN_LOOKS: Final = 0.5


class MemoryWatch:
    """Watches one start of the ranks, from `with` on to the end of that block."""

    def __init__(self, files: LaunchFiles) -> None:
        self._files = files
        self._largest: dict[int, int] = {}
        """Highest memory of each rank on this host [bytes]."""
        self._killed_before = killed_for_memory()
        """Number of processes that the kernel had killed for memory before the start."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._measure_ranks, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _measure_ranks(self) -> None:
        """Measure the memory of the ranks on this host twice a second; runs in the thread.

        A rank may be killed while it loads its libraries, before its first heartbeat. Until all
        ranks have started, those that this process launches are also known by their environment.
        """
        while not self._is_over.wait(_SECONDS_BETWEEN_LOOKS):
            if not self._files.has_started:
                self._measure_launched_ranks()
            for rank, heartbeat in self._files.heartbeats().items():
                if heartbeat.host == socket.gethostname():
                    with suppress(psutil.Error):
                        self._measure(rank, psutil.Process(heartbeat.pid))

    def _measure_launched_ranks(self) -> None:
        """Measure the descendants of this process that a launcher has given a rank."""
        for process in psutil.Process().children(recursive=True):
            # A process may end at any time.
            with suppress(psutil.Error, OSError):
                rank = rank_from_environment(process.environ())
                if rank is not None:
                    prefer_to_kill(process.pid)
                    self._measure(rank, process)

    def _measure(self, rank: int, process: psutil.Process) -> None:
        """Measure the memory of a rank, and keep the highest value."""
        num_bytes = process.memory_info().rss
        self._largest[rank] = max(num_bytes, self._largest.get(rank, 0))

    def largest(self) -> str:
        """Return the highest memory of each rank on this host so far [MiB], as text."""
        largest = sorted(self._largest.items())
        return ", ".join(f"rank {rank} {num_bytes // MIB:,}" for rank, num_bytes in largest)

    def kill(self, *, by_signal: bool) -> str:
        """Return a description of a kill for memory, with limit and need; empty if there was none.

        The surest sign is the kernel's counter of kills. The next one is a line of the log about
        memory, if a signal ended the launcher, or the log shows that a rank was ended. Alone such a
        line does not count, since libraries warn of memory that they can do without.

        `by_signal`: whether a signal ended the launcher.
        """
        num_killed = killed_for_memory() - self._killed_before
        if num_killed > 0:
            largest = self.largest()
            held = f"; the ranks held up to [MiB]: {largest}" if largest else ""
            return (
                f"the kernel has killed {num_killed} process(es) for memory: {memory_limit()}{held}"
            )
        log = self._files.read_log()
        line = line_about_memory(log, of_host=True)
        if line and (by_signal or _ENDED.search(log)):
            return f"a rank got no memory, or was killed for it ({line}); here {memory_limit()}"
        return ""
