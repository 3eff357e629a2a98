"""The first layer of networks on particles: every event is turned so that its lepton points the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from features.columns import INPUT_COLUMNS, RotationBehaviour
from models.networks.network_settings import Frame

#: Names of the lepton's azimuth and pseudorapidity in the first row of an input.
_LEPTON: Final = {"particles": ("phi", "eta"), "hlf": ("lepton_phi", "lepton_eta")}
#: Of the differences of numbers around pi in single precision the smallest becomes more than 1.
_STEEP: Final = 2.0**24


_T = TypeVar("_T")


class RotatedColumns(NamedTuple):
    """Numbers of the columns that turn with an event."""

    azimuths: NDArray[np.int64]
    xs: NDArray[np.int64]
    ys: NDArray[np.int64]
    """Of the same vectors as `xs`."""
    beams: NDArray[np.int64]
    """Columns that change their sign with the direction of the beam."""
    azimuth: int
    """The lepton's azimuth."""
    eta: int
    """The lepton's pseudorapidity."""


def rotated_columns(name: str) -> RotatedColumns:
    """The columns of an input, from the table of columns.

    Examples:
        >>> rotated_columns("hlf").azimuths
        array([2, 8])
    """
    features, names = INPUT_COLUMNS[name].features, INPUT_COLUMNS[name].names
    azimuths, xs, ys, beams = (
        np.flatnonzero([feature.rotation is turning for feature in features])
        for turning in (
            RotationBehaviour.AZIMUTH,
            RotationBehaviour.X,
            RotationBehaviour.Y,
            RotationBehaviour.BEAM,
        )
    )
    return RotatedColumns(azimuths, xs, ys, beams, *map(names.index, _LEPTON[name]))


class LeptonFrame(nn.Module):
    """Turns events around the beam, and mirrors them along it, so that the lepton has azimuth 0 and eta >= 0.

    Both leave the physics unchanged, so a network need not learn that from its events. Each number follows from those
    that turn with it alone, as in compiled code. The operators are those that small runtimes have.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.columns = rotated_columns(name)
        self._runs = runs_of([feature.rotation for feature in INPUT_COLUMNS[name].features])

    def forward(self, rows: Tensor) -> Tensor:
        """Raw rows (B, L, num_columns), of which the first has the lepton, or only that row (B, num_columns)."""
        lepton = rows[:, :1] if rows.dim() == 3 else rows
        azimuth, eta = (
            lepton[..., place : place + 1] for place in (self.columns.azimuth, self.columns.eta)
        )
        cos, sin, sign = azimuth.cos(), azimuth.sin(), 1.0 - 2.0 * _step(-eta)
        turned = []
        for turning, start, stop in self._runs:
            values = rows[..., start:stop]
            if turning is RotationBehaviour.X:
                values = values * cos + rows[..., stop : stop + 1] * sin
            elif turning is RotationBehaviour.Y:
                values = values * cos - rows[..., start - 1 : start] * sin
            elif turning is RotationBehaviour.BEAM:
                values = values * sign
            elif turning is RotationBehaviour.AZIMUTH:
                angles = values - azimuth
                values = angles - 2.0 * math.pi * (
                    _step(angles - math.pi) - _step(-angles - math.pi)
                )
            turned.append(values)
        return torch.cat(turned, dim=-1)


def runs_of(values: Sequence[_T]) -> list[tuple[_T, int, int]]:
    """Each value that stands in some places in a row, with the first of these places and the one behind the last.

    Examples:
        >>> runs_of("aab")
        [('a', 0, 2), ('b', 2, 3)]
    """
    starts = [
        place for place, value in enumerate(values) if place == 0 or value != values[place - 1]
    ]
    return [(values[start], start, stop) for start, stop in pairwise([*starts, len(values)])]


def _step(values: Tensor) -> Tensor:
    """1 above 0, else 0; differently only within single precision of 0."""
    return 1.0 - torch.relu(1.0 - torch.relu(values * _STEEP))


def frame_layer(frame: Frame, name: str) -> nn.Module:
    """The layer that brings an input into a frame."""
    return LeptonFrame(name) if frame is Frame.LEPTON else nn.Identity()
