"""The classifier on high-level features: a multilayer perceptron (Migliorini 2020, section 4.3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn

from features.schema import NUM_HLF
from models.classifier import Classifier
from models.scaling import Scaler, Standardize
from models.settings import ModelSettings


class HlfClassifier(Classifier):
    """Raw HLF (B, 14) to logits (B, num_classes): scaling, dense layers with ReLU, one linear output layer.

    Examples:
        >>> import torch
        >>> model = HlfClassifier(ModelSettings(), {"hlf": Scaler([0.0] * 14, [1.0] * 14)}, num_classes=3)
        >>> model(torch.zeros(2, 14)).shape
        torch.Size([2, 3])
    """

    inputs: ClassVar[tuple[str, ...]] = ("hlf",)

    def __init__(self, settings: ModelSettings, scalers: Mapping[str, Scaler], num_classes: int) -> None:
        super().__init__()
        self.scaling = Standardize(*scalers["hlf"])
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise([NUM_HLF, *settings.hidden]):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(settings.hidden[-1], num_classes))

    def forward(self, hlf: Tensor) -> Tensor:
        """Logits of raw high-level features."""
        logits: Tensor = self.layers(self.scaling(hlf))
        return logits
