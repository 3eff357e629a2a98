"""The base class of all networks, and the softmax that turns their logits into probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from features.columns import NUM_PARTICLE_FEATURES, hlf_names
from models.inputs import input_arrays
from models.networks.network_settings import NetworkSettings
from models.networks.scaling_layer import Scaler, Standardize

if TYPE_CHECKING:
    # Only a type: other networks do not depend on its code.
    from models.networks.particle_encoder import ParticleEncoder


class StandardForm(NamedTuple):
    """The layers of a network whose form is one that compiled code can train.

    The form is: an encoder of particle lists or none, then linear layers with biases and ReLU
    between them. The layers take the state of the encoder, the scaled features, or both.
    """

    encoder: ParticleEncoder | None
    """Turns the particle list into a vector; None for networks without particles."""
    scaling: Standardize | None
    """Scaling of the high-level features that the layers take; None if they take none."""
    layers: Sequence[nn.Module]
    frame: nn.Module | None = None
    """Rotates the high-level features into the network's frame, before their scaling; None if
    not."""


class Classifier(nn.Module):
    """A network from raw features to logits (B, num_classes) of B events.

    Feature scaling is its first layer. The loss takes logits; prediction applies the softmax.
    `models.saved_model.build` makes a network from its settings. `forward` takes the columns named
    by `inputs`, in that order, on one device:

    * `hlf`, (B, NUM_HLF): see `features.columns.HIGH_LEVEL`.
    * `particles`, (B, L, 19): see `features.columns.PARTICLE`; L is at least 1, and readers cut it
      to the longest event of the batch.
    * `num_particles`, (B,) int64: number of valid rows of `particles`, from the first; the other
      rows are padding.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        scalers: Mapping[str, Scaler],  # noqa: ARG002
        num_classes: int,  # noqa: ARG002
    ) -> None:
        super().__init__()
        self.inputs = settings.inputs
        """Columns of the features Parquet that `forward` takes, in this order."""

    def standard_form(self) -> StandardForm | None:
        """Return the layers of a network of a form that compiled code can train, else None.

        A class that overrides `forward` overrides this too. Else compiled code does not train it.
        """
        return None

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Predict class probabilities, (num_events, num_classes), from numpy columns.

        The columns are those of `models.inputs.input_arrays`. The network switches to evaluation
        mode. The prediction is that of `ProbabilityNetwork`.
        """
        self.eval()
        # The first weight tells device and precision of the network.
        weights = next(self.parameters())
        inputs = []
        for values in input_arrays(columns, self.inputs).values():
            tensor = torch.from_numpy(values).to(weights.device)
            if tensor.is_floating_point():
                tensor = tensor.to(weights.dtype)
            inputs.append(tensor)
        with torch.inference_mode():
            probabilities = ProbabilityNetwork(self)(*inputs).cpu().numpy()
        return np.asarray(probabilities, dtype=np.float32)


class ProbabilityNetwork(nn.Module):
    """A network with the softmax of its logits: the prediction, in torch and in all exported forms.

    An event with a number that is not finite has no probabilities: all are NaN. A network alone may
    give plausible ones: its scaling cuts off infinite numbers, and onnxruntime's GRU drops NaN.
    """

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, *columns: Tensor) -> Tensor:
        """Compute the probabilities of the classes, (B, num_classes), of the network's raw columns.

        They are the softmax of the logits, and NaN for events with a number that is not finite.

        Raises:
            RuntimeError: The columns have different numbers of events, or an event has more
                particles than rows.
        """
        inputs = dict(zip(self.network.inputs, columns, strict=True))
        # The second term is 0 for valid events, NaN for others.
        return torch.softmax(self.network(*columns), dim=1) + nan_where_invalid(**inputs)


def nan_where_invalid(
    *,
    hlf: Tensor | None = None,
    particles: Tensor | None = None,
    num_particles: Tensor | None = None,
) -> Tensor:
    """Return NaN for events with a number that is not finite or a negative count, else 0, (B, 1).

    Numbers are multiplied by 0 and summed, which gives NaN if one is not finite. All runtimes can
    do that, while few of them have a test for such numbers. Padding has no effect.

    Args:
        hlf: (B, NUM_HLF).
        particles: (B, L, 19).
        num_particles: (B,); without it all rows of `particles` count.
    """
    zeros: list[Tensor] = []
    if hlf is not None:
        # A product with a column of zeros is the sum of 0 x feature.
        zeros.append(hlf @ hlf.new_zeros(len(hlf_names()), 1))
    if particles is not None:
        row_zeros = particles @ particles.new_zeros(NUM_PARTICLE_FEATURES, 1)
        if num_particles is not None:
            row_zeros = _without_padding(row_zeros, num_particles[:, None, None])
        zeros.append(row_zeros.sum(dim=1))
    if len(zeros) > 1:
        return zeros[0] + zeros[1]
    return zeros[0]


def _without_padding(rows: Tensor, counts: Tensor) -> Tensor:
    """Set padding rows (B, L, 1) to zero, and put one row for the count before them.

    The count (B, 1, 1) is the number of valid rows. Its row is NaN if the count is negative, else
    0.
    """
    # The root of a negative count is NaN, and so is its product with 0.
    count_zeros = torch.sqrt(counts.to(rows.dtype)) * 0.0
    # Columns of different numbers of events are an error only if they are concatenated.
    rows = torch.cat([count_zeros, rows], dim=1)
    # Row 0 is that of the count, so particles have the rows 1 to count.
    row_numbers = torch.arange(rows.shape[1], device=rows.device)[:, None]
    is_padding = row_numbers > counts.clamp(min=0)
    return rows.masked_fill(is_padding, 0.0)


def dense(*widths: int) -> list[nn.Module]:
    """Make linear layers between these widths, each followed by ReLU."""
    layers: list[nn.Module] = []
    for width, next_width in pairwise(widths):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return layers
