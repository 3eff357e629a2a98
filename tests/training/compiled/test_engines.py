"""Compiled losses and gradients are those of autograd, for the networks that they support."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numba.core.dispatcher import Dispatcher
from torch import Tensor, nn

from features.columns import hlf_names
from hep_core.compiling import compiled
from models.networks.classifier import StandardForm
from models.networks.hlf import HlfClassifier
from models.networks.hlf_settings import HlfSettings
from models.networks.inclusive_settings import InclusiveSettings
from models.networks.lepton_frame import LeptonFrame
from models.networks.network_settings import Frame, NetworkSettings, ReadFrom, RecurrentSettings
from models.networks.particles_settings import ParticlesSettings
from models.networks.scaling_layer import Scaler
from training.compiled import gru, kernel, optimizer, perceptron, recurrent
from training.compiled.engines import compiled_engine
from training.compiled.kernel import asinh
from training.flat_model import FlatModel
from training.readers.batch import Batch
from training.transports import kernels as vector_kernels
from training.transports import messages, serving
from training.workloads.gradients import (
    CompiledGradients,
    Gradients,
    TorchGradients,
    make_gradients,
)


def make_scaler(width: int) -> Scaler:
    """Some features are logarithmic, and some reach the limit."""
    mean = np.linspace(-1, 1, width)
    std = np.linspace(0.5, 2, width)
    log_above = np.where(np.arange(width) % 3, 0.0, 0.3)
    return Scaler(mean.tolist(), std.tolist(), log_above.tolist(), 3.0)


SCALERS = {"hlf": make_scaler(len(hlf_names())), "particles": make_scaler(19)}
HIDDEN = [[1], [7], [50, 20, 10], [150, 100, 50], [3] * 6, [300]]


def make_double(settings: NetworkSettings, scalers: dict[str, Scaler] = SCALERS) -> FlatModel:
    """A network of double precision, always with the same weights."""
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(7)
        return FlatModel(settings.build(scalers, 3))
    finally:
        torch.set_default_dtype(default_dtype)


def make_hlf_batch(size: int, *, seed: int, dtype: torch.dtype = torch.float64) -> Batch:
    """Random events; some have the weight 0, some a negative one."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(1, 1, size)
    weights[::5] = 0
    features = rng.normal(0, 3, (size, len(hlf_names())))
    hlf = torch.tensor(features, dtype=dtype)
    labels = torch.tensor(rng.integers(0, 3, size))
    return Batch((hlf,), labels, torch.tensor(weights, dtype=dtype))


def make_particle_batch(size: int, *, longest: int, seed: int, with_hlf: bool = False) -> Batch:
    """Random events with 0 to `longest` particles; the padding has random numbers too."""
    rng = np.random.default_rng(seed)
    hlf_batch = make_hlf_batch(size, seed=seed)
    num_particles = rng.integers(0, longest + 1, size)
    num_particles[0] = longest
    particles = torch.tensor(rng.normal(0, 2, (size, longest, 19)))
    inputs = (particles, torch.tensor(num_particles))
    if with_hlf:
        inputs = (*hlf_batch.inputs, *inputs)
    return Batch(inputs, hlf_batch.labels, hlf_batch.weights)


def assert_learns_as_by_autograd(settings: NetworkSettings, batches: Sequence[Batch]) -> None:
    """Take a hundred steps by backpropagation and in compiled code, and compare each gradient."""
    by_torch = make_double(settings)
    by_kernels = make_double(settings)
    torch_gradients = TorchGradients(by_torch)
    kernel_gradients = make_gradients(by_kernels)
    assert isinstance(kernel_gradients, CompiledGradients)
    for step in range(100):
        batch = batches[step % len(batches)]
        torch_gradients.compute(batch)
        kernel_gradients.compute(batch)
        torch.testing.assert_close(by_kernels.gradient, by_torch.gradient, rtol=0, atol=1e-10)
        for model in (by_torch, by_kernels):
            model.flat.detach().sub_(model.gradient, alpha=0.05)
    torch.testing.assert_close(by_kernels.flat, by_torch.flat, rtol=0, atol=1e-10)
    torch_sums = torch_gradients.pop_sums()
    kernel_sums = kernel_gradients.pop_sums()
    np.testing.assert_allclose(kernel_sums, torch_sums, rtol=1e-10)
    sums_after_pop = kernel_gradients.pop_sums()
    assert sums_after_pop.samples == 0


@pytest.mark.parametrize("hidden", HIDDEN, ids=str)
def test_a_perceptron_learns_as_by_autograd(hidden: list[int]) -> None:
    batches = [make_hlf_batch(size, seed=size) for size in (1, 33, 128, 40)]

    assert_learns_as_by_autograd(HlfSettings(hidden=hidden), batches)


@pytest.mark.slow
@pytest.mark.parametrize("frame", Frame)
@pytest.mark.parametrize(
    "settings",
    [
        ParticlesSettings(gru_width=1),
        ParticlesSettings(gru_width=50, read_from=ReadFrom.START),
        InclusiveSettings(gru_width=7, dense_width=5, read_from=ReadFrom.START),
        InclusiveSettings(gru_width=50, dense_width=25),
    ],
    ids=repr,
)
def test_a_recurrent_network_learns_as_by_autograd(
    settings: RecurrentSettings, frame: Frame
) -> None:
    with_hlf = isinstance(settings, InclusiveSettings)
    # 70 events of up to 40 particles are more than one block of steps.
    batches = []
    for size, longest in ((1, 1), (3, 9), (70, 40), (16, 25)):
        batch = make_particle_batch(size, longest=longest, seed=size, with_hlf=with_hlf)
        batches.append(batch)

    assert_learns_as_by_autograd(settings.model_copy(update={"frame": frame}), batches)


