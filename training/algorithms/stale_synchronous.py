"""Stale-synchronous steps around any other method (Ho et al. 2013; Hermans 2017, section 2.4.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from dataclasses import replace

import numpy as np

from training.algorithms.base import Algorithm, ComputeGradient, Counters, Wrapper
from training.transports.basics import Vector


class StaleSynchronous(Wrapper):
    """A worker may be at most s steps ahead of the slowest one; then it waits. With s = 0 they step together.

    After each step a worker sends an empty message to all others. Before the next one it waits for the messages of all
    others that are s + 1 steps old.
    """

    SCRATCH = ("_steps",)

    def __init__(self, base: Algorithm, *, bound: int) -> None:
        super().__init__(base)
        self.traits = replace(base.traits, equal_steps=True)
        self._bound = bound
        self._others = [
            rank for rank in range(self.transport.world_size) if rank != self.transport.rank
        ]
        self._steps: deque[Awaitable[list[Vector]]] = deque()
        self._bounded = 0

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a step of the base method, when it may be taken."""
        self._bounded += len(self._steps) > self._bound
        await self._wait_for_others(self._bound)
        await self.base.step(compute_gradient, num_samples)
        self._steps.append(self.transport.begin_exchange(np.zeros(1, np.int8), self._others))

    def counters(self) -> Counters:
        """Those of the base method, and the number of steps that needed the others' before."""
        return {**self.base.counters(), "bounded_steps": self._bounded}

    async def quiesce(self) -> None:
        """See `Algorithm`."""
        await self._wait_for_others(0)
        await self.base.quiesce()

    async def _wait_for_others(self, ahead: int) -> None:
        while len(self._steps) > ahead:
            await self._steps.popleft()
