"""The classifier on high-level features: a multilayer perceptron (Migliorini 2020, section 4.3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from features.columns import NUM_HLF
from models.networks.classifier import Classifier, Parts, dense
from models.networks.scaling_layer import Scaler, Standardize


class HlfClassifier(Classifier):
    """Raw HLF (B, NUM_HLF) to logits (B, num_classes): scaling, dense layers with ReLU, one linear output layer.

    Examples:
        >>> import torch
        >>> model = HlfClassifier([50], {"hlf": Scaler([0.0] * NUM_HLF, [1.0] * NUM_HLF)}, num_classes=3)
        >>> model(torch.zeros(2, NUM_HLF)).shape
        torch.Size([2, 3])
    """

    inputs: ClassVar[tuple[str, ...]] = ("hlf",)

    def __init__(self, hidden: Sequence[int], scalers: Mapping[str, Scaler], num_classes: int) -> None:
        super().__init__()
        self.scaling = Standardize(*scalers["hlf"])
        self.layers = nn.Sequential(*dense(NUM_HLF, *hidden), nn.Linear(hidden[-1], num_classes))

    def forward(self, hlf: Tensor) -> Tensor:
        """Logits of raw high-level features."""
        logits: Tensor = self.layers(self.scaling(hlf))
        return logits

    @override
    def parts(self) -> Parts:
        return Parts(None, self.scaling, list(self.layers))
