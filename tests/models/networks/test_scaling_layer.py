"""Scaling inside the networks."""

from __future__ import annotations

import numpy as np
import torch
from networks import SCALERS

from models.networks.scaling_layer import Standardize


def test_scaling_centres_and_scales_each_column() -> None:
    mean, std = SCALERS["hlf"]
    rows = np.random.default_rng(1).normal(mean, std, (5000, len(mean)))
    scaled = Standardize(mean, std)(torch.from_numpy(rows).float())
    assert torch.allclose(scaled.mean(dim=0), torch.zeros(len(mean)), atol=0.1)
    assert torch.allclose(scaled.std(dim=0), torch.ones(len(mean)), atol=0.1)


def test_scaling_is_a_constant_of_the_model() -> None:
    scaling = Standardize(*SCALERS["particles"])
    assert list(scaling.parameters()) == []
    assert set(scaling.state_dict()) == {"mean", "inverse_std"}


def test_columns_that_never_vary_become_0() -> None:
    scaled = Standardize([5.0, 0.0], [1.0, 2.0])(torch.tensor([[[5.0, 2.0], [5.0, 4.0]]]))
    assert scaled.tolist() == [[[0, 1], [0, 2]]]
