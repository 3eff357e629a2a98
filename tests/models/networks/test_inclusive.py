"""The network on both inputs."""

from __future__ import annotations

import torch
from networks import SCALERS, random_events, run, small_network


def test_the_forward_pass_by_hand() -> None:
    model, events = small_network("inclusive", frame="detector"), random_events([3, 1, 6])
    mean, std = torch.tensor(SCALERS["hlf"][:2], dtype=torch.float64)
    state = model.encoder(events["particles"], events["num_particles"])
    assert state.shape == (3, 7)
    weights, bias, out_weights, out_bias = model.layers.parameters()
    hidden = torch.relu(torch.cat([state, (events["hlf"] - mean) / std], dim=1) @ weights.T + bias)
    assert hidden.shape == (3, 5)
    torch.testing.assert_close(
        run(model, events), hidden @ out_weights.T + out_bias, rtol=1e-12, atol=1e-12
    )


def test_particles_are_encoded_as_in_the_network_on_particles_alone() -> None:
    network, alone = small_network("inclusive"), small_network("particles")
    alone.encoder.load_state_dict(network.encoder.state_dict())
    particles, num_particles = (random_events([3, 1, 6])[name] for name in alone.inputs)
    assert torch.equal(
        network.encoder(particles, num_particles), alone.encoder(particles, num_particles)
    )
