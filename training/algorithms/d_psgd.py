"""D-PSGD: averages the models of neighbours at every step, during the gradient.

Source: Migliorini 2020, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import ClassVar, Literal

from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, Worker
from training.algorithms.method import MethodSettings, Traits, algorithm
from training.topology import TopologyName, shared_topology
from training.transports.basics import Vector, is_finite


class NeighbourSettings(MethodSettings):
    """Settings of a method of neighbours."""

    BETWEEN_WORKERS: ClassVar[tuple[str, ...]] = ("topology",)

    topology: TopologyName = "ring"
    """Communication graph."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("exchanges",)


class NeighbourAlgorithm(Algorithm):
    """A worker that exchanges vectors with its neighbours on the graph."""

    def __init__(self, settings: NeighbourSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        rank = self.transport.rank
        topology = shared_topology(settings.topology, self.transport.world_size)
        self.neighbours = topology.neighbours[rank]
        """Ranks of the neighbours in ascending order."""
        self.weights = topology.weights[rank]
        """Weight of this worker, then those of its neighbours."""

    def begin_exchange(self, vector: Vector) -> Awaitable[list[Vector]]:
        """Begin to send a vector to all neighbours, which send theirs.

        Await the result for their vectors, in the order of `neighbours`. Until then the vector must
        not change.
        """
        self.actions["exchanges"] += len(self.neighbours)
        return self.transport.begin_exchange(vector, self.neighbours)


def mix(weights: Sequence[float], vectors: Sequence[Vector], *, out: Vector) -> bool:
    """Write the weighted mean sum_j w_j x_j of some vectors into `out`.

    A vector that is not finite counts with weight 0, and the other weights grow to the sum 1. So it
    stays with its worker, which takes over the mean of its neighbours.

    Args:
        weights: One for each vector, with the sum 1.
        vectors: (num_parameters,) each.
        out: (num_parameters,) none of the vectors.

    Returns:
        False if no finite vector has a weight above 0; `out` then stays as it is.
    """
    finite_terms = [
        (weight, vector)
        for weight, vector in zip(weights, vectors, strict=True)
        if is_finite(vector)
    ]
    # If all vectors count, no rounding of a sum changes the weights.
    total_weight = 1.0
    if len(finite_terms) < len(vectors):
        total_weight = sum(weight for weight, _ in finite_terms)
    if not total_weight:
        return False
    out.fill(0)
    for weight, vector in finite_terms:
        out += weight / total_weight * vector
    return True


class DPsgdSettings(NeighbourSettings):
    """Average parameters with all neighbours at every step."""

    name: Literal["d-psgd"]


@algorithm("d-psgd", DPsgdSettings, Traits(title="D-PSGD", needs_others=True))
class DPsgd(NeighbourAlgorithm):
    """Average the models of a worker and its neighbours, then step with the gradient.

    x_i <- sum_j w_ij x_j - gamma * g_i(x_i): the gradient is taken at x_i, before the average.

    x_i is the model of worker i, g_i its gradient, gamma the learning rate, and w_ij a weight of
    the graph: above 0 for worker i itself and for its neighbours. The models travel while the
    gradient is computed (lines 3 and 4 of the algorithm). Weight decay acts on the average, since
    the base optimiser takes its step from there.
    """

    SCRATCH = ("_local", "_mixed")
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: DPsgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        #: The model before a step, which travels.
        self._local = self.model.empty()
        #: The mean over this worker and its neighbours.
        self._mixed = self.model.empty()

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Send the model, compute the gradient meanwhile, then mix and step."""
        self.model.read(self._local)
        exchange = self.begin_exchange(self._local)
        has_gradient = await self.has_gradient(compute_gradient, num_samples)
        neighbour_models = await exchange
        if mix(self.weights, [self._local, *neighbour_models], out=self._mixed):
            self.model.write(self._mixed)
        if has_gradient:
            self.optimizer.step()
