"""Scaling inside the networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import ROBUST_SCALERS, SCALERS

from models.networks.scaling_layer import Scaler, Standardize
from training.compiled.engines import column_scaling
from training.compiled.kernel import scale


def test_scaling_centres_and_scales_each_column() -> None:
    mean, std, *_ = SCALERS["hlf"]
    num_columns = len(mean)
    rng = np.random.default_rng(1)
    rows = rng.normal(mean, std, (5000, num_columns))
    layer = Standardize(Scaler(mean, std))

    scaled = layer(torch.from_numpy(rows).float())

    assert torch.allclose(scaled.mean(dim=0), torch.zeros(num_columns), atol=0.1)
    assert torch.allclose(scaled.std(dim=0), torch.ones(num_columns), atol=0.1)


def test_a_heavy_tail_is_scaled_as_its_logarithm_with_its_sign() -> None:
    tail = torch.tensor([-1000.0, -0.1, 0.0, 0.1, 5.0, 1e12])
    column_without_tail = torch.tensor([7.0, 7.0, 7.0, 7.0, 8.0, 1e12])
    rows = torch.stack([tail, column_without_tail], dim=1)
    layer = Standardize(Scaler([0.5, 7.0], [2.0, 0.5], [0.1, 0.0], 10.0))

    scaled = layer(rows)

    # asinh(x / 0.1) with its sign, where asinh(y) is log(y + sqrt(y**2 + 1)).
    exponentials = torch.tensor([2e4, 1 + 2**0.5, 1.0, 1 + 2**0.5, 50 + 2501**0.5, 2e13])
    signs = torch.tensor([-1.0, -1.0, 1.0, 1.0, 1.0, 1.0])
    logarithms = signs * torch.log(exponentials)
    expected_tail = (logarithms - 0.5) / 2
    torch.testing.assert_close(scaled[:, 0], expected_tail.clamp(-10, 10))
    assert scaled[:, 1].tolist() == [0, 0, 0, 0, 2, 10]


@pytest.mark.parametrize("name", ["hlf", "particles"])
def test_the_kernel_scales_as_the_layer(name: str) -> None:
    layer = Standardize(ROBUST_SCALERS[name])
    rng = np.random.default_rng(3)
    normal_rows = rng.normal(size=(500, len(layer.mean)))
    magnitudes = 10.0 ** rng.uniform(-4, 6, (500, 1))
    rows = (normal_rows * magnitudes).astype(np.float32)
    columns = np.ascontiguousarray(rows.T)

    # The kernel changes the columns in place.
    for index, column in enumerate(columns):
        scale(column, column_scaling(layer), index)

    expected = layer(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(columns.T, expected, rtol=3e-6, atol=3e-6)


def test_scaling_is_a_constant_of_the_model() -> None:
    scaling = Standardize(ROBUST_SCALERS["particles"])
    assert list(scaling.parameters()) == []
    assert set(scaling.state_dict()) == {"mean", "inverse_std"}


def test_columns_that_never_vary_become_0() -> None:
    rows = torch.tensor([[[5.0, 2.0], [5.0, 4.0]]])
    layer = Standardize(Scaler([5.0, 0.0], [1.0, 2.0]))

    scaled = layer(rows)

    assert scaled.tolist() == [[[0, 1], [0, 2]]]
