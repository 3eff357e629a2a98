"""The first layer of networks on particles: every event is turned so that its lepton points the same way."""

from __future__ import annotations

import math
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
    swapped: Tensor
    fixed: Tensor
    of_cos: Tensor
    of_sign: Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        self.columns = columns = turned_columns(name)
        picked = torch.eye(len(INPUT_COLUMNS[name].features))
        azimuths, xs, ys, beams = (picked[torch.from_numpy(each)] for each in columns[:4])
        along = xs.sum(dim=0) + ys.sum(dim=0)
        constants = {
            "azimuths": azimuths.T,
            "of_lepton": picked[[columns.azimuth, columns.eta]].T,
            "swapped": ys.T @ xs - xs.T @ ys,
            "fixed": 1.0 - azimuths.sum(dim=0) - along - beams.sum(dim=0),
            "of_cos": along,
            "of_sign": beams.sum(dim=0),
        }
        for each, values in constants.items():
            # Copies, since torch's program files warn about tensors that are views.
            self.register_buffer(each, values.clone(memory_format=torch.contiguous_format), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Raw rows (B, L, num_columns), of which the first has the lepton, or only that row (B, num_columns)."""
        lepton = (rows[:, :1] if rows.dim() == 3 else rows) @ self.of_lepton
        azimuth, eta = lepton[..., :1], lepton[..., 1:]
        factors = self.fixed + azimuth.cos() * self.of_cos + (1.0 - 2.0 * _step(-eta)) * self.of_sign
        angles = rows @ self.azimuths - azimuth
        angles = angles - 2.0 * math.pi * (_step(angles - math.pi) - _step(-angles - math.pi))
        turned: Tensor = rows * factors + (rows @ self.swapped) * azimuth.sin() + angles @ self.azimuths.T
        return turned


def _step(values: Tensor) -> Tensor:
    """1 above 0, else 0; differently only within single precision of 0."""
    return 1.0 - torch.relu(1.0 - torch.relu(values * _STEEP))


def frame_layer(frame: Frame, name: str) -> nn.Module:
    """The layer that brings an input into a frame."""
    return LeptonFrame(name) if frame is Frame.LEPTON else nn.Identity()
