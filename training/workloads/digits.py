"""The 1,797 digits that come with scikit-learn (8 x 8 pixels), enlarged to the images of other workloads."""

from __future__ import annotations

from typing import Final

import numpy as np
from sklearn.datasets import load_digits

from training.workloads.image_files import LabelledImages

_HIGHEST: Final = 16


def enlarged_digits(side: int, num_channels: int) -> LabelledImages:
    """Each pixel becomes a square, in the middle of a black image; values of 0 to 255, the same in all channels.

    Args:
        side: Height and width of the images, at least 8.
        num_channels: Number of equal channels.

    Examples:
        >>> enlarged_digits(28, 1).pixels.shape
        (1797, 28, 28, 1)
    """
    found = load_digits()
    small = np.rint(found.images * (255 / _HIGHEST)).astype(np.uint8)
    factor = side // small.shape[1]
    large = small.repeat(factor, axis=1).repeat(factor, axis=2)
    before = (side - large.shape[1]) // 2
    after = side - large.shape[1] - before
    centred = np.pad(large, ((0, 0), (before, after), (before, after)))
    pixels = np.repeat(centred[..., None], num_channels, axis=3)
    return LabelledImages(pixels, found.target.astype(np.int64))
