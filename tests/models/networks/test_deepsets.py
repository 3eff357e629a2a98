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


def by_hand(model: Classifier, event: np.ndarray, pooling: str) -> np.ndarray:
    """Logits of one event, (num_particles, 19) raw, one particle after the other."""
    p = {name: value.detach().numpy() for name, value in model.named_parameters()}
    mean, std = np.array(SCALERS["particles"][:2])

    def dense(name: str, values: np.ndarray) -> np.ndarray:
        return np.maximum(p[f"{name}.weight"] @ values + p[f"{name}.bias"], 0)

    total = np.zeros(len(p["of_particle.2.bias"]))
    for particle in event:
        total += dense("of_particle.2", dense("of_particle.0", (particle - mean) / std))
    pooled = total / (len(event) if pooling == "mean" else MAX_PARTICLES)
    return p["output.weight"] @ dense("of_event.0", pooled) + p["output.bias"]


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_the_network_is_dense_layers_around_a_mean_or_sum(pooling: str) -> None:
    model = small_network(
        "deepsets", pooling=pooling, particle_widths=[6, 5], hidden=[4], frame="detector"
    )
    events = random_events(LENGTHS)
    actual = run(model, events).detach().numpy()
    for event, length, logits in zip(events["particles"].numpy(), LENGTHS, actual, strict=True):
        np.testing.assert_allclose(
            logits, by_hand(model, event[:length], pooling), rtol=1e-12, atol=1e-12
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepsets", "transformer"])
@pytest.mark.parametrize("frame", Frame)
@given(order=st.permutations(range(9)))
def test_the_order_of_particles_does_not_matter(name: str, frame: Frame, order: list[int]) -> None:
    """In its own frame the lepton stays first."""
    model, events = small_network(name, frame=frame), random_events([9, 9])
    if frame is Frame.LEPTON:
        order = [0, *(position for position in order if position)]
    shuffled = events | {"particles": events["particles"][:, order]}
    torch.testing.assert_close(run(model, shuffled), run(model, events), rtol=0, atol=1e-12)


def test_only_the_sum_sees_how_many_particles_there_are() -> None:
    once, twice = random_events([3]), random_events([3])
    twice["particles"], twice["num_particles"] = (
        once["particles"].repeat(1, 2, 1),
        torch.tensor([6]),
    )
    of_mean, of_sum = (small_network("deepsets", pooling=pooling) for pooling in ("mean", "sum"))
    torch.testing.assert_close(run(of_mean, twice), run(of_mean, once), rtol=0, atol=1e-12)
    assert not torch.allclose(run(of_sum, twice), run(of_sum, once), rtol=1e-6)
