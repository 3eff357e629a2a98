"""Makes algorithms and optimisers from the settings."""

from __future__ import annotations

from typing import Final, cast

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from training.algorithms.ad_psgd import AdPsgd
from training.algorithms.ar_sgd import ArSgd
from training.algorithms.base import Algorithm
from training.algorithms.d_psgd import DPsgd
from training.algorithms.gossip import Partners, RandomPartners
from training.algorithms.local_sgd import LocalSgd
from training.algorithms.sgd import Sgd
from training.algorithms.slowmo import SlowMo
from training.algorithms.swarm_sgd import LocalSteps, SwarmSgd
from training.compiled.optimizer import VectorOptimizer
from training.errors import ShardError
from training.flat_model import VectorModel
from training.random_streams import random_stream
from training.settings import AlgorithmName, OptimizerName, StatePolicy, TrainSettings
from training.topology import Topology, make_topology
from training.transports.transport import Transport

_CLASSES: Final[dict[AlgorithmName, type[Algorithm]]] = {
    AlgorithmName.SGD: Sgd,
    AlgorithmName.AR_SGD: ArSgd,
    AlgorithmName.LOCAL_SGD: LocalSgd,
    AlgorithmName.D_PSGD: DPsgd,
    AlgorithmName.AD_PSGD: AdPsgd,
    AlgorithmName.SWARM_SGD: SwarmSgd,
}


def has_static_shards(settings: TrainSettings) -> bool:
    """Whether the row groups of an epoch are divided among the workers beforehand; else they draw work units.

    Raises:
        ShardError: `train.sharding` is global for a method whose workers must take the same number of steps.
    """
    slow = settings.slowmo is not None and settings.slowmo_is_exact
    equal_steps = _CLASSES[settings.algorithm].equal_steps or slow
    if settings.sharding == "global" and equal_steps:
        what = f"{settings.algorithm}{' with the exact average of slowmo' if slow else ''}"
        raise ShardError(
            f"train.sharding is global, but all workers of {what} take the same number of steps. Leave it out, or set "
            f"it to static."
        )
    return equal_steps or settings.sharding == "static"


def make_algorithm(
    model: VectorModel,
    settings: TrainSettings,
    transport: Transport,
    *,
    topology: Topology | None = None,
    partners: Partners | None = None,
) -> Algorithm:
    """The algorithm of one worker, inside SlowMo if so configured.

    Args:
        model: The worker's model.
        settings: Settings of the training.
        transport: The other workers.
        topology: The graph, so that thousands of workers can share one; None: the graph of the settings.
        partners: Chooses the ranks to average with; None: random neighbours.

    Raises:
        TopologyError: The graph does not exist for this number of workers.
    """
    base = _base(model, make_optimizer(model, settings), settings, transport, topology, partners)
    if settings.slowmo is None:
        return base
    return SlowMo(
        base,
        tau=settings.slowmo.tau,
        alpha=settings.slowmo.alpha,
        beta=settings.slowmo.beta,
        exact_average=settings.slowmo_is_exact,
        state_policy=settings.state_policy,
    )


def make_optimizer(model: VectorModel, settings: TrainSettings) -> Optimizer:
    """The base optimiser over the flat vector: compiled code in host memory, torch's on a GPU."""
    if model.flat.device.type == "cpu":
        return cast("Optimizer", VectorOptimizer(model.flat, settings))
    return torch_optimizer(model.flat, settings)


def torch_optimizer(flat: nn.Parameter, settings: TrainSettings) -> Optimizer:
    """The optimiser of torch over a vector.

    Its state starts as zeros. Torch would make it at the first step. A worker without a gradient skips this step, and
    would then have no moments for an average.
    """
    rate, decay = settings.effective_learning_rate, settings.weight_decay
    optimizer: Optimizer
    if settings.optimizer is OptimizerName.ADAM:
        optimizer = Adam([flat], lr=rate, weight_decay=decay)
        moments = {name: torch.zeros_like(flat.detach()) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[flat] = {"step": torch.zeros(()), **moments}
    else:
        optimizer = SGD([flat], lr=rate, momentum=settings.momentum, nesterov=settings.nesterov, weight_decay=decay)
        if settings.momentum:
            optimizer.state[flat] = {"momentum_buffer": torch.zeros_like(flat.detach())}
    return optimizer


def _base(
    model: VectorModel,
    optimizer: Optimizer,
    settings: TrainSettings,
    transport: Transport,
    topology: Topology | None,
    partners: Partners | None,
) -> Algorithm:
    name = settings.algorithm
    if name is AlgorithmName.SGD:
        return Sgd(model, optimizer, transport)
    if name is AlgorithmName.AR_SGD:
        return ArSgd(model, optimizer, transport)
    if name is AlgorithmName.LOCAL_SGD:
        # SlowMo's default policy applies to its outer steps only; the averages in between have their own.
        policy = settings.optimizer_state or StatePolicy.KEEP
        return LocalSgd(model, optimizer, transport, local_steps=settings.local_steps, state_policy=policy)
    topology = topology or make_topology(settings.graph, transport.world_size)
    if name is AlgorithmName.D_PSGD:
        return DPsgd(model, optimizer, transport, topology=topology)
    rank = transport.rank
    partners = partners or RandomPartners(topology.neighbours[rank], seed=settings.seed, rank=rank)
    if name is AlgorithmName.AD_PSGD:
        return AdPsgd(model, optimizer, transport, partners=partners, overlap=settings.overlap == "thread")
    rng = random_stream(settings.seed, "local steps", rank) if settings.local_steps_law == "geometric" else None
    return SwarmSgd(model, optimizer, transport, partners=partners, local_steps=LocalSteps(settings.local_steps, rng))
