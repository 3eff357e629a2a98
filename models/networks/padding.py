"""Padding of particle lists, and lists without particles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.networks.scaling_layer import Standardize


def scaled_rows(
    scaling: Standardize, particles: Tensor, num_particles: Tensor
) -> tuple[Tensor, Tensor]:
    """Scale the rows of raw particles (B, L, 19).

    Returns them with a mask (B, L) of the rows that count. `num_particles` (B,) rows of each event
    are valid. Rows of padding are 0. An event without particles counts as one particle with the
    mean of every feature.

    Raises:
        RuntimeError: An event has more particles than the list has rows; an exported network fails
            in the same way.

    Examples:
        >>> from models.networks.scaling_layer import Scaler
        >>> scaling = Standardize(Scaler([1.0], [2.0]))
        >>> rows, is_valid = scaled_rows(scaling, torch.full((2, 3, 1), 5.0), torch.tensor([2, 0]))
        >>> rows[..., 0], is_valid
        (tensor([[2., 2., 0.],
                [0., 0., 0.]]), tensor([[ True,  True, False],
                [ True, False, False]]))
    """
    row_numbers = torch.arange(particles.shape[1] + 1, device=particles.device)
    # It gives the counts themselves: only `gather` checks that none is too large.
    counts = row_numbers.gather(0, num_particles.clamp(min=0))[:, None]
    row_numbers = row_numbers[:-1]
    is_padding = row_numbers >= counts
    rows = scaling(particles).masked_fill(is_padding[..., None], 0.0)
    return rows, row_numbers < counts.clamp(min=1)


def pad_to_one(column: Tensor) -> Tensor:
    """In an export to ONNX, fill a column with zeros to at least one event and one row.

    Else return it. onnxruntime ends the process if a GRU gets no events or no rows, and cannot
    reshape an empty array.

    Args:
        column: (B,) numbers of particles, or (B, L, num_columns) rows.
    """
    if not torch.onnx.is_in_onnx_export():
        return column
    pad: Callable[[Tensor], Tensor] = _PadToOne.apply
    return pad(column)


class _PadToOne(torch.autograd.Function):
    """Pads with few operators: torch's exporter would make 30 of a padding of unknown width."""

    @staticmethod
    def forward(_: Any, column: Tensor) -> Tensor:
        return column.clone()

    @staticmethod
    def symbolic(graph: Any, column: Any) -> Any:
        least_shape = torch.tensor([1, 1, 0] if column.type().dim() > 1 else [1])
        shape = graph.op("Shape", column)
        padded_shape = graph.op("Max", shape, graph.op("Constant", value_t=least_shape))
        missing = graph.op("Sub", padded_shape, shape)
        no_padding = graph.op("Constant", value_t=torch.zeros_like(least_shape))
        widths = graph.op("Concat", no_padding, missing, axis_i=0)
        padded = graph.op("Pad", column, widths)
        return padded.setType(column.type().with_sizes([None] * len(least_shape)))
