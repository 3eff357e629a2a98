"""The 7-layer network of EASGD on CIFAR-10 (Zhang, Choromanska and LeCun 2015, section 5.1)."""

from __future__ import annotations

from torch import nn

from hep_studies.networks.pixels import Pixels
from models.networks.scaling_layer import Scaler


def seven_layers(scaler: Scaler) -> nn.Module:
    """Return (3,28) C(64,24) P(64,12) C(128,8) P(128,4) C(64,2) D(256,1) S(10,1).

    This is the notation of the paper: C is a convolution, P a maximum over 2 x 2 pixels, D a dense
    layer, S the output. The review of the paper does not state the dropout of D; 0.5 is the usual
    rate (Hinton et al. 2012). The sizes leave no padding, so that the kernels have 5, 5 and 3
    pixels. Training takes random crops of 28 x 28 pixels; the network takes the centre of whole
    images (B, 32, 32, 3).
    """
    return nn.Sequential(
        Pixels(scaler, 28),
        nn.Conv2d(3, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 256),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(256, 10),
    )
