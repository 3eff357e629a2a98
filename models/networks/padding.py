"""Layers for particle lists of different lengths: their padding, and lists without particles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.networks.scaling_layer import Standardize


def scaled_rows(
    scaling: Standardize, particles: Tensor, num_particles: Tensor
) -> tuple[Tensor, Tensor]:
    """Scale the rows of raw particles, and mark those that count.

    Rows of padding become 0. An event without particles counts as one particle with the mean of
    every feature, which is 0 after the scaling.

    Args:
        scaling: The scaling of the features.
        particles: (B, L, 19) raw particles.
        num_particles: (B,) number of valid rows of each event, from the first.

    Returns:
        The scaled rows (B, L, 19) and a mask (B, L) of the rows that count.

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
    possible_counts = torch.arange(particles.shape[1] + 1, device=particles.device)
    not_negative = num_particles.clamp(min=0)
    # Taking entry n of 0, 1, ..., L gives n itself; only `gather` checks that none is too large.
    counts = possible_counts.gather(0, not_negative)[:, None]
    row_numbers = possible_counts[:-1]
    is_padding = row_numbers >= counts
    # Whatever padding holds, it is 0 after the scaling.
    rows = scaling(particles).masked_fill(is_padding[..., None], 0.0)
    # The clamp lets the first row of an event without particles count.
    is_counted = row_numbers < counts.clamp(min=1)
    return rows, is_counted


def pad_to_one(column: Tensor) -> Tensor:
    """Fill a column with zeros to at least one event and one row, in an export to ONNX only.

    Outside an export the column is returned unchanged. onnxruntime ends the process if a GRU gets
    no events or no rows, and cannot reshape an empty array.

    Args:
        column: (B,) numbers of particles, or (B, L, num_columns) rows.
    """
    # The exporter traces the network. A question to `torch.onnx` would load it: 12 MB of each rank.
    if not torch.jit.is_tracing():
        return column
    pad: Callable[[Tensor], Tensor] = _PadToOne.apply
    return pad(column)


class _PadToOne(torch.autograd.Function):
    """Pads with few operators; torch's exporter would make 30 of a padding of unknown width.

    `symbolic` writes these operators into the exported graph. `forward` only serves its tracing.
    """

    @staticmethod
    def forward(_: Any, column: Tensor) -> Tensor:
        """Return the column, since examples of an export have at least one event and one row."""
        return column.clone()

    @staticmethod
    def symbolic(graph: Any, column: Any) -> Any:
        """Add operators to the graph that pad the column with zeros behind its end.

        The widths of the padding are max(shape, least shape) - shape.
        """
        # At least one event and one row are needed; the axis of features needs no padding.
        least_lengths = [1, 1, 0] if column.type().dim() > 1 else [1]
        least_shape = torch.tensor(least_lengths)
        shape = graph.op("Shape", column)
        least = graph.op("Constant", value_t=least_shape)
        padded_shape = graph.op("Max", shape, least)
        missing = graph.op("Sub", padded_shape, shape)
        no_padding = graph.op("Constant", value_t=torch.zeros_like(least_shape))
        # ONNX takes the widths before all axes, then those behind them.
        widths = graph.op("Concat", no_padding, missing, axis_i=0)
        padded = graph.op("Pad", column, widths)
        # All lengths of the result are unknown.
        unknown_lengths = [None] * len(least_lengths)
        padded_type = column.type().with_sizes(unknown_lengths)
        return padded.setType(padded_type)
