"""The classifier on high-level features: a multilayer perceptron (Migliorini 2020, section 4.3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn

from models.scaling import Standardize


class HlfClassifier(nn.Module):
    """Raw HLF (B, 14) to logits (B, num_classes): scaling, dense layers with ReLU, one linear output layer.

    Softmax belongs to prediction: the loss takes logits.
    """

    #: Columns of the features Parquet that it takes, in this order.
    inputs: ClassVar[tuple[str, ...]] = ("hlf",)

    def __init__(self, *, mean: Sequence[float], std: Sequence[float], hidden: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.scaling = Standardize(mean, std)
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise([len(mean), *hidden]):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], num_classes))

    def forward(self, hlf: Tensor) -> Tensor:
        """Logits of raw high-level features."""
        logits: Tensor = self.layers(self.scaling(hlf))
        return logits
