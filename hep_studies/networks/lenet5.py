"""LeNet-5 (LeCun et al. 1998), which the thesis trains on MNIST (Migliorini 2020, section 4.2)."""

from __future__ import annotations

from torch import nn

from hep_studies.networks.pixels import Pixels
from models.networks.scaling_layer import Scaler


def lenet5(scaler: Scaler) -> nn.Module:
    """Return two convolutions and three dense layers, 61,706 parameters, for images (B, 28, 28, 1).

    It has ReLU and maxima, as it is used today; the paper has tanh and weighted averages.

    Examples:
        >>> network = lenet5(Scaler([0.0], [255.0]))
        >>> sum(weights.numel() for weights in network.parameters())
        61706
    """
    return nn.Sequential(
        Pixels(scaler, 28),
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
