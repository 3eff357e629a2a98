"""A network for one event a call, with fixed shapes and few operators, for small runtimes.

It computes the same probabilities as the network from which it is built.
"""

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
_PARTICLE_TYPES: Final = slice(
    PARTICLE_FEATURE_NAMES.index("is_charged_hadron"), PARTICLE_FEATURE_NAMES.index("is_muon") + 1
)
#: Input of an update gate at which the GRU keeps its state: its sigmoid is 1 in single precision.
_HOLD: Final = 64.0


class PlainScaling(nn.Module):
    """`Standardize` in operators that small runtimes have, so without Asinh, Where and Clip.

    asinh(x) is log(z + sqrt(z^2 + 1)) of the size z of x, with the sign of x. A limit on both sides
    is made of two Relu.
    """

    mean: Tensor
    inverse_std: Tensor
    inverse_unit: Tensor

    def __init__(self, scaling: Standardize) -> None:
        super().__init__()
        self.limit = scaling.limit
        self.register_buffer("mean", scaling.mean.clone())
        self.register_buffer("inverse_std", scaling.inverse_std.clone())
        self.register_buffer("inverse_unit", 1.0 / scaling.unit)
        # Neighbouring columns of the same scaling are scaled together.
        self._runs = runs_of(scaling.is_logarithmic.tolist())

    def forward(self, columns: Tensor) -> Tensor:
        """Scale (..., num_columns) raw features."""
        scaled_runs = []
        for is_logarithmic, start, stop in self._runs:
            values = columns[..., start:stop]
            if is_logarithmic:
                values = _asinh(values * self.inverse_unit[start:stop])
            scaled_runs.append(values)
        if scaled_runs:
            columns = torch.cat(scaled_runs, dim=-1)
        scaled = (columns - self.mean) * self.inverse_std
        if self.limit is None:
            return scaled
        # With m the limit, the first Relu cuts s at -m, the second one at m.
        above_lower_limit = torch.relu(scaled + self.limit)
        below_upper_limit = torch.relu(2.0 * self.limit - above_lower_limit)
        return self.limit - below_upper_limit


def _asinh(values: Tensor) -> Tensor:
    """Compute asinh by operators that small runtimes have."""
    # One of the two terms is 0, by the sign of the value.
    positive = _asinh_of_size(torch.relu(values))
    negative = _asinh_of_size(torch.relu(-values))
    return positive - negative


def _asinh_of_size(size: Tensor) -> Tensor:
    """Compute asinh of numbers that are not negative."""
    return torch.log(size + torch.sqrt(size * size + 1.0))


def _plain(scaling: nn.Module) -> nn.Module:
    """Replace a scaling by its plain form; other layers stay."""
    return PlainScaling(scaling) if isinstance(scaling, Standardize) else scaling


class HoldingEncoder(nn.Module):
    """A list encoder whose GRU holds its state while it reads padding.

    The GRU gets one more input, 1 in rows of padding, which opens its update gates entirely, so
    that the state stays. So no state needs to be selected by the number of particles, and that is
    no input.
    """

    flag_sum: Tensor
    """Column of ones: a product with it sums the flags of the particle types."""
    start: Tensor
    """(1, 1, width) zeros, the first state of the GRU."""

    def __init__(self, encoder: ParticleEncoder) -> None:
        super().__init__()
        width, num_features = encoder.gru.hidden_size, encoder.gru.input_size
        self.frame = encoder.frame
        self.scaling = _plain(encoder.scaling)
        self.reads_from_end = encoder.reads_from_end
        self.gru = nn.GRU(num_features + 1, width, batch_first=True)
        # These are the weights of the new input, to the three gates of each unit.
        padding_weights = torch.zeros(3 * width, 1)
        # torch keeps the gates in the order reset, update, new.
        padding_weights[width : 2 * width] = _HOLD
        # The other weights are those of the trained GRU.
        state = encoder.gru.state_dict()
        trained_weights = state["weight_ih_l0"]
        state["weight_ih_l0"] = torch.cat([trained_weights, padding_weights], dim=1)
        self.gru.load_state_dict(state)
        num_flags = _PARTICLE_TYPES.stop - _PARTICLE_TYPES.start
        self.register_buffer("flag_sum", torch.ones(num_flags, 1))
        # torch's own start has the batch size of the input, which takes six operators.
        self.register_buffer("start", torch.zeros(1, 1, width))

    def forward(self, particles: Tensor) -> Tensor:
        """Compute the state (1, width) of raw particles (1, rows, 19).

        The rows behind the last particle are 0.
        """
        # The flags of the particle types sum to 1 in a particle, to 0 in padding.
        is_valid = particles[..., _PARTICLE_TYPES] @ self.flag_sum
        is_padding = 1.0 - is_valid
        # Scaling may have no value at 0, such as a logarithm: padding becomes rows of 1 instead.
        filled = self.frame(particles) + is_padding
        scaled = self.scaling(filled) * is_valid
        # The GRU reads the first row also of an event without particles, as the network does.
        holds = torch.cat([self.start[..., :1], is_padding[:, 1:]], dim=1)
        rows = torch.cat([scaled, holds], dim=2)
        # Padding then comes first, where it holds the initial state.
        if self.reads_from_end:
            rows = rows.flip(1)
        _, last_state = self.gru(rows, self.start)
        state: Tensor = last_state.squeeze(0)
        return state


class OneEventNetwork(nn.Module):
    """A network of the standard form, from the raw columns of one event to probabilities.

    The number of particles is no input: it follows from the rows that are not 0. A network of
    another form is a `ValueError`.
    """

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
        """Compute probabilities of the classes, (1, num_classes), from the columns `inputs`.

        They are NaN for an event with a number that is not finite.
        """
        inputs = dict(zip(self.inputs, columns, strict=True))
        features = []
        if self.encoder is not None:
            features.append(self.encoder(inputs["particles"]))
        if self.scaling is not None:
            features.append(self.scaling(self.frame(inputs["hlf"])))
        joined = features[0]
        if len(features) > 1:
            joined = torch.cat(features, dim=1)
        logits = self.layers(joined)
        probabilities = torch.softmax(logits, dim=1)
        invalid = nan_where_invalid(**inputs)
        # A sum of one, since SOFIE would take a product and the addition after it for a linear
        # layer.
        return probabilities + invalid.sum(dim=1, keepdim=True)
