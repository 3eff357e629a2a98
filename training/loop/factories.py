"""Makes networks, algorithms and optimisers from the settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, Adam, AdamW, Optimizer

from training.algorithms.base import Algorithm, VectorModel, Worker
from training.algorithms.registry import SlowMo, StaleSynchronous
from training.compiled.muon import MuonOptimizer, hidden_matrices
from training.compiled.optimizer import ArrayOptimizer, VectorOptimizer, optimizer_constants
from training.errors import IdleSettingError, TrainingError
from training.flat_model import FlatModel
from training.loop.torch_muon import TorchMuon
from training.settings import OptimizerName, TrainSettings
from training.transports.basics import run_now
from training.transports.transport import Transport
from training.workloads.workload import Workload, network_dtype


def make_model(
    workload: Workload, settings: TrainSettings, transport: Transport, device: torch.device
) -> FlatModel:
    """Make the network, with the initial weights of rank 0 on all ranks.

    They come from the seed, or from the workload. Torch's random state changes.
    """
    torch.manual_seed(settings.seed)
    default_dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(network_dtype(settings))
        module = workload.network().to(device)
    finally:
        torch.set_default_dtype(default_dtype)
    parameters = list(module.parameters())
    if parameters:
        # Frozen parameters are sent too, since no later exchange would make them equal.
        initial = parameters_to_vector(parameters).detach().cpu()
        run_now(transport.broadcast(initial.numpy()))
        vector_to_parameters(initial.to(device), parameters)
    return FlatModel(module)


def make_algorithm(model: VectorModel, settings: TrainSettings, transport: Transport) -> Algorithm:
    """Make the algorithm of one worker, by which it trains and exchanges models.

    If so configured, a bound on staleness wraps the method, and SlowMo wraps both.

    Raises:
        TrainingError: The network does not suit the settings; see `check_suits_network`. Or the
            method of a plugin is incomplete.
    """
    check_suits_network(settings, model.shapes)
    update = ArrayOptimizer(optimizer_constants(settings))
    optimizer = make_optimizer(model, settings)
    worker = Worker(model, optimizer, update, transport, settings.seed, settings.optimizer_state)
    algorithm: Algorithm = settings.algorithm.algorithm_class(settings.algorithm, worker)
    _require_usable(algorithm)
    if settings.staleness_bound is not None:
        algorithm = StaleSynchronous(algorithm, bound=settings.staleness_bound)
    if settings.slowmo is not None:
        algorithm = SlowMo(
            settings.slowmo,
            algorithm,
            exact_average=settings.slowmo_is_exact,
            state_policy=settings.state_policy,
        )
    return algorithm


def _require_usable(algorithm: Algorithm) -> None:
    """Refuse a method of a plugin that the training could not use later on.

    Raises:
        TrainingError: `__init__` skips that of the base class, or workers that wait for nobody
            have no model that others can read.
    """
    name = type(algorithm).__name__
    if "actions" not in vars(algorithm):
        raise TrainingError(
            f"{name}.__init__ does not call that of its base class. Begin it with "
            f"`super().__init__(settings, worker)`"
        )
    if not algorithm.traits.synchronous and type(algorithm).snapshot is Algorithm.snapshot:
        raise TrainingError(
            f"the traits of {name} say that its workers wait for nobody, but it has no `snapshot` "
            f"of the model. Subclass `GossipAlgorithm` or `ServerAlgorithm`, define `snapshot`, or "
            f"register it with synchronous=True"
        )


def check_suits_network(settings: TrainSettings, shapes: Sequence[Sequence[int]]) -> None:
    """Refuse a method or an optimiser that a network is too small for.

    `shapes`: the shapes of its trained parameters.

    Raises:
        IdleSettingError: The network has fewer parameters than a setting of the method needs.
        NoMatrixError: The optimiser is Muon, and the network has no matrix before its last layer.
    """
    num_parameters = sum(math.prod(shape) for shape in shapes)
    for setting, fewest in settings.algorithm.fewest_parameters.items():
        if num_parameters < fewest:
            raise IdleSettingError(
                f"train.{setting} needs a network of at least {fewest} parameters, and this one has "
                f"{num_parameters}. Lower it"
            )
    if settings.optimizer is OptimizerName.MUON:
        hidden_matrices(shapes)


def make_optimizer(model: VectorModel, settings: TrainSettings) -> Optimizer:
    """Make the optimiser of a worker's model: compiled code in host memory, torch's on a GPU.

    `model.flat` is one vector with all parameters.

    Raises:
        NoMatrixError: It is Muon, and the network has no matrix before its last layer.
    """
    is_muon = settings.optimizer is OptimizerName.MUON
    if model.flat.device.type != "cpu":
        return TorchMuon(model, settings) if is_muon else torch_optimizer(model.flat, settings)
    if is_muon:
        return cast("Optimizer", MuonOptimizer(model, settings))
    return cast("Optimizer", VectorOptimizer(model.flat, settings))


def torch_optimizer(flat: nn.Parameter, settings: TrainSettings) -> Optimizer:
    """Make the optimiser of torch over a vector, with moments of 0.

    Torch itself would make the moments at the first step. But a worker without a finite gradient
    skips this step, and would then have no moments for an average over the workers.
    """
    rate, decay = settings.effective_learning_rate, settings.weight_decay
    if settings.optimizer is OptimizerName.SGD:
        sgd = SGD([flat], lr=rate, momentum=settings.momentum, weight_decay=decay)
        if settings.momentum:
            sgd.state[flat] = {"momentum_buffer": torch.zeros_like(flat.detach())}
        return sgd
    adam_class = AdamW if settings.optimizer is OptimizerName.ADAMW else Adam
    adam = adam_class([flat], lr=rate, weight_decay=decay)
    adam.state[flat] = {
        "step": torch.zeros(()),
        "exp_avg": torch.zeros_like(flat.detach()),
        "exp_avg_sq": torch.zeros_like(flat.detach()),
    }
    return adam
