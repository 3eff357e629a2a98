"""Compiled losses and gradients are those of autograd, and the networks that fit are found."""

from __future__ import annotations

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
from training.compiled import kernel, optimizer, perceptron, recurrent
from training.compiled.engines import compiled_engine
from training.compiled.kernel import asinh
from training.flat_model import FlatModel
from training.readers.batch import Batch
from training.transports import kernels as vector_kernels
from training.transports import serving
from training.workloads.gradients import CompiledGradients, TorchGradients, make_gradients

SCALERS = {
    name: Scaler(
        np.linspace(-1, 1, width).tolist(),
        np.linspace(0.5, 2, width).tolist(),
        # Of these features some are logarithmic, and some reach the limit.
        np.where(np.arange(width) % 3, 0.0, 0.3).tolist(),
        3.0,
    )
    for name, width in (("hlf", len(hlf_names())), ("particles", 19))
}
HIDDEN = [[1], [7], [50, 20, 10], [150, 100, 50], [3] * 6, [300]]


def in_double(settings: NetworkSettings, scalers: dict[str, Scaler] = SCALERS) -> FlatModel:
    """A network of double precision, always with the same weights."""
    default_dtype_before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(7)
        return FlatModel(settings.build(scalers, 3))
    finally:
        torch.set_default_dtype(default_dtype_before)


