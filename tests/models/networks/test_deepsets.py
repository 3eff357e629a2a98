"""The network on the set of particles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import SCALERS, random_events, run, small_network

from features.columns import MAX_PARTICLES
from models.networks.classifier import Classifier
from models.networks.network_settings import Frame

LENGTHS = [4, 1, 9]


def logits_by_hand(model: Classifier, event: np.ndarray, pooling: str) -> np.ndarray:
    """Logits of one event, (num_particles, 19) raw, one particle after the other."""
    weights = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    mean, std = np.array(SCALERS["particles"][:2])

    def linear(name: str, values: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ values + weights[f"{name}.bias"]

    def dense(name: str, values: np.ndarray) -> np.ndarray:
        return np.maximum(linear(name, values), 0)

    total = np.zeros(len(weights["of_particle.2.bias"]))
    for particle in event:
        scaled = (particle - mean) / std
        hidden = dense("of_particle.0", scaled)
        total += dense("of_particle.2", hidden)
    divisor = len(event) if pooling == "mean" else MAX_PARTICLES
    hidden = dense("of_event.0", total / divisor)
    return linear("output", hidden)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_the_network_is_dense_layers_around_a_mean_or_sum(pooling: str) -> None:
    model = small_network(
        "deepsets", pooling=pooling, particle_widths=[6, 5], hidden=[4], frame="detector"
    )
    events = random_events(LENGTHS)

    logits = run(model, events).detach().numpy()

    particles = events["particles"].numpy()
    for index, length in enumerate(LENGTHS):
        expected = logits_by_hand(model, particles[index, :length], pooling)
        np.testing.assert_allclose(logits[index], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepsets", "transformer"])
@pytest.mark.parametrize("frame", Frame)
@given(order=st.permutations(range(9)))
def test_the_order_of_particles_does_not_matter(name: str, frame: Frame, order: list[int]) -> None:
    model = small_network(name, frame=frame)
    events = random_events([9, 9])
    if frame is Frame.LEPTON:
        # In its own frame the lepton stays first.
        order = [0, *filter(None, order)]
    shuffled = {**events, "particles": events["particles"][:, order]}

    logits = run(model, shuffled)

    expected = run(model, events)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


def test_only_the_sum_depends_on_the_number_of_particles() -> None:
    once = random_events([3])
    repeated_particles = once["particles"].repeat(1, 2, 1)
    twice = {**once, "particles": repeated_particles, "num_particles": torch.tensor([6])}
    mean_network = small_network("deepsets", pooling="mean")
    sum_network = small_network("deepsets", pooling="sum")

    mean_of_once = run(mean_network, once)
    mean_of_twice = run(mean_network, twice)
    sum_of_once = run(sum_network, once)
    sum_of_twice = run(sum_network, twice)

    torch.testing.assert_close(mean_of_twice, mean_of_once, rtol=0, atol=1e-12)
    assert not torch.allclose(sum_of_twice, sum_of_once, rtol=1e-6)
