"""The first layer of networks on particles: every event is turned so that its lepton points the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from features.columns import INPUT_COLUMNS, Turning
from models.networks.network_settings import Frame

#: Names of the lepton's azimuth and pseudorapidity in the first row of an input.
_LEPTON: Final = {"particles": ("phi", "eta"), "hlf": ("lepton_phi", "lepton_eta")}
#: Of the differences of numbers around pi in single precision the smallest becomes more than 1.
_STEEP: Final = 2.0**24


class TurnedColumns(NamedTuple):
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


def turned_columns(name: str) -> TurnedColumns:
    """The columns of an input, from the table of columns.

    Examples:
        >>> turned_columns("hlf").azimuths
        array([2, 8])
    """
    features, names = INPUT_COLUMNS[name].features, INPUT_COLUMNS[name].names
    azimuths, xs, ys, beams = (
        np.flatnonzero([feature.turning is turning for feature in features])
        for turning in (Turning.AZIMUTH, Turning.X, Turning.Y, Turning.BEAM)
    )
    return TurnedColumns(azimuths, xs, ys, beams, *map(names.index, _LEPTON[name]))


class LeptonFrame(nn.Module):
    """Turns events around the beam, and mirrors them along it, so that the lepton has azimuth 0 and eta >= 0.

    Both leave the physics unchanged, so a network need not learn that from its events. The operators are those that
    small runtimes have: matrix products with constants, Relu, Sin and Cos.

    Args:
        name: The input, `particles` or `hlf`.

    Examples:
        >>> hlf = torch.zeros(1, 14)
        >>> hlf[0, [2, 7, 8]] = torch.tensor([3.0, -1.0, -1.0])  # Azimuth of MET, eta and azimuth of the lepton.
        >>> LeptonFrame("hlf")(hlf)[0, [2, 7, 8]]
        tensor([-2.2832,  1.0000,  0.0000])
    """

    azimuths: Tensor
    of_lepton: Tensor
    fixed: Tensor
    of_cos: Tensor
    of_sin: Tensor
    of_sign: Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        self.columns = columns = turned_columns(name)
        width = len(INPUT_COLUMNS[name].features)
        turning = [*columns.azimuths, *columns.xs, *columns.ys, *columns.beams]
        still = np.setdiff1d(np.arange(width), turning)
        both = [*columns.xs, *columns.ys]
        matrices = {
            "azimuths": _ones(width, columns.azimuths),
            "of_lepton": _ones(width, [columns.azimuth, columns.eta]),
            "fixed": torch.diag(_ones(width, still).sum(dim=1)),
            "of_cos": torch.diag(_ones(width, both).sum(dim=1)),
            "of_sin": _ones(width, columns.ys) @ _ones(width, columns.xs).T
            - _ones(width, columns.xs) @ _ones(width, columns.ys).T,
            "of_sign": torch.diag(_ones(width, columns.beams).sum(dim=1)),
        }
        for each, matrix in matrices.items():
            self.register_buffer(each, matrix, persistent=False)

    def forward(self, events: Tensor) -> Tensor:
        """Raw rows (B, L, num_columns), of which the first has the lepton, or only that row (B, num_columns)."""
        rows = events if events.dim() == 3 else events[:, None]
        azimuth, eta = (rows[:, :1] @ self.of_lepton).split(1, dim=2)
        matrix = self.fixed + azimuth.cos() * self.of_cos + azimuth.sin() * self.of_sin
        matrix = matrix + (1.0 - 2.0 * _step(-eta)) * self.of_sign
        angles = rows @ self.azimuths - azimuth
        angles = angles - 2.0 * math.pi * (_step(angles - math.pi) - _step(-angles - math.pi))
        turned = rows @ matrix + angles @ self.azimuths.T
        return turned if events.dim() == 3 else turned[:, 0]


def _step(values: Tensor) -> Tensor:
    """1 above 0, else 0; differently only within single precision of 0."""
    return 1.0 - torch.relu(1.0 - torch.relu(values * _STEEP))


def _ones(width: int, columns: Sequence[int] | NDArray[np.int64]) -> Tensor:
    """The (width, number of columns) matrix that picks these columns."""
    return torch.eye(width)[:, torch.as_tensor(np.asarray(columns, np.int64))]


def frame_layer(frame: Frame, name: str) -> nn.Module:
    """The layer that brings an input into a frame."""
    return LeptonFrame(name) if frame is Frame.LEPTON else nn.Identity()
