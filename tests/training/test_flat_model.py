"""A flat model is the same network."""

from __future__ import annotations

import torch
from torch import nn

from training.flat_model import FlatModel


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))


def test_parameters_and_gradients_are_views_of_the_vectors() -> None:
    flat = FlatModel(network())
    flat.module(torch.randn(7, 5)).sum().backward()
    parameters = list(flat.module.parameters())
    torch.testing.assert_close(torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None]), flat.gradient)
    flat.flat.data.fill_(2.5)
    assert all((parameter == 2.5).all() for parameter in parameters)
    flat.zero_gradient()
    assert not any(p.grad.any() for p in parameters if p.grad is not None)
