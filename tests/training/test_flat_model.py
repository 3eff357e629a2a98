"""A flat model is the same network."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize("make", [lambda p: torch.optim.Adam(p, lr=0.1), lambda p: torch.optim.SGD(p, 0.1, 0.9)])
def test_training_the_vector_equals_training_layer_by_layer(make: object) -> None:
    assert callable(make)
    plain, flat = network().double(), FlatModel(network().double())
    optimizers = make(plain.parameters()), make([flat.flat])
    for step in range(10):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        plain.zero_grad()
        plain(x).square().sum().backward()
        flat.zero_gradient()
        flat.module(x).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    torch.testing.assert_close(flat.flat.detach(), expected, rtol=0, atol=1e-14)
