"""ResNet-20 for CIFAR-10 (He et al. 2016, section 4.2), the network of the thesis' table 4.1."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn
from torch.nn import functional

from hep_studies.networks.pixels import Pixels
from models.networks.scaling_layer import Scaler

#: Numbers of channels of the three stages.
_WIDTHS: Final = (16, 32, 64)
#: Number of residual blocks of each stage.
_BLOCKS: Final = 3


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with batch norm, and the shortcut of option A of the paper.

    The shortcut has no parameters. Where the width doubles, it takes every second pixel, and its
    additional channels are 0.
    """

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self._stride = 1 if width == width_in else 2
        self._added_channels = width - width_in
        self.layers = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride=self._stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, width, H / stride, W / stride) of images (B, width_in, H, W)."""
        # The shortcut: every `stride`-th pixel, with channels of 0 added behind its own.
        shortcut = images[:, :, :: self._stride, :: self._stride]
        padded = functional.pad(shortcut, (0, 0, 0, 0, 0, self._added_channels))
        return functional.relu(self.layers(images) + padded)


class ResNet20(nn.Module):
    """19 convolutions with batch norm, a mean over the pixels, and one dense layer.

    It takes images (B, 32, 32, 3).
    """

    def __init__(self, scaler: Scaler) -> None:
        super().__init__()
        first = _WIDTHS[0]
        self.begin = nn.Sequential(
            Pixels(scaler, 32),
            nn.Conv2d(3, first, 3, padding=1, bias=False),
            nn.BatchNorm2d(first),
            nn.ReLU(),
        )
        # Numbers of channels before and behind each of the nine blocks.
        widths = [first, *(width for width in _WIDTHS for _ in range(_BLOCKS))]
        self.blocks = nn.Sequential(*map(ResidualBlock, widths[:-1], widths[1:]))
        self.output = nn.Linear(_WIDTHS[-1], 10)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of raw images."""
        features = self.blocks(self.begin(images))
        logits: Tensor = self.output(features.mean(dim=(2, 3)))
        return logits


def resnet20(scaler: Scaler) -> nn.Module:
    """Return the network with fresh weights, 269,722 parameters."""
    return ResNet20(scaler)
