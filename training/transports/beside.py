"""A thread that talks to other ranks while the worker computes: one job at a time, and help for partners in between."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from training.transports.mpi_process import MpiProcess

#: Interval at which the thread serves partners, if MPI does so only within a call [s].
_POKE_SECONDS: Final = 1e-3


class Beside:
    """The thread of one shared vector, and the turns at MPI of its two threads.

    Args:
        process: This rank.
        with_thread: Whether there may be a thread.
        poke: Whether partners need this rank to enter MPI regularly.
        name: Name of the thread.
    """

    def __init__(self, process: MpiProcess, *, with_thread: bool, poke: bool, name: str) -> None:
        self._process = process
        self._turn = process.turn
        self._poke = poke
        self._name = name
        self.blocked_seconds = 0.0
        """Time that the owner has waited for the thread [s]."""
        self.beside_seconds = 0.0
        """Time of the thread's jobs [s]."""
        #: Held while the thread has a job.
        self._under_way = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        if with_thread and poke:
            self._start_thread()

    @property
    def is_under_way(self) -> bool:
        """Whether the thread has a job."""
        return self._under_way.locked()

    def begin(self, job: Callable[[], object]) -> bool:
        """Run a job in the thread; False: the job before is still under way."""
        self.raise_error()
        if not self._under_way.acquire(blocking=False):
            return False
        if self._thread is None:
            self._start_thread()
        self._jobs.put(job)
        return True

    def drain(self) -> float:
        """Wait for the end of the job; returns the time spent waiting [s]."""
        started = perf_counter()
        with self._under_way:
            blocked = perf_counter() - started
        self.blocked_seconds += blocked
        return blocked

    def close(self) -> float:
        """End the thread, and serve partners until all ranks are here; returns the time spent waiting for them [s]."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        started = perf_counter()
        self._process.wait_for_all()
        return perf_counter() - started

    @contextmanager
    def own_turn(self) -> Iterator[float]:
        """The turn of the owner's thread at MPI; gives the time spent waiting for it [s]."""
        self.raise_error()
        started = perf_counter()
        with self._turn:
            blocked = perf_counter() - started
            self.blocked_seconds += blocked
            if self._poke:
                self._process.poke()
            yield blocked

    def raise_error(self) -> None:
        """Raise the error of the last job, if there was one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _start_thread(self) -> None:
        # A daemon, since nothing stops the thread after a failed training.
        self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Main loop of the thread: run the jobs until a job is None."""
        while (job := self._next_job()) is not None:
            try:
                with self._turn:
                    started = perf_counter()
                    job()
                    self.beside_seconds += perf_counter() - started
            except BaseException as error:  # noqa: BLE001 - it is raised where the result would have been used
                self._error = error
            finally:
                self._under_way.release()

    def _next_job(self) -> Callable[[], object] | None:
        while self._poke and self._error is None:
            try:
                return self._jobs.get(timeout=_POKE_SECONDS)
            except queue.Empty:
                self._serve_partners()
        return self._jobs.get()

    def _serve_partners(self) -> None:
        try:
            with self._turn:
                self._process.poke()
        except BaseException as error:  # noqa: BLE001 - as above
            self._error = error
