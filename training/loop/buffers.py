"""The mean of the workers' buffers, such as the running means of batch norm, which no algorithm averages."""

from __future__ import annotations

import numpy as np

from training.algorithms.base import mean_over_workers
from training.transports.basics import Vector, is_finite
from training.transports.transport import SharedVector, Transport
from training.workloads.work import Work


class SharedBuffers:
    """Averages the buffers of all workers before a validation; each worker then continues with its own.

    Workers that meet for a validation take the exact mean. Workers that wait for nobody publish their buffers after
    each work unit, in a vector that others can read. A network without buffers takes no communication. Buffers that are
    not finite do not reach other workers; as running means never recover, their worker then takes over the mean, or the
    last ones that it published.
    """

    def __init__(self, work: Work, transport: Transport) -> None:
        self._work = work
        self._transport = transport
        self._shared: SharedVector | None = None
        self._published = np.empty(0)

    async def share(self) -> None:
        """Publish the buffers for the first time; all workers together."""
        self._published = self._work.buffers()
        if self._published.size:
            self._shared = await self._transport.shared_vector(self._published)

    async def publish(self) -> None:
        """Let the other workers read the buffers as they are now."""
        if self._shared is not None:
            present = self._work.buffers()
            if is_finite(present):
                await self._shared.add(present - self._published)
                self._published = present
            else:
                self._work.write_buffers(self._published)

    async def mean(self) -> Vector:
        """The mean of the buffers; all workers together."""
        mean = self._work.buffers()
        if mean.size:
            was_finite = is_finite(mean)
            await mean_over_workers(mean, self._transport)
            if not was_finite:
                self._work.write_buffers(mean)
        return mean

    async def snapshot(self) -> Vector:
        """The mean of the published buffers, without stopping anyone."""
        theirs = self._work.buffers()
        if self._shared is None:
            return theirs
        total = np.zeros_like(theirs)
        for rank in range(self._transport.world_size):
            await self._shared.read_of(rank, theirs)
            total += theirs
        return total / self._transport.world_size

    async def close(self) -> None:
        """Free the published buffers; all workers together."""
        if self._shared is not None:
            await self._shared.close()
