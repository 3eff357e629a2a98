"""Muon gives the numbers of torch's optimisers for the matrices and for all other parameters."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from simulated import ALL_METHODS, run, settings, toy_rows
from torch import Tensor, nn

from training.algorithms.registry import METHODS
from training.compiled.muon import hidden_matrices, orthogonalize
from training.errors import NoMatrixError
from training.flat_model import FlatModel
from training.loop.factories import make_optimizer
from training.loop.torch_muon import TorchMuon

MUON: dict[str, Any] = {"optimizer": "muon", "workers": 1, "weight_decay": 0.03}
#: The last layer of `network`, and its vectors.
VECTORS_AND_LAST = ("0.bias", "2.bias", "5.weight", "5.bias")
#: Methods whose optimiser may be any.
FREE_METHODS = [
    name
    for name, method in ALL_METHODS.items()
    if not METHODS[method["algorithm"]].traits.plain_sgd
    and not METHODS[method["algorithm"]].traits.server_optimizer
]


@pytest.fixture
def exact_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch does not round the orthogonal factors to 8 bits of mantissa."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


def network(precision: torch.dtype = torch.float64) -> nn.Module:
    """A convolution with a wide matrix of kernels, a tall matrix, and a last layer."""
    torch.manual_seed(3)
    convolution = nn.Conv2d(2, 4, 3)
    hidden = nn.Linear(4, 9)
    last = nn.Linear(9, 3)
    layers = nn.Sequential(convolution, nn.ReLU(), hidden, nn.ReLU(), nn.Flatten(), last)
    return layers.to(precision)


def take_steps(
    step: Callable[[NDArray[Any], float], None], num_parameters: int, *, seed: int, steps: int
) -> None:
    """Take steps along random gradients at a falling rate."""
    rng = np.random.default_rng(seed)
    for index in range(steps):
        step(rng.normal(size=num_parameters), 0.05 * 0.98**index)


def step_of(model: FlatModel, optimizer: Any) -> Callable[[NDArray[Any], float], None]:
    """A step of an optimiser of a vector."""

    def step(gradient: NDArray[Any], rate: float) -> None:
        model.write_gradient(gradient)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    return step


def train_by_torch(module: nn.Module, *, seed: int, steps: int) -> Tensor:
    """The parameters after steps of torch's Muon and AdamW, each on its own layers."""
    matrices, others = [], []
    for name, parameter in module.named_parameters():
        if name in VECTORS_AND_LAST:
            others.append(parameter)
            continue
        matrix = nn.Parameter(parameter.detach().flatten(1))
        parameter.data = matrix.data.view_as(parameter)
        matrices.append(matrix)
    muon = torch.optim.Muon(matrices, lr=1.0, weight_decay=0.03, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, lr=1.0, weight_decay=0.03)
    targets = [matrices[0], others[0], matrices[1], others[1], *others[2:]]

    def step(gradient: NDArray[Any], rate: float) -> None:
        sizes = [target.numel() for target in targets]
        gradients = torch.from_numpy(gradient).split(sizes)
        for target, target_gradient in zip(targets, gradients, strict=True):
            target.grad = target_gradient.view_as(target)
        for optimizer in (muon, adamw):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()

    num_parameters = sum(target.numel() for target in targets)
    take_steps(step, num_parameters, seed=seed, steps=steps)
    return torch.cat([target.detach().reshape(-1) for target in targets])


def test_the_matrices_are_the_weights_before_the_last_layer() -> None:
    shapes = FlatModel(network()).shapes

    matrices = hidden_matrices(shapes)

    # 4 kernels of 2 x 3 x 3, and 9 x 4 weights behind them and 4 biases.
    assert matrices.tolist() == [[0, 4, 18], [76, 9, 4]]


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(4, 3),
        nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 3)),
        nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
    ],
)
def test_a_network_without_matrices_is_refused_with_the_fix(module: nn.Module) -> None:
    model = FlatModel(module)

    with pytest.raises(NoMatrixError, match=r"has none: its parameters are .*3\. Use adamw"):
        make_optimizer(model, settings(**MUON))


