"""A test of the one-sided MPI operations that averages need, on both neighbours, in a tenth of a second."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from training.transports.loading import load_mpi
from training.transports.window_memory import allocate, own_memory

if TYPE_CHECKING:
    from mpi4py import MPI

_REPEATS: Final = 20
_NAP: Final = 0.03
#: Words of the test's window.
_COUNTED, _ACCUMULATED, _FETCHED, _STAMP, _WORDS = range(5)
_STAMP_OF_RANK_0: Final = 4711


class SelfTest(NamedTuple):
    """Result of the test, the same on all ranks."""

    problems: list[str]
    """Sentences about failed checks; empty if all passed."""
    library: str
    """Name and version of the MPI library."""
    seconds: float
    """Median time to lock a neighbour's window, read it, write it and unlock it [s]."""
    target_must_help: bool
    """Whether access to a locked window has to wait until its owner enters MPI."""


def self_test(comm: MPI.Intracomm) -> SelfTest:
    """Try locks, put, get, accumulate and fetch-and-op on both neighbours of a ring, all ranks together.

    Raises:
        LaunchError: MPI cannot make a window.
    """
    mpi = load_mpi()
    window = allocate(comm, 8 * _WORDS, {8 * _STAMP: np.array([_STAMP_OF_RANK_0 + comm.rank])})
    found = _Findings(comm, window)
    problems = [f"rank {rank}: {words}" for rank, each in enumerate(comm.allgather(found.problems())) for words in each]
    needed = comm.allreduce(found.target_must_help(), op=mpi.LOR) if not problems else False
    seconds = comm.allreduce(found.seconds, op=mpi.MAX)
    if not problems:
        window.Free()
    library = mpi.Get_library_version().split(",")[0].split("\n")[0]
    return SelfTest(problems, " ".join(library.split()), seconds, needed)


class _Findings:
    """The test on one rank."""

    def __init__(self, comm: MPI.Intracomm, window: MPI.Win) -> None:
        self._mpi = load_mpi()
        self._comm = comm
        self._window = window
        self._own = np.frombuffer(own_memory(window), np.int64, count=_WORDS)
        self._neighbours = sorted({(comm.rank + step) % comm.size for step in (-1, 1)})
        self.seconds = 0.0

    def problems(self) -> list[str]:
        """Run the checks; returns sentences about the failed ones."""
        words: list[str] = []
        for check in (self._lock, self._accumulate):
            # The barrier is outside the check, so that an error in it does not leave the other ranks waiting.
            self._comm.Barrier()
            try:
                words += check()
            except self._mpi.Exception as error:
                words.append(f"{check.__name__.strip('_')}: {error}")
        self._comm.Barrier()
        self._window.Lock(self._comm.rank)
        found = self._own.tolist()
        self._window.Unlock(self._comm.rank)
        times = _REPEATS * len(self._neighbours)
        for name, word in (("locks", _COUNTED), ("accumulate", _ACCUMULATED), ("fetch_and_op", _FETCHED)):
            if found[word] != times and not words:
                words.append(f"{name}: {times} times 1 was added, {found[word]} is there")
        return words

    def target_must_help(self) -> bool:
        """Whether a sleeping neighbour keeps this rank waiting. Half of the ranks sleep first, then the others."""
        waited = 0.0
        for phase in (0, 1):
            self._comm.Barrier()
            if self._comm.rank % 2 == phase:
                time.sleep(_NAP)
                continue
            time.sleep(_NAP / 6)
            started = time.perf_counter()
            self._count_up(self._neighbours[0])
            waited = time.perf_counter() - started
        self._comm.Barrier()
        return self._comm.size > 1 and waited > _NAP / 3

    def _lock(self) -> list[str]:
        words, times = [], []
        for _ in range(_REPEATS):
            for rank in self._neighbours:
                started = time.perf_counter()
                stamp = self._count_up(rank)
                times.append(time.perf_counter() - started)
                if stamp != _STAMP_OF_RANK_0 + rank:
                    words.append(f"get: {_STAMP_OF_RANK_0 + rank} is there, {stamp} arrived")
        self.seconds = statistics.median(times)
        return words

    def _count_up(self, rank: int) -> int:
        """Read and write under a lock; returns the stamp from the read."""
        words = np.zeros(_WORDS, np.int64)
        self._window.Lock(rank)
        self._window.Get(words, rank)
        self._window.Flush(rank)
        words[_COUNTED] += 1
        self._window.Put(words[:1], rank)
        self._window.Unlock(rank)
        return words.item(_STAMP)

    def _accumulate(self) -> list[str]:
        one, before = np.ones(1, np.int64), np.zeros(1, np.int64)
        self._window.Lock_all()
        for _ in range(_REPEATS):
            for rank in self._neighbours:
                self._window.Accumulate(one, rank, _ACCUMULATED * one.itemsize, self._mpi.SUM)
                self._window.Fetch_and_op(one, before, rank, _FETCHED * one.itemsize, self._mpi.SUM)
                self._window.Flush(rank)
        self._window.Unlock_all()
        return []