def batch_of(
    size: int, *, seed: int, classes: int = 3, dtype: torch.dtype = torch.float64
) -> Batch:
    """Random events; some have the weight 0, some a negative one."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(1, 1, size)
    weights[::5] = 0
    return Batch(
        (torch.tensor(rng.normal(size=(size, len(hlf_names()))) * 3, dtype=dtype),),
        torch.tensor(rng.integers(0, classes, size)),
        torch.tensor(weights, dtype=dtype),
    )


def particles_of(
    size: int, *, longest: int, seed: int, with_hlf: bool, dtype: torch.dtype = torch.float64
) -> Batch:
    """Random events with 0 to `longest` particles; what stands in the padding does not count."""
    rng = np.random.default_rng(seed)
    actual = batch_of(size, seed=seed, dtype=dtype)
    numbers = rng.integers(0, longest + 1, size)
    numbers[0] = longest
    particles = torch.tensor(rng.normal(size=(size, longest, 19)) * 2, dtype=dtype)
    inputs = (*(actual.inputs if with_hlf else ()), particles, torch.tensor(numbers))
    return Batch(inputs, actual.labels, actual.weights)


def train_side_by_side(models: Sequence[FlatModel], batches: Sequence[Batch]) -> None:
    """A hundred steps by backpropagation and in compiled code, each from its own parameters; all stay equal."""
    torchs, ours = TorchGradients(models[0]), make_gradients(models[1])
    assert isinstance(ours, CompiledGradients)
    for step in range(100):
        for model, gradients in ((models[0], torchs), (models[1], ours)):
            gradients.compute(batches[step % len(batches)])
            model.flat.detach().sub_(model.gradient, alpha=0.05)
        torch.testing.assert_close(models[1].gradient, models[0].gradient, rtol=0, atol=1e-10)
    torch.testing.assert_close(models[1].flat, models[0].flat, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.pop_sums(), torchs.pop_sums(), rtol=1e-10)
    assert ours.pop_sums().samples == 0


@pytest.mark.parametrize("hidden", HIDDEN, ids=str)
def test_a_perceptron_learns_as_by_autograd(hidden: list[int]) -> None:
    models = [in_double(HlfSettings(hidden=hidden)) for _ in range(2)]
    train_side_by_side(models, [batch_of(size, seed=size) for size in (1, 33, 128, 40)])


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
    models = [in_double(settings.model_copy(update={"frame": frame})) for _ in range(2)]
    with_hlf = isinstance(settings, InclusiveSettings)
    # 70 events of up to 40 particles are more than one block of steps.
    shapes = ((1, 1), (3, 9), (70, 40), (16, 25))
    train_side_by_side(
        models,
        [
            particles_of(size, longest=longest, seed=size, with_hlf=with_hlf)
            for size, longest in shapes
        ],
    )


def test_padding_does_not_count() -> None:
    model = in_double(ParticlesSettings(gru_width=4))
    batch, gradients = particles_of(20, longest=30, seed=4, with_hlf=False), make_gradients(model)
    gradients.compute(batch)
    clone_before = model.gradient.clone()
    padding = torch.arange(30) >= batch.inputs[1][:, None]
    batch.inputs[0][padding] = float("nan")
    gradients.compute(batch)
    torch.testing.assert_close(model.gradient, clone_before, rtol=0, atol=0)


def test_more_particles_than_there_is_room_for_are_refused() -> None:
    batch = particles_of(5, longest=30, seed=4, with_hlf=False)
    batch.inputs[1][2] = 31
    with pytest.raises(IndexError, match="31 particles in an array for 30"):
        make_gradients(in_double(ParticlesSettings(gru_width=4, frame=Frame.DETECTOR))).compute(
            batch
        )


@pytest.mark.parametrize("poison", ["nan", "inf"])
def test_what_is_not_finite_shows(poison: str) -> None:
    # A limit makes the infinite finite.
    model = in_double(HlfSettings(hidden=[20, 10]), {"hlf": SCALERS["hlf"]._replace(limit=None)})
    batch = batch_of(33, seed=1)
    batch.inputs[0][2, 5] = float(poison)
    make_gradients(model).compute(batch)
    assert not model.gradient_is_finite()


def test_single_precision_is_as_exact_as_torchs() -> None:
    exact = in_double(HlfSettings(hidden=[50, 20, 10]))
    torch.manual_seed(7)
    models = [
        FlatModel(HlfClassifier(HlfSettings(hidden=[50, 20, 10]), SCALERS, 3)) for _ in range(2)
    ]
    for model in models:
        model.flat.detach().copy_(exact.flat.detach())
    exact.flat.detach().copy_(models[0].flat.detach())
    TorchGradients(exact).compute(batch_of(128, seed=3))
    errors = []
    for model, gradients in zip(
        models, (TorchGradients(models[0]), make_gradients(models[1])), strict=True
    ):
        gradients.compute(batch_of(128, seed=3, dtype=torch.float32))
        errors.append((model.gradient - exact.gradient).abs().max().item())
    assert errors[1] < 3 * errors[0] + 1e-7


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_without_a_class_is_refused(label: int) -> None:
    batch = batch_of(20, seed=1)
    batch.labels[7] = label
    with pytest.raises(IndexError, match="label"):
        make_gradients(in_double(HlfSettings(hidden=[5]))).compute(batch)


class SquaredLogits(HlfClassifier):
    """Has the layers of a perceptron, and another result."""

    def forward(self, hlf: Tensor) -> Tensor:
        return super().forward(hlf).square()


class TurnedFeatures(HlfClassifier):
    """Turns the high-level features before it scales them."""

    def standard_form(self) -> StandardForm:
        return super().standard_form()._replace(frame=LeptonFrame("hlf"))


def test_other_networks_take_backpropagation_also_where_the_frame_of_a_perceptron_was_ignored() -> (
    None
):
    linear, settings = nn.Linear(4, 3), HlfSettings(hidden=[5])
    assert compiled_engine(HlfClassifier(settings, SCALERS, 3)) is not None
    remaining = [
        SquaredLogits(settings, SCALERS, 3),
        TurnedFeatures(settings, SCALERS, 3),
        linear,
        nn.Sequential(linear, nn.Tanh(), nn.Linear(3, 3)),
        nn.Sequential(linear, nn.ReLU()),
        nn.Sequential(linear, nn.ReLU(), nn.Linear(3, 3, bias=False)),
        nn.Sequential(linear, nn.ReLU(), nn.Dropout(), nn.Linear(3, 3)),
        nn.Sequential(),
    ]
    assert [compiled_engine(second) for second in remaining] == [None] * len(remaining)
    assert isinstance(make_gradients(FlatModel(remaining[3])), TorchGradients)


KERNELS = {
    f"{module.__name__}.{name}": found
    for module in (kernel, optimizer, perceptron, recurrent, vector_kernels, serving)
    for name, found in vars(module).items()
    if isinstance(found, Dispatcher)
}


@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_keeps_pythons_lock(name: str) -> None:
    assert len(KERNELS) > 20
    assert KERNELS[name].targetoptions["nogil"]


@compiled
def asinhs(values: np.ndarray) -> np.ndarray:
    found = np.empty_like(values)
    for position in range(values.size):
        found[position] = asinh(values[position])
    return found


def test_asinh_of_single_precision_is_right_within_rounding_from_0_to_the_largest_numbers() -> None:
    values = np.concatenate([[0.0], np.logspace(-8, 19, 20_001)]).astype(np.float32)
    for sign in (1, -1):
        actual = asinhs(sign * values)
        expected = np.arcsinh(sign * values.astype(np.float64))
        np.testing.assert_allclose(actual, expected, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("options", [{}, kernel.kernel.keywords], ids=["exact", "as in kernels"])
def test_what_is_not_finite_becomes_no_number(options: dict[str, Any]) -> None:
    # It became about 89, which hid from a compiled network what torch shows.
    values = np.array([np.nan, np.inf, -np.inf, 1.0], dtype=np.float32)
    compiled = numba.njit(**options)(asinhs.py_func)  # type: ignore[attr-defined]
    assert np.isnan(compiled(values)).tolist() == [
        True,
        True,
        True,
        False,
    ]
