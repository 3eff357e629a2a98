"""The base class of all algorithms.

It imports no torch, since the config reads the settings of the methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from training.algorithms.method import MethodSettings, Traits
from training.algorithms.stateful import Stateful
from training.transports.basics import Vector, is_finite
from training.transports.transport import Transport

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class VectorModel(Protocol):
    """An algorithm's view of a model: vectors of parameters and gradients on the host."""

    flat: nn.Parameter
    """(num_parameters,) all trained parameters, as the optimiser's only parameter."""
    shapes: Sequence[Sequence[int]]
    """Shapes of the parameters of the layers, in the order of `flat`."""

    def empty(self) -> Vector:
        """Return a host vector of the model's size and type, as a target of copies."""

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
"""Computes the gradient of the mean loss over the local batch, at the model's parameters, into the
model."""
Counters = dict[str, Any]
"""Numbers by name; a histogram is a `Counter`."""


class StatePolicy(StrEnum):
    """Treatment of the optimiser's momentum and moments at an exact average of the models."""

    KEEP = "keep"
    """Each worker keeps its own momentum and moments, as SlowMo with Adam (Wang et al. 2019,
    section 5)."""
    RESET = "reset"
    """Momentum and moments restart from zero, as SlowMo does with the momentum of SGD."""


class Update(Protocol):
    """The base optimiser as a function of arrays, for methods that keep its state themselves."""

    moments: Sequence[str]
    """Names of the vectors that it keeps between steps, such as momentum; they begin at 0."""

    def __call__(
        self,
        parameters: Vector,
        gradient: Vector,
        moments: Iterable[Vector],
        *,
        step: int,
        rate: float,
    ) -> None:
        """Change parameters and moments by one step, in place.

        Args:
            parameters: (n,).
            gradient: (n,) stays as it is.
            moments: (n,) each, in the order of their names.
            step: Number of the step, from 1.
            rate: Learning rate.
        """


class Worker(NamedTuple):
    """What an algorithm of one worker gets to work with."""

    model: VectorModel
    """The local model."""
    optimizer: Optimizer
    """The base optimiser over `model.flat`."""
    update: Update
    """The same optimiser as a function, for methods that keep its state at a server."""
    transport: Transport
    """The other workers."""
    seed: int
    """Seed of the run."""
    optimizer_state: StatePolicy | None = None
    """The key `train.optimizer_state`; None: the default of the method."""


