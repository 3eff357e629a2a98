"""The common part of the centres of MPI ranks: a thread makes commits beside the computation."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

from training.transports.basics import run_now
from training.transports.beside import Beside
from training.transports.centre import EVERYWHERE, Commit, Rule, ShardedCentre, Where
from training.transports.mpi_process import MpiProcess
from training.transports.shards import Layout


class ThreadedCentre(ShardedCentre):
    """One rank's view of the centre.

    Args:
        process: This rank.
        layout: The shards.
        with_thread: Whether a thread makes commits beside the computation.
        poke: Whether others need this rank to enter MPI regularly.
    """

    def __init__(self, process: MpiProcess, layout: Layout, *, with_thread: bool, poke: bool) -> None:
        super().__init__(layout, rank=process.comm.rank, now=time.perf_counter)
        self._process = process
        self._with_thread = with_thread
        self._beside = Beside(process, with_thread=with_thread, poke=poke, name="commits")

    @property
    @override
    def is_under_way(self) -> bool:
        return self._beside.is_under_way

    @override
    def begin_commit(self, rule: Rule, where: Where = EVERYWHERE) -> bool:
        """Begin a commit in the thread; without a thread, make it at once."""
        if not self._with_thread:
            self._ended = run_now(self.commit(rule, where))
            return True
        is_begun = self._beside.begin(lambda: run_now(self._commit_beside(rule, where)))
        self._skipped += not is_begun
        return is_begun

    @override
    async def drain(self) -> Commit | None:
        blocked = self._beside.drain()
        self.waited += blocked
        self._blocked_seconds += blocked
        self._beside.raise_error()
        return self._take_ended()

    @override
    async def close(self) -> None:
        """Close the centre; ranks that come early serve the others until all are here."""
        self.waited += self._beside.close()
        self._free()
        self._beside.raise_error()

    @override
    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        with self._beside.own_turn() as blocked:
            self.waited += blocked
            self._blocked_seconds += blocked
            yield

    @abstractmethod
    def _free(self) -> None:
        """Free what carries the commits, after the last one of any rank."""
