"""Random changes of images in training, drawn from a generator that the caller passes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


class Augmentation(NamedTuple):
    """Random crops of images with a black border, of which half are mirrored (He et al. 2016, section 4.2).

    Examples:
        >>> images = torch.arange(2 * 3 * 3).view(2, 3, 3, 1)
        >>> Augmentation(padding=1, side=3).apply(images, np.random.default_rng(1)).shape
        torch.Size([2, 3, 3, 1])
    """

    padding: int
    """Width of the black border [pixels]."""
    side: int
    """Height and width of the crops [pixels]."""

    def apply(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """Change images (B, H, W, C); the numbers that are drawn depend on B only through their amount."""
        count, height, width, _ = images.shape
        border = self.padding
        padded = functional.pad(images, (0, 0, border, border, border, border))
        top = rng.integers(height + 2 * border - self.side + 1, size=count)
        left = rng.integers(width + 2 * border - self.side + 1, size=count)
        steps = np.arange(self.side)
        columns = left[:, None] + steps
        columns = np.where(rng.random(count)[:, None] < 0.5, columns[:, ::-1], columns)
        places = (np.arange(count)[:, None, None], (top[:, None] + steps)[:, :, None], columns[:, None, :])
        return padded[tuple(torch.from_numpy(place).to(images.device) for place in places)]
