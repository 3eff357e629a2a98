"""The random numbers of a worker's steps: for the augmentation, and for layers such as dropout."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hep_core.random_streams import random_stream
from training.readers.batch import Batch


class Augmentation(NamedTuple):
    """Random crops of images with a black border, of which half are mirrored.

    See He et al. 2016, section 4.2.

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
        """Crop and mirror images (B, H, W, C); returns (B, side, side, C).

        Each image gets a random position of the crop, and is mirrored with probability 1/2. The
        number of random draws depends on B only.
        """
        num_images, height, width, _ = images.shape
        border = self.padding
        padded = functional.pad(images, (0, 0, border, border, border, border))
        top = rng.integers(height + 2 * border - self.side + 1, size=num_images)
        left_edge = rng.integers(width + 2 * border - self.side + 1, size=num_images)
        # These are the rows and columns of each crop in the padded image, (B, side).
        offsets = np.arange(self.side)
        rows = top[:, None] + offsets
        columns = left_edge[:, None] + offsets
        is_mirrored = rng.random(num_images) < 0.5
        columns = np.where(is_mirrored[:, None], columns[:, ::-1], columns)

        def to_device(indices: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(indices).to(images.device)

        # The indices of shapes (B, 1, 1), (B, side, 1) and (B, 1, side) select all pixels at once.
        image_indices = to_device(np.arange(num_images)[:, None, None])
        return padded[image_indices, to_device(rows[:, :, None]), to_device(columns[:, None, :])]


#: Seeds of torch are below this number.
_SEEDS: Final = 2**63


class Draws:
    """One random stream per worker, so that a resumed worker continues with the next numbers.

    Before a step, torch gets a seed from the stream. So virtual workers that share torch's
    generator do not depend on each other, and a worker draws the same under MPI and in the
    simulator.

    `augmentation`: changes the first input of each batch; None for no change.
    """

    def __init__(self, *, seed: int, rank: int, augmentation: Augmentation | None = None) -> None:
        self._rng = random_stream(seed, "draws", rank)
        self._augmentation = augmentation

    def prepare(self, batch: Batch, *, for_torch: bool) -> Batch:
        """Return the batch of the next step, augmented if so configured.

        `for_torch`: whether torch draws random numbers in this step; its generator then gets a new
        seed.
        """
        if for_torch:
            seed = int(self._rng.integers(_SEEDS))
            # torch.manual_seed would take 100 microseconds, since it asks for devices of all kinds.
            torch.default_generator.manual_seed(seed)
            if batch.labels.is_cuda:
                torch.cuda.manual_seed(seed)
        if self._augmentation is None:
            return batch
        images, *other_inputs = batch.inputs
        augmented = self._augmentation.apply(images, self._rng)
        return Batch((augmented, *other_inputs), batch.labels, batch.weights, batch.spectators)

    def state(self) -> dict[str, Any]:
        """Return the position in the stream, in plain values."""
        return dict(self._rng.bit_generator.state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a position."""
        self._rng.bit_generator.state = state
