"""Stale-synchronous steps around any other method (Ho et al. 2013; Hermans 2017, section 2.4.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from dataclasses import replace

import numpy as np
from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, Counters
from training.algorithms.wrapper import Wrapper
from training.transports.basics import Vector


class StaleSynchronous(Wrapper):
    """Let a worker wait while it is more than s steps ahead of the slowest one.

    After each step a worker sends a message without content to all others, and begins to receive
    theirs of the same step. Before the next step it waits for the messages that belong to its step
    s + 1 steps ago. With s = 0 the workers step together.

    `base`: the method whose steps are bounded. `bound`: s.
    """

    SCRATCH = ("_open_messages",)
    """Attributes that checkpoints leave out."""

    def __init__(self, base: Algorithm, *, bound: int) -> None:
        super().__init__(base)
        self.traits = replace(base.traits, equal_steps=True)
        self._bound = bound
        ranks = range(self.transport.world_size)
        self._other_ranks = [rank for rank in ranks if rank != self.transport.rank]
        #: Messages of the last steps, the oldest first, for which this worker has not waited yet.
        self._open_messages: deque[Awaitable[list[Vector]]] = deque()
        self._num_bounded_steps = 0

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Wait for workers that are too far behind, then take a step of the base method."""
        if len(self._open_messages) > self._bound:
            self._num_bounded_steps += 1
        await self._wait_for_others(max_steps_ahead=self._bound)
        await self.base.step(compute_gradient, num_samples)
        # Only the arrival of the byte counts.
        message = np.zeros(1, np.int8)
        self._open_messages.append(self.transport.begin_exchange(message, self._other_ranks))

    @override
    def counters(self) -> Counters:
        """Return the base method's counts, and the number of steps for which it had to wait."""
        return {**self.base.counters(), "bounded_steps": self._num_bounded_steps}

    @override
    async def quiesce(self) -> None:
        """Wait until all others have taken as many steps as this worker, and average no more."""
        await self._wait_for_others(max_steps_ahead=0)
        await self.base.quiesce()

    async def _wait_for_others(self, *, max_steps_ahead: int) -> None:
        """Wait until this worker is at most this number of steps ahead of each other one."""
        while len(self._open_messages) > max_steps_ahead:
            await self._open_messages.popleft()
