"""The base class of all algorithms. No torch, as in the files of the methods: the config reads their settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from training.algorithms.method import MethodSettings, Traits
from training.algorithms.saved_attributes import SavedAttributes
from training.transports.basics import Vector, is_finite
from training.transports.transport import Transport

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class VectorModel(Protocol):
    """An algorithm's view of a model: a vector of parameters and a vector of gradients, copied to and from the host."""

    flat: nn.Parameter
    """(num_parameters,) all that is trained, as the optimiser's only parameter."""

    def empty(self) -> Vector:
        """A host vector of the model's size and type, as a target of copies."""

    def read(self, out: Vector) -> None:
        """Copy the parameters to the host."""

    def write(self, values: Vector) -> None:
        """Copy the parameters from the host."""

    def read_gradient(self, out: Vector) -> None:
        """Copy the gradient to the host."""

    def write_gradient(self, values: Vector) -> None:
        """Copy the gradient from the host."""

    def gradient_is_finite(self) -> bool:
        """Whether all elements of the gradient are finite."""


ComputeGradient = Callable[[], Awaitable[None]]
"""Computes the gradient of the mean loss over the local batch, at the model's parameters, into the model."""
Counters = dict[str, Any]
"""Numbers by name; a histogram is a `Counter`."""


class StatePolicy(StrEnum):
    """Treatment of the optimiser's momentum and moments at an exact average of the models."""

    KEEP = "keep"
    """Each worker keeps its own momentum and moments, as SlowMo with Adam (Wang et al. 2019, section 5)."""
    RESET = "reset"
    """Momentum and moments restart from zero, as SlowMo does with the momentum of SGD."""


class Update(Protocol):
    """The base optimiser as a function of arrays, for methods that keep its state themselves."""

    moments: Sequence[str]
    """Names of its moments, which begin at 0."""

    def __call__(
        self,
        parameters: Vector,
        gradient: Vector,
        moments: Iterable[Vector],
        *,
        number: int,
        rate: float,
    ) -> None:
        """Change parameters and moments by one step.

        Args:
            parameters: (n,).
            gradient: (n,) stays as it is.
            moments: (n,) each, in the order of their names.
            number: Number of the step, from 1.
            rate: Learning rate.
        """


class Worker(NamedTuple):
    """What an algorithm works with."""

    model: VectorModel
    """The local model."""
    optimizer: Optimizer
    """The base optimiser over `model.flat`."""
    update: Update
    """The same optimiser, without its state."""
    transport: Transport
    """The other workers."""
    seed: int
    """Seed of the run."""
    optimizer_state: StatePolicy | None = None
    """`train.optimizer_state`."""


