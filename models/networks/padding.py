"""What particle lists hold beyond their particles, for networks that treat all rows alike."""

from __future__ import annotations

import torch
from torch import Tensor

from models.networks.scaling_layer import Standardize


def scaled_rows(scaling: Standardize, particles: Tensor, num_particles: Tensor) -> tuple[Tensor, Tensor]:
    """Scaled rows of raw particles (B, L, 19), of which `num_particles` (B,) are valid, and which rows count, (B, L).

    Rows of padding are 0. An event without particles counts as one particle with the mean of every feature.

    Raises:
        RuntimeError: An event has more particles than the list has rows; an exported network fails in the same way.

    Examples:
        >>> from models.networks.scaling_layer import Scaler
        >>> scaling = Standardize(Scaler([1.0], [2.0]))
        >>> rows, is_valid = scaled_rows(scaling, torch.full((2, 3, 1), 5.0), torch.tensor([2, 0]))
        >>> rows[..., 0], is_valid
        (tensor([[2., 2., 0.],
                [0., 0., 0.]]), tensor([[ True,  True, False],
                [ True, False, False]]))
    """
    numbers = torch.arange(particles.shape[1] + 1, device=particles.device)
    # The number of each number is itself: only `gather` checks that none is too large.
    valid = numbers.gather(0, num_particles.clamp(min=0))[:, None]
    rows = scaling(particles).masked_fill((numbers[:-1] >= valid)[..., None], 0.0)
    return rows, numbers[:-1] < valid.clamp(min=1)
