"""The network on the particle list."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import SCALERS, random_events, run, small_network
from scipy.special import expit
from torch import nn

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES
from models.networks.classifier import Classifier
from models.networks.particle_encoder import remember_long


def logits_by_hand(model: Classifier, event: np.ndarray) -> np.ndarray:
    """Logits of one event, (num_particles, 19) raw, one particle after the other.

    The equations are those of Cho et al. (2014).
    """
    weights = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    mean, std = np.array(SCALERS["particles"][:2])
    w_r, w_z, w_n = np.split(weights["encoder.gru.weight_ih_l0"], 3)
    u_r, u_z, u_n = np.split(weights["encoder.gru.weight_hh_l0"], 3)
    b_r, b_z, b_n = np.split(weights["encoder.gru.bias_ih_l0"], 3)
    c_r, c_z, c_n = np.split(weights["encoder.gru.bias_hh_l0"], 3)
    state = np.zeros(len(b_r))
    for particle in event:
        x = (particle - mean) / std
        reset = expit(w_r @ x + b_r + u_r @ state + c_r)
        update = expit(w_z @ x + b_z + u_z @ state + c_z)
        proposal = np.tanh(w_n @ x + b_n + reset * (u_n @ state + c_n))
        state = (1 - update) * proposal + update * state
    return weights["output.weight"] @ state + weights["output.bias"]


@pytest.mark.parametrize(("read_from", "step"), [("start", 1), ("end", -1)])
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_the_network_is_a_gru_over_the_valid_particles(
    read_from: str, step: int, lengths: list[int]
) -> None:
    model = small_network("particles", read_from=read_from, frame="detector")
    events = random_events(lengths)

    logits = run(model, events).detach().numpy()

    particles = events["particles"].numpy()
    for index, length in enumerate(lengths):
        valid_particles = particles[index, :length]
        expected = logits_by_hand(model, valid_particles[::step])
        np.testing.assert_allclose(logits[index], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["particles", "inclusive"])
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_reading_from_the_end_is_reading_the_reversed_valid_particles(
    name: str, lengths: list[int]
) -> None:
    from_start = small_network(name, read_from="start", frame="detector")
    from_end = small_network(name, read_from="end", frame="detector")
    events = random_events(lengths)
    particles = events["particles"].clone()
    for event, length in enumerate(lengths):
        particles[event, :length] = particles[event, :length].flip(0)

    logits = run(from_start, {**events, "particles": particles})

    torch.testing.assert_close(run(from_end, events), logits, rtol=0, atol=1e-12)


def relative_influence(gru: nn.GRU, num_steps: int) -> float:
    """Influence of the first step on the last state, relative to that of the last step."""
    steps = torch.zeros(1, num_steps, NUM_PARTICLE_FEATURES, requires_grad=True)
    states, _ = gru(steps)
    states[0, -1].sum().backward()
    assert steps.grad is not None
    influence = steps.grad[0].abs().sum(dim=1)
    return float(influence[0] / influence[-1])


def test_a_new_network_remembers_the_first_of_700_particles() -> None:
    torch.manual_seed(1)
    gru = nn.GRU(NUM_PARTICLE_FEATURES, 50, batch_first=True)
    assert relative_influence(gru, 700) == 0

    remember_long(gru, MAX_PARTICLES)

    assert relative_influence(gru, 700) > 1e-3
    model = small_network("particles", dtype=torch.float32, gru_width=50)
    assert relative_influence(model.encoder.gru, 700) > 1e-3


def test_memories_are_spread_from_1_step_to_the_longest_event() -> None:
    torch.manual_seed(1)
    gru = nn.GRU(NUM_PARTICLE_FEATURES, 1000)
    initial = {name: tensor.clone() for name, tensor in gru.state_dict().items()}

    remember_long(gru, 801)

    bias = (gru.bias_ih_l0 + gru.bias_hh_l0).detach()
    memories = bias[1000:2000].exp()
    assert memories.min() >= 1
    assert memories.max() <= 801
    assert float(memories.median()) == pytest.approx(math.sqrt(801), rel=0.2)
    # All other weights are unchanged.
    other_gates = [*range(1000), *range(2000, 3000)]
    initial_bias = initial["bias_ih_l0"] + initial["bias_hh_l0"]
    assert torch.equal(bias[other_gates], initial_bias[other_gates])
    assert torch.equal(gru.weight_ih_l0, initial["weight_ih_l0"])
    assert torch.equal(gru.weight_hh_l0, initial["weight_hh_l0"])
