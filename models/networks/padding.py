"""What particle lists hold beyond their particles, and lists without any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.networks.scaling_layer import Standardize


def scaled_rows(
    scaling: Standardize, particles: Tensor, num_particles: Tensor
) -> tuple[Tensor, Tensor]:
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


def pad_to_one(column: Tensor) -> Tensor:
    """In an export to ONNX a column with at least one event and one row, of zeros; else the column itself.

    onnxruntime ends the process if a GRU gets no events or no rows, and cannot reshape an empty array.

    Args:
        column: (B,) numbers of particles, or (B, L, num_columns) rows.
    """
    fill: Callable[[Tensor], Tensor] = _Filled.apply
    return fill(column) if torch.onnx.is_in_onnx_export() else column


class _Filled(torch.autograd.Function):
    """Written out for ONNX, since torch's exporter makes 30 operators of a padding of unknown width."""

    @staticmethod
    def forward(_: Any, column: Tensor) -> Tensor:
        return column.clone()

    @staticmethod
    def symbolic(graph: Any, column: Any) -> Any:
        least = torch.tensor([1, 1, 0] if column.type().dim() > 1 else [1])
        shape = graph.op("Shape", column)
        missing = graph.op(
            "Sub", graph.op("Max", shape, graph.op("Constant", value_t=least)), shape
        )
        before = graph.op("Constant", value_t=torch.zeros_like(least))
        filled = graph.op("Pad", column, graph.op("Concat", before, missing, axis_i=0))
        return filled.setType(column.type().with_sizes([None] * len(least)))
