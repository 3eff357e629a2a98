"""The first layer of networks on particles: it rotates events by their lepton."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from features.columns import INPUT_COLUMNS, RotationBehaviour
from models.networks.network_settings import Frame

#: Names of the lepton's azimuth and pseudorapidity in the first row of each input.
_LEPTON: Final = {"particles": ("phi", "eta"), "hlf": ("lepton_phi", "lepton_eta")}
#: Factor that makes the smallest difference of numbers around pi in single precision larger than 1,
#: so that `_step` is exact.
_STEEP: Final = 2.0**24


_T = TypeVar("_T")


class RotatedColumns(NamedTuple):
    """Indices of the columns of an input that rotate or mirror with an event."""

    azimuths: NDArray[np.int64]
    """Columns of azimuths."""
    xs: NDArray[np.int64]
    """Columns of x components of vectors."""
    ys: NDArray[np.int64]
    """Columns of y components of the same vectors."""
    beams: NDArray[np.int64]
    """Columns that change their sign with the direction of the beam."""
    azimuth: int
    """Column of the lepton's azimuth."""
    eta: int
    """Column of the lepton's pseudorapidity."""


def rotated_columns(name: str) -> RotatedColumns:
    """Find the columns of an input that rotate, from the table of columns.

    `name` is that of an input, `particles` or `hlf`.

    Examples:
        >>> rotated_columns("hlf").azimuths
        array([2, 8])
    """
    table = INPUT_COLUMNS[name]
    # The table says for each column how it changes if an event rotates.
    rotations = [feature.rotation for feature in table.features]

    def columns_with(rotation: RotationBehaviour) -> NDArray[np.int64]:
        has_rotation = [behaviour is rotation for behaviour in rotations]
        return np.flatnonzero(has_rotation)

    azimuth, eta = _LEPTON[name]
    return RotatedColumns(
        azimuths=columns_with(RotationBehaviour.AZIMUTH),
        xs=columns_with(RotationBehaviour.X),
        ys=columns_with(RotationBehaviour.Y),
        beams=columns_with(RotationBehaviour.BEAM),
        azimuth=table.names.index(azimuth),
        eta=table.names.index(eta),
    )


class LeptonFrame(nn.Module):
    """Rotates and mirrors events so that the lepton has azimuth 0 and pseudorapidity eta >= 0.

    The rotation is around the beam, the mirror image changes the direction of the beam. Both leave
    the physics unchanged, so a network need not learn that from its events. Each number follows
    only from those that rotate with it, as in compiled code. The operators are those that small
    runtimes have.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.columns = rotated_columns(name)
        rotations = [feature.rotation for feature in INPUT_COLUMNS[name].features]
        self._runs = runs_of(rotations)
        """Neighbouring columns of the same behaviour under rotation: behaviour, first column,
        end."""

    def forward(self, rows: Tensor) -> Tensor:
        """Rotate raw rows (B, L, num_columns), or only the first row (B, num_columns).

        The first row is that of the lepton, for particles and for high-level features.
        """
        lepton = rows[:, :1] if rows.dim() == 3 else rows
        azimuth_column, eta_column = self.columns.azimuth, self.columns.eta
        azimuth = lepton[..., azimuth_column : azimuth_column + 1]
        eta = lepton[..., eta_column : eta_column + 1]
        cos, sin = azimuth.cos(), azimuth.sin()
        # It is -1 if the lepton has a negative eta, else 1.
        beam_sign = 1.0 - 2.0 * _step(-eta)
        rotated = []
        # Neighbouring columns with the same behaviour are rotated together.
        for rotation, start, stop in self._runs:
            values = rows[..., start:stop]
            if rotation is RotationBehaviour.X:
                # The y component is the column behind its x component.
                y = rows[..., stop : stop + 1]
                values = values * cos + y * sin
            elif rotation is RotationBehaviour.Y:
                x = rows[..., start - 1 : start]
                values = values * cos - x * sin
            elif rotation is RotationBehaviour.BEAM:
                values = values * beam_sign
            elif rotation is RotationBehaviour.AZIMUTH:
                values = _wrap(values - azimuth)
            rotated.append(values)
        return torch.cat(rotated, dim=-1)


def runs_of(values: Sequence[_T]) -> list[tuple[_T, int, int]]:
    """Find runs of equal values: the value, the index of the first, and the index behind the last.

    Examples:
        >>> runs_of("aab")
        [('a', 0, 2), ('b', 2, 3)]
    """
    runs: list[tuple[_T, int, int]] = []
    start = 0
    for stop in range(1, len(values) + 1):
        is_end = stop == len(values)
        if is_end or values[stop] != values[start]:
            runs.append((values[start], start, stop))
            start = stop
    return runs


def _wrap(angles: Tensor) -> Tensor:
    """Bring differences of two azimuths into -pi to pi."""
    # A difference above pi has one turn too many, one below -pi one too few.
    too_many = _step(angles - math.pi)
    too_few = _step(-angles - math.pi)
    num_turns = too_many - too_few
    return angles - 2.0 * math.pi * num_turns


def _step(values: Tensor) -> Tensor:
    """Return 1 above 0 and 0 below, by operators that small runtimes have.

    Within single precision of 0 the result may lie between.
    """
    rising = torch.relu(values * _STEEP)
    return 1.0 - torch.relu(1.0 - rising)


def frame_layer(frame: Frame, name: str) -> nn.Module:
    """Make the layer that brings an input, `particles` or `hlf`, into a frame."""
    return LeptonFrame(name) if frame is Frame.LEPTON else nn.Identity()
