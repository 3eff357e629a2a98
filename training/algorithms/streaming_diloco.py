"""Streaming DiLoCo: fragments of the model in turn, beside the steps, in numbers of few bits.

Source: Douillard et al. 2025, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from training.algorithms.base import (
    ComputeGradient,
    Worker,
    contribution_to_mean,
    mean_of_contributions,
)
from training.algorithms.diloco import DiLoCo, OuterStepSettings
from training.algorithms.method import Traits, TransportOptions, algorithm
from training.algorithms.small_floats import SmallFloats
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import Layout
from training.transports.transport import PendingSum

#: Bits of a parameter in single precision.
_BITS_OF_PARAMETER: Final = 32


class StreamingDiLoCoSettings(OuterStepSettings):
    """Average parts of the parameters in turn after many local steps, beside the next ones."""

    name: Literal["streaming-diloco"]
    fragments: int = Field(default=4, ge=1)
    """Number P of equal parts of the model, each sent once in `local_steps` steps, at most as many
    as these."""
    overlap: int = Field(default=5, ge=0)
    """Number tau of steps while a fragment is under way, below `local_steps`; 0: workers wait for
    it."""
    mixing: float = Field(default=0.5, ge=0, lt=1)
    """Share of a worker's own fragment in what it continues from, at least 0 and below 1; the rest
    is the new outer model."""
    bits: Literal[4, 8] | None = None
    """Bits of a number that is sent, of its distance from the outer model; null: the model as it
    is. Each worker sends to all others: 8 bits save bytes for up to 7 workers, 4 for up to 15."""

    @property
    @override
    def fewest_parameters(self) -> Mapping[str, int]:
        return {f"algorithm.fragments: {self.fragments}": self.fragments}

    @override
    def smallest_message(self, workers: int) -> float:
        # A message of few bits also has a scale, which is a parameter in size.
        bits = self.bits or _BITS_OF_PARAMETER
        return bits / _BITS_OF_PARAMETER / self.fragments

    @model_validator(mode="after")
    def _fragments_have_turns(self) -> Self:
        problems = []
        if self.fragments > self.local_steps:
            problems.append(
                f"fragments: {self.fragments} have no turns in {self.local_steps} local_steps, "
                f"after each of which one is sent at most. Lower fragments to "
                f"{self.local_steps}, or raise local_steps"
            )
        if self.overlap >= self.local_steps:
            problems.append(
                f"overlap: {self.overlap} steps are no less than local_steps: "
                f"{self.local_steps}, after which the fragment is sent again. Lower overlap to "
                f"{self.local_steps - 1}, or raise local_steps"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    @override
    def transport_options(self) -> TransportOptions:
        return TransportOptions(background=self.overlap > 0)


@algorithm(
    "streaming-diloco",
    StreamingDiLoCoSettings,
    Traits(title="Streaming DiLoCo", exact_average=True),
)
class StreamingDiLoCo(DiLoCo):
    """Take DiLoCo's outer step of one fragment at a time, tau steps after the fragment was sent.

    d = x_0 - sum_j x_j / m; u <- mu u + d; x_0 <- x_0 - eta (d + mu u);
    x_j <- alpha x_j + (1 - alpha) x_0.

    All are parts of vectors: of fragment p, which is sent every H steps, first after H (p + 1) / P.
    d is made of the x_j when they were sent, and x_j is mixed as it is tau steps later. x_0 is the
    outer model, x_j that of worker j of m, u the outer momentum, mu its factor, eta the outer rate,
    and alpha the mixing.

    With a number of bits, each worker sends Q(x_0 - x_j) to all others, and all add up the same m
    messages: d = sum_j Q(x_0 - x_j) / m. Q rounds to the nearest floating-point number of this
    format (`small_floats`); the sum has the precision of the model. One fragment, without overlap,
    mixing and bits, is DiLoCo.
    """

    SCRATCH: ClassVar[Sequence[str]] = (
        "_slices",
        "_fragment_by_step",
        "_local",
        "_small_floats",
        "_under_way",
    )
    """Attributes that checkpoints leave out; a checkpoint comes after `quiesce`."""

    def __init__(self, settings: StreamingDiLoCoSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._overlap = settings.overlap
        self._mixing = settings.mixing
        #: This worker's model, on the host.
        self._local = self.model.empty()
        self._slices = Layout(self._local.size, settings.fragments).slices
        self._fragment_by_step: dict[int, int] = {}
        """The fragment that is sent after a step, by the number of the step modulo H."""
        for fragment in range(settings.fragments):
            first_step = self._local_steps * (fragment + 1) // settings.fragments
            self._fragment_by_step[first_step % self._local_steps] = fragment
        self._small_floats: SmallFloats | None = None
        if settings.bits is not None:
            self._small_floats = SmallFloats(settings.bits, self._local.dtype)
        self._other_ranks = list(range(self.transport.world_size))
        self._other_ranks.remove(self.transport.rank)
        self._num_steps = 0
        self._under_way: dict[int, Awaitable[Vector]] = {}
        """Sums of `contribution_to_mean` over the workers that have not arrived, by fragment."""
        self._arrived: dict[int, Vector] = {}
        """Sums that have arrived and are not used yet, by fragment."""

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a local step; send a fragment, and use the sum of another, if they are due."""
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
        self._num_steps += 1
        fragment_to_send = self._fragment_sent_after(self._num_steps)
        if fragment_to_send is not None:
            await self._send(fragment_to_send)
        fragment_to_use = self._fragment_sent_after(self._num_steps - self._overlap)
        if fragment_to_use is not None:
            await self._use_sum(fragment_to_use)

    def _fragment_sent_after(self, num_steps: int) -> int | None:
        """Return the fragment that is sent after a number of steps; None if there is none."""
        if num_steps <= 0:
            return None
        return self._fragment_by_step.get(num_steps % self._local_steps)

    async def _send(self, fragment: int) -> None:
        """Begin the sum of a fragment over the workers; without overlap, also wait for it."""
        elements = self._slices[fragment]
        self.model.read(self._local)
        local = self._local[elements]
        if self._small_floats is not None:
            difference = self._outer_model[elements] - local
            self._under_way[fragment] = self._begin_exchange(difference, self._small_floats)
        elif self._overlap:
            message = contribution_to_mean(local)
            pending = self.transport.begin_all_reduce(message)
            self._under_way[fragment] = self._wait_for_sum(message, pending)
        else:
            # The call of DiLoCo: the sum in the background may round in another order.
            message = contribution_to_mean(local)
            await self.transport.all_reduce_sum(message)
            self._arrived[fragment] = message

    def _begin_exchange(self, difference: Vector, small_floats: SmallFloats) -> Awaitable[Vector]:
        """Begin to send a difference, (n,), in few bits to all others; await the sum of all."""
        message = small_floats.encode(difference)
        exchange = self.transport.begin_exchange(message, self._other_ranks)
        return self._add_up(message, exchange, partial(small_floats.decode, size=difference.size))

    async def _wait_for_sum(self, message: Vector, pending: PendingSum) -> Vector:
        """Wait until a message has become the sum over all workers, and return it."""
        await pending
        return message

    async def _add_up(
        self,
        own_message: Vector,
        exchange: Awaitable[list[Vector]],
        decode: Callable[[Vector], Vector],
    ) -> Vector:
        """Return the sum of `contribution_to_mean` of the differences of all workers.

        All workers add them up in the order of the ranks, and so get the same bits.
        """
        messages = await exchange
        messages.insert(self.transport.rank, own_message)
        contributions = [contribution_to_mean(decode(message)) for message in messages]
        total = contributions[0]
        for contribution in contributions[1:]:
            total += contribution
        return total

    async def _use_sum(self, fragment: int) -> None:
        """Take the outer step of a fragment, and mix the result into the local model.

        The outer model stays as it was if no worker's fragment is finite. A local fragment that is
        not finite is replaced by the outer model.
        """
        await self._receive(fragment)
        elements = self._slices[fragment]
        outer = self._outer_model[elements]
        mean = mean_of_contributions(self._arrived.pop(fragment))
        if is_finite(mean):
            # What was sent in few bits are differences already.
            difference = mean
            if self._small_floats is None:
                difference = outer - mean
            self.take_outer_step(elements, difference)
        self.actions["averages"] += 1

        self.model.read(self._local)
        local = self._local[elements]
        if self._mixing and is_finite(local):
            local[:] = self._mixing * local + (1 - self._mixing) * outer
        else:
            local[:] = outer
        self.model.write(self._local)

    async def _receive(self, fragment: int) -> None:
        """Wait for the sum of a fragment, if it is under way."""
        under_way = self._under_way.pop(fragment, None)
        if under_way is not None:
            self._arrived[fragment] = await under_way

    @override
    async def quiesce(self) -> None:
        """Wait for the sums under way, which are used when they are due; all workers together."""
        for fragment in list(self._under_way):
            await self._receive(fragment)
        await super().quiesce()
