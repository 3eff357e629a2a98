"""The first layer of networks on images: scaling, centre crop, and the order of axes that convolutions take."""

from __future__ import annotations

from torch import Tensor, nn

from models.networks.scaling_layer import Scaler, Standardize


class Pixels(nn.Module):
    """Raw images (B, H, W, C) of 0 to 255 to scaled ones (B, C, side, side), around the centre.

    Examples:
        >>> import torch
        >>> Pixels(Scaler([10.0], [2.0]), 2)(torch.full((1, 4, 4, 1), 14, dtype=torch.uint8))
        tensor([[[[2., 2.],
                  [2., 2.]]]])
    """

    def __init__(self, scaler: Scaler, side: int) -> None:
        super().__init__()
        self.scaling = Standardize(scaler)
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        """Crop, scale, and move the channels."""
        top, left = ((length - self.side) // 2 for length in images.shape[1:3])
        cropped = images[:, top : top + self.side, left : left + self.side]
        scaled: Tensor = self.scaling(cropped)
        return scaled.permute(0, 3, 1, 2)
