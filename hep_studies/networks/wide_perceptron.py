"""The perceptron 784 - 1000 - 2000 - 1000 - 10 (Hermans 2017, appendix A.2)."""

from __future__ import annotations

from torch import nn

from models.networks.scaling_layer import Scaler, Standardize


def wide_perceptron(scaler: Scaler) -> nn.Module:
    """Return dense layers with ReLU, 4,798,010 parameters, for images in one row (B, 784).

    Compiled code trains it on the CPU.
    """
    return nn.Sequential(
        Standardize(scaler),
        nn.Linear(784, 1000),
        nn.ReLU(),
        nn.Linear(1000, 2000),
        nn.ReLU(),
        nn.Linear(2000, 1000),
        nn.ReLU(),
        nn.Linear(1000, 10),
    )