class Algorithm(Stateful, ABC):
    """Turns local gradients into updates of the local model; a transport connects the workers.

    Every worker has one such object. The trainer calls `start` once, then `step` for each batch. At
    the end of an epoch it calls `flush` and `result`, and `close` after the last one.
    """

    traits: Traits = Traits()
    """Properties by which other code tells methods apart; the decorator `algorithm` sets them."""
    momenta: Sequence[Vector] = ()
    """Momentum vectors of the method itself; exact averages treat them like the optimiser's."""
    SCRATCH: ClassVar[Sequence[str]] = ("model", "optimizer", "transport")
    """Attributes that checkpoints leave out; see `Stateful.SCRATCH`."""

    def __init__(self, settings: MethodSettings, worker: Worker) -> None:
        self.model = worker.model
        self.optimizer = worker.optimizer
        self.transport = worker.transport
        self.actions: Counter[str] = Counter(dict.fromkeys(settings.counters, 0))
        """How often this worker did each of the actions that `settings.counters` names."""
        self.num_steps_not_finite = 0
        """Number of steps without an update because the gradient or the update was not finite."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    async def start(self) -> None:
        """Share vectors with the other workers; all workers together, before the first step."""

    @abstractmethod
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take one step: compute a gradient, update the local model, and exchange if it is time.

        Args:
            compute_gradient: Computes the gradient of the local batch into the model.
            num_samples: Size of the local batch; 0 if the worker has no rows left.
        """

    async def current(self, out: Vector) -> None:
        """Copy this worker's current model, with all changes by it and its partners, into `out`."""
        self.model.read(out)

    async def flush(self) -> None:
        """Bring the model that the method returns up to date.

        All workers call it together, at the end of an epoch. It moves that model no further than
        the same time in the middle of an epoch does: an unfinished window of steps stays unsent.
        """

    async def result(self, out: Vector) -> None:
        """Copy the model that the method returns into `out`: the mean over the workers.

        All workers call it together, after `flush`.
        """
        await self.current(out)
        await mean_over_workers(out, self.transport)

    async def add(self, change: Vector) -> None:
        """Add a change, (num_parameters,), to this worker's current model.

        Changes that partners make at the same time are kept, since the model is not overwritten.
        SlowMo applies its outer steps by this method.
        """
        parameters = self.model.empty()
        self.model.read(parameters)
        parameters += change
        self.model.write(parameters)

    async def catch_up(self) -> None:
        """Copy into the local model what other workers added to the model that all share."""

    async def snapshot(self, out: Vector) -> float:  # noqa: ARG002 - most methods share nothing
        """Copy the present state of the model that the method returns into `out`; nobody stops.

        Returns:
            The consensus distance of the workers' shared vectors; see `consensus_distance`.
        """
        raise AssertionError(f"workers of {type(self).__name__} share no vectors")

    async def quiesce(self) -> None:
        """Wait until no worker averages. None begins an average before its next step.

        All workers call it together.
        """
        await self.transport.barrier()

    async def close(self) -> None:
        """Release the shared vectors; all workers together."""

    def counters(self) -> Counters:
        """Return the counts since the start."""
        return {**self.actions, "steps_not_finite": self.num_steps_not_finite}

    async def state(self) -> dict[str, Any]:
        """Return the values on which the next steps depend, without the optimiser's."""
        published = self.model.empty()
        self.model.read(published)
        return {"published": published, "attributes": self.state_dict()}

    async def restore(self, state: dict[str, Any]) -> None:
        """Start from a result of `state`, in place of `start`; all workers together."""
        # The start shares the model with other workers, so the model is restored before it.
        self.model.write(state["published"])
        await self.start()
        self.load_state_dict(state["attributes"])

    def model_of(self, state: dict[str, Any]) -> tuple[int, Vector] | None:  # noqa: ARG002
        """Return age and vector of the method's own model in a result of `state`.

        The own model is the one at a server, or the joint model; its age is the number of changes
        so far. None: the method has no such model, and returns the mean over the workers.
        """
        return None

    def weight_of(self, state: dict[str, Any]) -> float:  # noqa: ARG002 - they are equal
        """Return the weight of a worker's model in the mean that the method returns.

        `state`: the worker's result of `state`.
        """
        return 1.0

    async def has_gradient(self, compute_gradient: ComputeGradient, num_samples: int) -> bool:
        """Compute the gradient into the model, and return whether a step may use it.

        It may not if the local batch is empty, or if an element of the gradient is not finite. The
        latter is counted in `num_steps_not_finite`.
        """
        if not num_samples:
            return False
        await compute_gradient()
        if self.model.gradient_is_finite():
            return True
        self.num_steps_not_finite += 1
        return False


async def mean_over_workers(vector: Vector, transport: Transport) -> None:
    """Replace a vector by its mean over the workers whose vector is finite, in place.

    The mean is NaN if no vector is finite.
    """
    message = contribution_to_mean(vector)
    await transport.all_reduce_sum(message)
    vector[:] = mean_of_contributions(message)


def contribution_to_mean(vector: Vector) -> Vector:
    """Return a message whose sum over the workers gives the mean of their finite vectors.

    It is the vector, then the number of workers that contribute to the sum: (n + 1,).
    """
    message = np.zeros(vector.size + 1, dtype=vector.dtype)
    if is_finite(vector):
        message[:-1] = vector
        message[-1] = 1
    return message


def mean_of_contributions(total: Vector) -> Vector:
    """Return the mean, (n,), for a sum of `contribution_to_mean` over the workers, (n + 1,).

    It is NaN if no worker contributes.
    """
    # Without a contribution, 0 / 0 gives the NaN.
    with np.errstate(invalid="ignore"):
        mean: Vector = total[:-1] / total[-1]
    return mean


async def consensus_distance(local: Vector, mean: Vector, transport: Transport) -> float:
    """Return the distance of the workers from consensus (Kong et al. 2021, equation 2).

    It is sqrt(1/m sum_i |x_i - mean|^2) over the models x_i of the m workers. The Gamma_t of
    Migliorini 2020 (section 2.3) is m times its square. All workers call it together.

    `local`: (num_parameters,) x_i of this worker. `mean`: (num_parameters,) the mean of all x_i.
    """
    deviation = local.astype(np.float64) - mean
    squares = np.array([np.square(deviation).sum()])
    await transport.all_reduce_sum(squares)
    return float(np.sqrt(squares[0] / transport.world_size))


def reset_optimizer(optimizer: Optimizer, *, momenta: Sequence[Vector] = ()) -> None:
    """Set the state of an optimiser, and a method's own momenta, to 0 in place.

    Adam's bias correction restarts too, since its number of steps is part of the state.
    """
    for momentum in momenta:
        momentum.fill(0)
    # `optimizer.state` holds a dict of tensors, such as momentum and moments, for each parameter.
    for state in optimizer.state.values():
        for tensor in state.values():
            tensor.zero_()
