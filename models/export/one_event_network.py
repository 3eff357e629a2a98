"""A network for one event a call, with fixed shapes and few operators, for runtimes without dynamic axes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from features.columns import PARTICLE_FEATURE_NAMES
from models.networks.classifier import Classifier, nan_where_invalid
from models.networks.lepton_frame import runs_of
from models.networks.particle_encoder import ParticleEncoder
from models.networks.scaling_layer import Standardize

#: Exactly one of these features of a particle is 1; all of them are 0 in a row of padding.
_KINDS: Final = slice(
    PARTICLE_FEATURE_NAMES.index("is_charged_hadron"), PARTICLE_FEATURE_NAMES.index("is_muon") + 1
)
#: Input of an update gate that a state survives unchanged: its sigmoid is 1 in single precision.
_HOLD: Final = 64.0


class PlainScaling(nn.Module):
    """`Standardize` in operators that small runtimes have, so without Asinh, Where and Clip.

    asinh(x) is log(z + sqrt(z^2 + 1)) of the size z of x, with the sign of x; a limit is made of two Relu.
    """

    mean: Tensor
    inverse_std: Tensor
    inverse_unit: Tensor

    def __init__(self, scaling: Standardize) -> None:
        super().__init__()
        self.limit = scaling.limit
        numbers = {
            "mean": scaling.mean,
            "inverse_std": scaling.inverse_std,
            "inverse_unit": 1.0 / scaling.unit,
        }
        for name, values in numbers.items():
            self.register_buffer(name, values.clone())
        self._runs = runs_of(scaling.is_logarithmic.tolist())

    def forward(self, columns: Tensor) -> Tensor:
        """Scale (..., num_columns) raw features."""
        parts = []
        for is_logarithmic, start, stop in self._runs:
            part = columns[..., start:stop]
            if is_logarithmic:
                part = part * self.inverse_unit[start:stop]
                part = _log_of_size(torch.relu(part)) - _log_of_size(torch.relu(-part))
            parts.append(part)
        columns = torch.cat(parts, dim=-1) if parts else columns
        found = (columns - self.mean) * self.inverse_std
        if self.limit is None:
            return found
        return self.limit - torch.relu(2.0 * self.limit - torch.relu(found + self.limit))


def _log_of_size(size: Tensor) -> Tensor:
    return torch.log(size + torch.sqrt(size * size + 1.0))


def _plain(scaling: nn.Module) -> nn.Module:
    return PlainScaling(scaling) if isinstance(scaling, Standardize) else scaling


class HoldingEncoder(nn.Module):
    """A list encoder whose GRU holds its state while it reads padding, so that its last state is the result.

    The GRU gets one more input, 1 in rows of padding, which opens its update gates entirely. So nothing is gathered,
    and the number of particles is not needed.
    """

    kinds: Tensor
    start: Tensor

    def __init__(self, encoder: ParticleEncoder) -> None:
        super().__init__()
        old = encoder.gru
        width, num_features = old.hidden_size, old.input_size
        self.frame, self.scaling = encoder.frame, _plain(encoder.scaling)
        self.reads_from_end = encoder.reads_from_end
        self.gru = nn.GRU(num_features + 1, width, batch_first=True)
        holds = torch.zeros(3 * width, 1)
        holds[width : 2 * width] = _HOLD  # torch keeps the gates in the order reset, update, new.
        state = {
            **old.state_dict(),
            "weight_ih_l0": torch.cat([old.get_parameter("weight_ih_l0"), holds], dim=1),
        }
        self.gru.load_state_dict(state)
        self.register_buffer("kinds", torch.ones(_KINDS.stop - _KINDS.start, 1))
        # Given, since torch's own start has the batch size of the input, which takes six operators.
        self.register_buffer("start", torch.zeros(1, 1, width))

    def forward(self, particles: Tensor) -> Tensor:
        """State (1, width) of raw particles (1, rows, 19); the rows behind the last particle are 0."""
        is_valid = particles[..., _KINDS] @ self.kinds
        is_padding = 1.0 - is_valid
        # Scaling may have no value at 0, such as a logarithm: it gets rows of 1 instead.
        scaled = self.scaling(self.frame(particles) + is_padding) * is_valid
        # The GRU reads the first row also of an event without particles, as the network does.
        rows = torch.cat(
            [scaled, torch.cat([self.start[..., :1], is_padding[:, 1:]], dim=1)], dim=2
        )
        if self.reads_from_end:
            rows = rows.flip(1)
        _, last = self.gru(rows, self.start)
        found: Tensor = last.squeeze(0)
        return found


class OneEventNetwork(nn.Module):
    """A network with a `standard_form`, from the raw columns of one event to (1, num_classes) probabilities."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        form = model.standard_form()
        if form is None:
            raise ValueError(f"{type(model).__name__} has no form for one event")
        self.encoder = None if form.encoder is None else HoldingEncoder(form.encoder)
        self.scaling = None if form.scaling is None else _plain(form.scaling)
        self.frame = form.frame or nn.Identity()
        self.layers = nn.Sequential(*form.layers)
        self.inputs = tuple(name for name in model.inputs if name != "num_particles")

    def forward(self, *columns: Tensor) -> Tensor:
        """Probabilities of the classes, for the columns `inputs`."""
        given = dict(zip(self.inputs, columns, strict=True))
        joined = []
        if self.encoder is not None:
            joined.append(self.encoder(given["particles"]))
        if self.scaling is not None:
            joined.append(self.scaling(self.frame(given["hlf"])))
        found = torch.cat(joined, dim=1) if len(joined) > 1 else joined[0]
        # A sum of one, since SOFIE would take a product and the addition after it for a linear layer.
        return torch.softmax(self.layers(found), dim=1) + nan_where_invalid(**given).sum(
            dim=1, keepdim=True
        )
