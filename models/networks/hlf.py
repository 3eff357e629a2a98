"""The classifier on high-level features: a perceptron (Migliorini 2020, section 4.3.2)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from typing_extensions import override

from features.columns import hlf_names
from models.networks.classifier import Classifier, StandardForm, dense
from models.networks.hlf_settings import HlfSettings
from models.networks.scaling_layer import Scaler, Standardize


class HlfClassifier(Classifier):
    """Maps raw HLF (B, NUM_HLF) to logits (B, num_classes).

    It has scaling, dense layers with ReLU, and one linear output layer.
    """

    def __init__(
        self, settings: HlfSettings, scalers: Mapping[str, Scaler], num_classes: int
    ) -> None:
        super().__init__(settings, scalers, num_classes)
        self.scaling = Standardize(scalers["hlf"])
        widths = len(hlf_names()), *settings.hidden
        hidden_layers = dense(*widths)
        output = nn.Linear(widths[-1], num_classes)
        self.layers = nn.Sequential(*hidden_layers, output)

    def forward(self, hlf: Tensor) -> Tensor:
        """Compute logits of raw high-level features."""
        logits: Tensor = self.layers(self.scaling(hlf))
        return logits

    @override
    def standard_form(self) -> StandardForm:
        return StandardForm(None, self.scaling, list(self.layers))
