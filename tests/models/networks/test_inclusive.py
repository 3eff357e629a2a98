"""The network on both inputs."""

from __future__ import annotations

import torch
from networks import SCALERS, random_events, run, small_network


def test_the_forward_pass_by_hand() -> None:
    model = small_network("inclusive", frame="detector")
    events = random_events([3, 1, 6])

    logits = run(model, events)

    state = model.encoder(events["particles"], events["num_particles"])
    assert state.shape == (3, 7)
    mean, std = torch.tensor(SCALERS["hlf"][:2], dtype=torch.float64)
    scaled = (events["hlf"] - mean) / std
    state_and_features = torch.cat([state, scaled], dim=1)
    weights, bias, out_weights, out_bias = model.layers.parameters()
    hidden = torch.relu(state_and_features @ weights.T + bias)
    assert hidden.shape == (3, 5)
    expected = hidden @ out_weights.T + out_bias
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


def test_particles_are_encoded_as_in_the_network_on_particles_alone() -> None:
    inclusive = small_network("inclusive")
    on_particles = small_network("particles")
    on_particles.encoder.load_state_dict(inclusive.encoder.state_dict())
    events = random_events([3, 1, 6])
    particles, num_particles = events["particles"], events["num_particles"]

    state = inclusive.encoder(particles, num_particles)

    expected = on_particles.encoder(particles, num_particles)
    assert torch.equal(state, expected)
