"""The network on the particle list."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import SCALERS, random_events, run, small_network
from torch import nn

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES
from models.networks.classifier import Classifier
from models.networks.particle_encoder import remember_long

lengths_of_events = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def by_hand(model: Classifier, event: np.ndarray) -> np.ndarray:
    """Logits of one event, (num_particles, 19) raw, one particle after the other (equations of Cho et al. 2014)."""
    p = {name: value.detach().numpy() for name, value in model.named_parameters()}
    mean, std = np.array(SCALERS["particles"][:2])
    w_r, w_z, w_n = np.split(p["encoder.gru.weight_ih_l0"], 3)
    u_r, u_z, u_n = np.split(p["encoder.gru.weight_hh_l0"], 3)
    b_r, b_z, b_n = np.split(p["encoder.gru.bias_ih_l0"], 3)
    c_r, c_z, c_n = np.split(p["encoder.gru.bias_hh_l0"], 3)
    state = np.zeros(len(b_r))
    for particle in event:
        x = (particle - mean) / std
        reset = 1 / (1 + np.exp(-(w_r @ x + b_r + u_r @ state + c_r)))
        update = 1 / (1 + np.exp(-(w_z @ x + b_z + u_z @ state + c_z)))
        new = np.tanh(w_n @ x + b_n + reset * (u_n @ state + c_n))
        state = (1 - update) * new + update * state
    return p["output.weight"] @ state + p["output.bias"]


@pytest.mark.parametrize(("read_from", "step"), [("start", 1), ("end", -1)])
@given(lengths=lengths_of_events.map(lambda lengths: [max(1, length) for length in lengths]))
def test_the_network_is_a_gru_over_the_valid_particles(
    read_from: str, step: int, lengths: list[int]
) -> None:
    model, events = (
        small_network("particles", read_from=read_from, frame="detector"),
        random_events(lengths),
    )
    actual = run(model, events).detach().numpy()
    for event, length, logits in zip(events["particles"].numpy(), lengths, actual, strict=True):
        np.testing.assert_allclose(
            logits, by_hand(model, event[:length][::step]), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("name", ["particles", "inclusive"])
@given(lengths=lengths_of_events)
def test_reading_from_the_end_is_reading_the_reversed_valid_particles(
    name: str, lengths: list[int]
) -> None:
    events = random_events(lengths)
    reversed_lists = events["particles"].clone()
    for event, length in enumerate(lengths):
        reversed_lists[event, :length] = events["particles"][event, :length].flip(0)
    from_start, from_end = (
        small_network(name, read_from=read_from, frame="detector") for read_from in ("start", "end")
    )
    torch.testing.assert_close(
        run(from_end, events),
        run(from_start, events | {"particles": reversed_lists}),
        rtol=0,
        atol=1e-12,
    )


def reach(gru: nn.GRU, num_steps: int) -> float:
    """How much the first of a number of average steps moves the last state, compared to the last step."""
    x = torch.zeros(1, num_steps, NUM_PARTICLE_FEATURES, requires_grad=True)
    gru(x)[0][0, -1].sum().backward()
    assert x.grad is not None
    return float(x.grad[0, 0].abs().sum() / x.grad[0, -1].abs().sum())


def test_a_new_network_remembers_the_first_of_700_particles() -> None:
    torch.manual_seed(1)
    gru = nn.GRU(NUM_PARTICLE_FEATURES, 50, batch_first=True)
    assert reach(gru, 700) == 0
    remember_long(gru, MAX_PARTICLES)
    assert reach(gru, 700) > 1e-3
    model = small_network("particles", dtype=torch.float32, gru_width=50)
    assert reach(model.encoder.gru, 700) > 1e-3


def test_memories_are_spread_from_1_step_to_the_longest_event() -> None:
    torch.manual_seed(1)
    gru = nn.GRU(NUM_PARTICLE_FEATURES, 1000)
    state_before = [parameter.detach().clone() for parameter in gru.parameters()]
    remember_long(gru, 801)
    bias = (gru.bias_ih_l0 + gru.bias_hh_l0).detach()
    steps = bias[1000:2000].exp()
    assert steps.min() >= 1
    assert steps.max() <= 801
    assert float(steps.median()) == pytest.approx(math.sqrt(801), rel=0.2)
    remaining = [*range(1000), *range(2000, 3000)]
    assert torch.equal(bias[remaining], (state_before[2] + state_before[3])[remaining])
    assert torch.equal(gru.weight_ih_l0, state_before[0])
    assert torch.equal(gru.weight_hh_l0, state_before[1])
