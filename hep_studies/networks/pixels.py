"""The first layer of networks on images: scaling, centre crop, and the order of axes."""

from __future__ import annotations

from torch import Tensor, nn

from models.networks.scaling_layer import Scaler, Standardize


class Pixels(nn.Module):
    """Crops the centre of raw images and scales it: (B, H, W, C) of 0 to 255 to (B, C, side, side).

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
        """Crop, scale, and move the channels to the axis that convolutions expect."""
        _, height, width, _ = images.shape
        top_row = (height - self.side) // 2
        left_column = (width - self.side) // 2
        rows = slice(top_row, top_row + self.side)
        columns = slice(left_column, left_column + self.side)
        cropped = images[:, rows, columns]
        scaled: Tensor = self.scaling(cropped)
        return scaled.permute(0, 3, 1, 2)