class Algorithm(SavedAttributes, ABC):
    """Turns local gradients into updates of the local model; a transport connects it to the other workers."""

    traits: Traits = Traits()
    momenta: Sequence[Vector] = ()
    """The method's own momentum, in place of the optimiser's: at exact averages it is treated likewise."""
    SCRATCH: ClassVar[Sequence[str]] = ("model", "optimizer", "transport")

    def __init__(self, settings: MethodSettings, worker: Worker) -> None:
        self.model, self.optimizer, self.transport = (
            worker.model,
            worker.optimizer,
            worker.transport,
        )
        self.acted: Counter[str] = Counter(dict.fromkeys(settings.counters, 0))
        """How often the method did on this worker what it does now and then."""
        self.skipped = 0
        """Number of steps without an update because the gradient or the update was not finite."""

    async def start(self) -> None:
        """Share vectors with the other workers; all workers together, before the first step."""

    @abstractmethod
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take one step.

        Args:
            compute_gradient: Fills the model's gradient.
            num_samples: Size of the local batch; 0 if the worker has no data left and thus no gradient.
        """

    async def current(self, out: Vector) -> None:
        """Copy this worker's current model, with all changes by it and its partners, into `out`."""
        self.model.read(out)

    async def flush(self) -> None:
        """Complete the model that the method returns; all workers together, at the end of an epoch.

        It moves that model no further than the same time in the middle of an epoch does.
        """

    async def result(self, out: Vector) -> None:
        """Copy the model that the method returns into `out`, the mean over the workers; all together, after `flush`."""
        await self.current(out)
        await mean_over_workers(out, self.transport)

    async def add(self, change: Vector) -> None:
        """Add to this worker's current model, and keep all concurrent changes by partners."""
        present = self.model.empty()
        self.model.read(present)
        present += change
        self.model.write(present)

    async def catch_up(self) -> None:
        """Take over into the local model what others added to the model that the workers share."""

    async def snapshot(self, out: Vector) -> float:  # noqa: ARG002 - most share nothing
        """Copy the model that the method returns, as it is now, into `out`, without stopping anyone.

        Returns:
            The consensus distance of the workers' shared vectors; see `consensus_distance`.
        """
        raise AssertionError(f"workers of {type(self).__name__} share no vectors")

    async def quiesce(self) -> None:
        """Wait until no worker averages; none begins an average before its next step. All workers together."""
        await self.transport.barrier()

    async def close(self) -> None:
        """Release the shared vectors; all workers together."""

    def counters(self) -> Counters:
        """What the algorithm counted since its start."""
        return {**self.acted, "steps_not_finite": self.skipped}

    async def state(self) -> dict[str, Any]:
        """All that the next steps depend on, besides the optimiser: arrays and plain values."""
        published = self.model.empty()
        self.model.read(published)
        return {"published": published, "attributes": self.attributes()}

    async def restore(self, state: dict[str, Any]) -> None:
        """Start from what `state` gave, instead of `start`; all workers together."""
        self.model.write(state["published"])
        await self.start()
        self.restore_attributes(state["attributes"])

    def model_of(self, state: dict[str, Any]) -> tuple[int, Vector] | None:  # noqa: ARG002 - most return the mean
        """The model that the method returns, in what `state` gave, and its age; None: the mean over the workers."""
        return None

    async def has_gradient(self, compute_gradient: ComputeGradient, num_samples: int) -> bool:
        """Compute the gradient. False if it is not finite: such a step is counted and does not reach other workers."""
        if not num_samples:
            return False
        await compute_gradient()
        if self.model.gradient_is_finite():
            return True
        self.skipped += 1
        return False


async def mean_over_workers(vector: Vector, transport: Transport) -> None:
    """Replace a vector by its mean over the workers whose vector is finite, in place; NaN if there are none."""
    message = np.zeros(vector.size + 1, dtype=vector.dtype)
    if is_finite(vector):
        message[:-1] = vector
        message[-1] = 1
    await transport.all_reduce_sum(message)
    with np.errstate(invalid="ignore"):
        np.divide(message[:-1], message[-1], out=vector)


async def consensus_distance(own: Vector, mean: Vector, transport: Transport) -> float:
    """sqrt(1/m sum_i |x_i - mean|^2), the distance of the workers from consensus (Kong et al. 2021, equation 2).

    The thesis' Gamma_t (section 2.3) is m times its square.
    """
    square = np.array([np.square(own.astype(np.float64) - mean).sum()])
    await transport.all_reduce_sum(square)
    return float(np.sqrt(square[0] / transport.world_size))


def reset_optimizer(optimizer: Optimizer, *, momenta: Sequence[Vector] = ()) -> None:
    """Set the state of an optimiser, and a method's own momenta, to 0; Adam's bias correction restarts too."""
    for momentum in momenta:
        momentum.fill(0)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


class Wrapper(SavedAttributes):
    """Another method, with something around its steps."""

    SCRATCH: ClassVar[Sequence[str]] = ("base",)

    def __init__(self, base: Algorithm) -> None:
        self.base = base

    def note_constants(self) -> None:
        """Those of the base method too."""
        super().note_constants()
        self.base.note_constants()

    def __getattr__(self, name: str) -> Any:
        """What only the base method has."""
        return getattr(self.base, name)

    async def state(self) -> dict[str, Any]:
        """The base method's state, and that of the wrapper."""
        return {"base": await self.base.state(), "attributes": self.attributes()}

    async def restore(self, state: dict[str, Any]) -> None:
        """Start from what `state` gave, instead of `start`; all workers together."""
        await self.base.restore(state["base"])
        self.restore_attributes(state["attributes"])

    def model_of(self, state: dict[str, Any]) -> tuple[int, Vector] | None:
        """The base method's model in what `state` gave."""
        return self.base.model_of(state["base"])