@pytest.mark.parametrize("shape", [(50, 14), (20, 50), (150, 19), (150, 50), (6, 25)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_singular_values_of_an_update_are_near_1(shape: tuple[int, int], size: float) -> None:
    matrix = size * np.random.default_rng(4).normal(size=shape)
    left, _, right = np.linalg.svd(matrix, full_matrices=False)

    factor = orthogonalize(matrix)

    singular_values = np.linalg.svd(factor, compute_uv=False)
    assert singular_values.min() > 0.68
    assert singular_values.max() < 1.14
    # The singular vectors are those of the matrix.
    in_their_basis = left.T @ factor @ right.T
    diagonal = np.diag(np.diag(in_their_basis))
    assert abs(in_their_basis - diagonal).max() < 1e-9


def test_the_factor_of_a_matrix_of_zeros_is_zero() -> None:
    factor = orthogonalize(np.zeros((5, 3)))

    assert (factor == 0).all()


@pytest.mark.usefixtures("exact_factors")
@pytest.mark.parametrize("is_compiled", [True, False])
def test_steps_are_those_of_torch_for_each_layer(is_compiled: bool) -> None:
    module = network()
    model = FlatModel(deepcopy(module))
    optimizer = make_optimizer(model, settings(**MUON))
    if not is_compiled:
        optimizer = TorchMuon(model, settings(**MUON))

    take_steps(step_of(model, optimizer), model.flat.numel(), seed=2, steps=50)

    expected = train_by_torch(module, seed=2, steps=50)
    np.testing.assert_allclose(model.flat.detach(), expected, rtol=0, atol=1e-9)


def test_in_single_precision_rounding_stays_small() -> None:
    trained = []
    for precision in (torch.float32, torch.float64):
        model = FlatModel(network(precision))
        optimizer = make_optimizer(model, settings(**MUON))
        take_steps(step_of(model, optimizer), model.flat.numel(), seed=2, steps=50)
        trained.append(model.flat.detach().double().numpy())

    np.testing.assert_allclose(*trained, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("exact_factors")
@pytest.mark.parametrize("saves_compiled", [False, True])
@pytest.mark.parametrize("loads_compiled", [False, True])
def test_each_form_continues_from_a_checkpoint_of_either(
    saves_compiled: bool, loads_compiled: bool
) -> None:
    def start(*, is_compiled: bool) -> tuple[FlatModel, Any]:
        model = FlatModel(network())
        if is_compiled:
            return model, make_optimizer(model, settings(**MUON))
        return model, TorchMuon(model, settings(**MUON))

    uninterrupted, optimizer = start(is_compiled=saves_compiled)
    num_parameters = uninterrupted.flat.numel()
    take_steps(step_of(uninterrupted, optimizer), num_parameters, seed=2, steps=5)
    checkpoint = io.BytesIO()
    torch.save(optimizer.state_dict(), checkpoint)
    checkpoint.seek(0)

    resumed, resumed_optimizer = start(is_compiled=loads_compiled)
    resumed.load(uninterrupted.state())
    resumed_optimizer.load_state_dict(torch.load(checkpoint, weights_only=True))
    assert resumed_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    take_steps(step_of(uninterrupted, optimizer), num_parameters, seed=3, steps=5)
    take_steps(step_of(resumed, resumed_optimizer), num_parameters, seed=3, steps=5)

    tolerance = 0.0 if saves_compiled == loads_compiled else 1e-12
    np.testing.assert_allclose(
        resumed.flat.detach(), uninterrupted.flat.detach(), rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("method", FREE_METHODS)
def test_every_method_with_a_free_optimizer_trains_with_it(method: str) -> None:
    selected = ALL_METHODS[method] | {"optimizer": "muon", "learning_rate": 0.02, "epochs": 4}

    trained = run(train=toy_rows(640), **selected)

    losses = [record["val_loss"] for record in trained.records[0] if "val_loss" in record]
    assert min(losses) < 0.7 * losses[0]