def test_padding_does_not_count() -> None:
    model = make_double(ParticlesSettings(gru_width=4))
    gradients = make_gradients(model)
    batch = make_particle_batch(20, longest=30, seed=4)
    gradients.compute(batch)
    gradient = model.gradient.clone()

    particles, num_particles = batch.inputs
    particles[torch.arange(30) >= num_particles[:, None]] = float("nan")
    gradients.compute(batch)

    torch.testing.assert_close(model.gradient, gradient, rtol=0, atol=0)


def test_more_particles_than_the_array_holds_are_refused() -> None:
    gradients = make_gradients(make_double(ParticlesSettings(gru_width=4, frame=Frame.DETECTOR)))
    batch = make_particle_batch(5, longest=30, seed=4)
    batch.inputs[1][2] = 31

    with pytest.raises(IndexError, match="31 particles in an array for 30"):
        gradients.compute(batch)


@pytest.mark.parametrize("feature", [math.nan, math.inf])
def test_a_feature_that_is_not_finite_spoils_the_gradient(feature: float) -> None:
    # A limit would make infinity finite.
    scalers = {"hlf": SCALERS["hlf"]._replace(limit=None)}
    model = make_double(HlfSettings(hidden=[20, 10]), scalers)
    batch = make_hlf_batch(33, seed=1)
    batch.inputs[0][2, 5] = feature

    make_gradients(model).compute(batch)

    assert not model.gradient_is_finite()


def test_single_precision_is_as_exact_as_torchs() -> None:
    settings = HlfSettings(hidden=[50, 20, 10])
    torch.manual_seed(7)
    model = FlatModel(HlfClassifier(settings, SCALERS, 3))
    exact = make_double(settings)
    exact.flat.detach().copy_(model.flat.detach())
    TorchGradients(exact).compute(make_hlf_batch(128, seed=3))
    batch = make_hlf_batch(128, seed=3, dtype=torch.float32)

    def largest_error(gradients: Gradients) -> float:
        gradients.compute(batch)
        return float((model.gradient - exact.gradient).abs().max())

    torch_error = largest_error(TorchGradients(model))
    assert largest_error(make_gradients(model)) < 3 * torch_error + 1e-7


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_without_a_class_is_refused(label: int) -> None:
    batch = make_hlf_batch(20, seed=1)
    batch.labels[7] = label

    with pytest.raises(IndexError, match="label"):
        make_gradients(make_double(HlfSettings(hidden=[5]))).compute(batch)


class SquaredLogits(HlfClassifier):
    """Has the layers of a perceptron, and another result."""

    def forward(self, hlf: Tensor) -> Tensor:
        return super().forward(hlf).square()


class RotatedFeatures(HlfClassifier):
    """Rotates the high-level features before it scales them."""

    def standard_form(self) -> StandardForm:
        return super().standard_form()._replace(frame=LeptonFrame("hlf"))


SETTINGS = HlfSettings(hidden=[5])


@pytest.mark.parametrize(
    "network",
    [
        SquaredLogits(SETTINGS, SCALERS, 3),
        RotatedFeatures(SETTINGS, SCALERS, 3),
        nn.Linear(4, 3),
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3, bias=False)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 3)),
        nn.Sequential(),
    ],
    ids=lambda network: type(network).__name__,
)
def test_other_networks_take_backpropagation(network: nn.Module) -> None:
    assert compiled_engine(network) is None


def test_a_network_without_an_engine_takes_the_gradients_of_torch() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))

    assert isinstance(make_gradients(FlatModel(network)), TorchGradients)


def test_kernels_release_pythons_lock() -> None:
    kernels: dict[str, Dispatcher] = {}
    modules = (kernel, optimizer, perceptron, gru, recurrent, vector_kernels, messages, serving)
    for module in modules:
        for name, function in vars(module).items():
            if isinstance(function, Dispatcher):
                kernels[f"{module.__name__}.{name}"] = function

    assert len(kernels) > 20
    locking = [name for name, function in kernels.items() if not function.targetoptions["nogil"]]
    assert locking == []


@compiled
def asinhs(values: np.ndarray) -> np.ndarray:
    results = np.empty_like(values)
    for i in range(values.size):
        results[i] = asinh(values[i])
    return results


@pytest.mark.parametrize("sign", [1, -1])
def test_asinh_of_single_precision_is_exact_within_rounding(sign: int) -> None:
    magnitudes = np.array([0.0, *np.logspace(-8, 19, 20_001)])
    values = sign * magnitudes.astype(np.float32)

    expected = np.arcsinh(values.astype(np.float64))

    np.testing.assert_allclose(asinhs(values), expected, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("options", [{}, kernel.kernel.keywords], ids=["exact", "as in kernels"])
def test_asinh_of_nan_and_infinity_is_nan(options: dict[str, Any]) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0], dtype=np.float32)
    compiled_asinhs = numba.njit(**options)(asinhs.py_func)  # type: ignore[attr-defined]

    is_nan = np.isnan(compiled_asinhs(values))
    assert is_nan.tolist() == [True, True, True, False]
