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
    rows = np.random.default_rng(1).normal(mean, std, (5000, len(mean)))
    scaled = Standardize(Scaler(mean, std))(torch.from_numpy(rows).float())
    assert torch.allclose(scaled.mean(dim=0), torch.zeros(len(mean)), atol=0.1)
    assert torch.allclose(scaled.std(dim=0), torch.ones(len(mean)), atol=0.1)


def test_a_heavy_tail_is_scaled_as_its_logarithm_with_its_sign() -> None:
    rows = torch.tensor(
        [[-1000.0, 7.0], [-0.1, 7.0], [0.0, 7.0], [0.1, 7.0], [5.0, 8.0], [1e12, 1e12]]
    )
    scaled = Standardize(Scaler([0.5, 7.0], [2.0, 0.5], [0.1, 0.0], 10.0))(rows)
    logarithm = torch.log(torch.tensor([2e4, 1 + 2**0.5, 1.0, 1 + 2**0.5, 50 + 2501**0.5, 2e13]))
    signs = torch.tensor([-1.0, -1.0, 1.0, 1.0, 1.0, 1.0])
    torch.testing.assert_close(scaled[:, 0], ((signs * logarithm - 0.5) / 2).clamp(-10, 10))
    assert scaled[:, 1].tolist() == [0, 0, 0, 0, 2, 10]


@pytest.mark.parametrize("name", ["hlf", "particles"])
def test_the_kernel_scales_as_the_layer(name: str) -> None:
    layer = Standardize(ROBUST_SCALERS[name])
    rng = np.random.default_rng(3)
    rows = (rng.normal(size=(500, len(layer.mean))) * 10.0 ** rng.uniform(-4, 6, (500, 1))).astype(
        np.float32
    )
    expected = layer(torch.from_numpy(rows)).numpy()
    contiguous_columns = np.ascontiguousarray(rows.T)
    for column, values in enumerate(contiguous_columns):
        scale(values, column_scaling(layer), column)
    np.testing.assert_allclose(contiguous_columns.T, expected, rtol=3e-6, atol=3e-6)


def test_scaling_is_a_constant_of_the_model() -> None:
    scaling = Standardize(ROBUST_SCALERS["particles"])
    assert list(scaling.parameters()) == []
    assert set(scaling.state_dict()) == {"mean", "inverse_std"}


def test_columns_that_never_vary_become_0() -> None:
    scaled = Standardize(Scaler([5.0, 0.0], [1.0, 2.0]))(torch.tensor([[[5.0, 2.0], [5.0, 4.0]]]))
    assert scaled.tolist() == [[[0, 1], [0, 2]]]
