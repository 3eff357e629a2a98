"""The base class of all networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.inputs import input_tensors
from models.networks.network_settings import NetworkSettings
from models.networks.scaling_layer import Scaler, Standardize

if TYPE_CHECKING:
    # A type alone: other networks do not depend on its code.
    from models.networks.particle_encoder import ParticleEncoder


class Parts(NamedTuple):
    """A network of a common form: a list encoder or none, then linear layers with biases and ReLU between them."""

    encoder: ParticleEncoder | None
    scaling: Standardize | None
    """Scaling of the features that the layers take, beside the state of the encoder."""
    layers: Sequence[nn.Module]
    frame: nn.Module | None = None
    """Brings the features that the layers take into the network's frame, before their scaling."""


class Classifier(nn.Module):
    """A network from raw features to logits (B, num_classes) of B events; feature scaling is its first layer.

    The loss takes logits; prediction applies the softmax. `models.saved_model.build` makes a network from its settings.
    `forward` takes the columns named by `inputs`, in that order, on one device:

    * `hlf`, (B, NUM_HLF): see `features.columns.HIGH_LEVEL`.
    * `particles`, (B, L, 19): see `features.columns.PARTICLE`; L is at least 1, and readers cut it to
      the longest event of the batch.
    * `num_particles`, (B,) int64: number of valid rows of `particles`, from the first; the other rows are padding.

    Args:
        settings: Settings of the network.
        scalers: A scaler for each scaled input.
        num_classes: Width of the output.
    """

    def __init__(self, settings: NetworkSettings, scalers: Mapping[str, Scaler], num_classes: int) -> None:  # noqa: ARG002
        super().__init__()
        self.inputs = settings.inputs
        """Columns of the features Parquet that `forward` takes, in this order."""

    def parts(self) -> Parts | None:
        """The parts of a network of this common form, which compiled code can train; None for others.

        A class that overrides `forward` overrides this too, or compiled code does not take it.
        """
        return None

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Softmax of the logits, (num_events, num_classes), for columns as for `models.inputs.input_tensors`."""
        self.eval()
        weights = next(self.parameters())
        inputs = [tensor.to(weights.device) for tensor in input_tensors(columns, self.inputs, dtype=weights.dtype)]
        with torch.inference_mode():
            return np.asarray(torch.softmax(self(*inputs), dim=1).cpu().numpy(), dtype=np.float32)


def fresh(settings: NetworkSettings, scalers: Mapping[str, Scaler], num_classes: int) -> Classifier:
    """The network of some settings with fresh weights from torch's random state; arguments as for `Classifier`."""
    network: Classifier = getattr(import_module(settings.module), settings.classifier)(settings, scalers, num_classes)
    return network


def dense(*widths: int) -> list[nn.Module]:
    """Linear layers between these widths, each with ReLU."""
    return [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
