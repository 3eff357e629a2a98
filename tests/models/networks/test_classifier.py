"""What holds for every network."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import (
    NAMES,
    ON_PARTICLES,
    SCALERS,
    VARIANTS,
    gradients,
    random_events,
    run,
    small_network,
    small_spec,
)
from torch import nn

from features.columns import INPUT_COLUMNS, NUM_PARTICLE_FEATURES, hlf_names
from models.networks.classifier import nan_where_invalid
from models.networks.registry import NETWORKS, ModelName
from models.networks.scaling_layer import Scaler
from models.saved_model import ModelSpec, build

LENGTHS = [4, 1, 9, 6, 2]
every_network = pytest.mark.parametrize("name", NAMES)
on_particles = pytest.mark.parametrize(("name", "settings"), VARIANTS)


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("hlf", len(hlf_names()) * 50 + 50 + 50 * 20 + 20 + 20 * 10 + 10 + 10 * 3 + 3),
        ("particles", 3 * (19 * 50 + 50 * 50 + 2 * 50) + 50 * 3 + 3),
        (
            "inclusive",
            3 * (19 * 50 + 50 * 50 + 2 * 50) + (50 + len(hlf_names())) * 25 + 25 + 25 * 3 + 3,
        ),
    ],
)
def test_the_defaults_are_the_published_sizes(name: ModelName, num_parameters: int) -> None:
    model = build(ModelSpec(NETWORKS[name](), ["QCD", "ttbar", "W+jets"], SCALERS))
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    assert model.inputs == NETWORKS[name].inputs
    assert set(model.inputs) <= set(INPUT_COLUMNS)


@pytest.mark.slow
@every_network
@given(order=st.permutations(range(len(LENGTHS))))
def test_each_event_is_judged_for_itself(name: ModelName, order: list[int]) -> None:
    model = small_network(name)
    events = random_events(LENGTHS)
    shuffled = {column: values[order] for column, values in events.items()}
    torch.testing.assert_close(run(model, shuffled), run(model, events)[order], rtol=0, atol=1e-12)
    alone = {column: values[:1] for column, values in shuffled.items()}
    torch.testing.assert_close(run(model, alone), run(model, events)[order[:1]], rtol=0, atol=1e-12)


@every_network
def test_scaling_is_inside(name: ModelName) -> None:
    """Features in other units, with a scaler in these units, change nothing; only a frame turns by radians."""
    events, spec = (
        random_events(LENGTHS),
        small_spec(name, **({"frame": "detector"} if name in ON_PARTICLES else {})),
    )
    scalers = {
        column: Scaler([8 * x + 3 for x in mean], [8 * x for x in std])
        for column, (mean, std, *_) in SCALERS.items()
    }
    second = {
        column: 8 * values + 3 if column in SCALERS else values for column, values in events.items()
    }
    model, same = small_network(spec), small_network(spec._replace(scalers=scalers))
    torch.testing.assert_close(run(same, second), run(model, events), rtol=0, atol=1e-12)
    assert not torch.allclose(run(model, second), run(model, events))


@every_network
def test_the_gradient_is_that_of_finite_differences(name: ModelName) -> None:
    model, events = small_network(name), random_events(LENGTHS)
    slopes = torch.cat([gradient.reshape(-1) for gradient in gradients(model, events)])
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = torch.randn(
        vector.shape, dtype=vector.dtype, generator=torch.Generator().manual_seed(1)
    )

    @torch.no_grad()
    def loss(step: float) -> float:
        nn.utils.vector_to_parameters(vector + step * direction, model.parameters())
        logits = run(model, events)
        return float(
            (
                logits * torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
            ).sum()
        )

    # Such short steps pass no kink of a ReLU, of which there are some for each particle.
    assert float(slopes @ direction) == pytest.approx((loss(1e-8) - loss(-1e-8)) / 2e-8, rel=1e-6)


@pytest.mark.slow
@every_network
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_and_backward_are_reproducible_bit_by_bit(
    name: ModelName, dtype: torch.dtype
) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        model, events = small_network(name, dtype=dtype), random_events(LENGTHS, dtype=dtype)
        first, second = gradients(model, events), gradients(model, events)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(gradient.dtype == dtype for gradient in first)


@every_network
def test_the_forward_pass_never_waits_for_the_device(name: ModelName) -> None:
    """Tensors of the meta device hold no numbers: reading one, as `.item()` and `.numpy()` do, is an error."""
    model = small_network(name).to("meta")
    events = {column: values.to("meta") for column, values in random_events(LENGTHS).items()}
    assert run(model, events).shape == (len(LENGTHS), 3)


@on_particles
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    more=st.integers(0, 20),
    padding=st.sampled_from([0.0, 1.0, 1e30, -1e300, math.inf, math.nan]),
)
@pytest.mark.slow
def test_padding_changes_neither_logits_nor_gradients(
    name: ModelName, settings: dict[str, Any], lengths: list[int], more: int, padding: float
) -> None:
    model, events = small_network(name, **settings), random_events(lengths)
    rows = events["particles"].shape[1] + more
    padded = torch.full((len(lengths), rows, NUM_PARTICLE_FEATURES), padding, dtype=torch.float64)
    for event, length in enumerate(lengths):
        padded[event, :length] = events["particles"][event, :length]
    second = events | {"particles": padded}
    torch.testing.assert_close(run(model, second), run(model, events), rtol=0, atol=1e-12)
    for actual, expected in zip(gradients(model, second), gradients(model, events), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@on_particles
def test_an_event_without_particles_counts_as_one_average_particle(
    name: ModelName, settings: dict[str, Any]
) -> None:
    # In the frame of the lepton an average particle would be turned.
    model, events = small_network(name, **{**settings, "frame": "detector"}), random_events([0, 3])
    average = {column: values.clone() for column, values in events.items()}
    average["particles"][0, 0] = torch.tensor(SCALERS["particles"].mean, dtype=torch.float64)
    average["num_particles"][0] = 1
    torch.testing.assert_close(run(model, events), run(model, average), rtol=0, atol=1e-12)
    assert all(gradient.isfinite().all() for gradient in gradients(model, events))


@on_particles
def test_a_list_shorter_than_its_events_is_refused(
    name: ModelName, settings: dict[str, Any]
) -> None:
    events = random_events([3, 2]) | {"num_particles": torch.tensor([4, 2])}
    with pytest.raises(RuntimeError, match="out of bounds"):
        run(small_network(name, **settings), events)


@pytest.mark.parametrize("index", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", range(3))
def test_a_number_that_is_not_finite_spoils_its_event_unless_it_is_padding(
    row: int, index: float
) -> None:
    counts = torch.tensor([0, 1, 2, 3])
    particles = torch.ones(4, 3, NUM_PARTICLE_FEATURES)
    particles[:, row, row] = index
    hlf = torch.ones(4, len(hlf_names()))
    is_spoiled = nan_where_invalid(particles=particles, num_particles=counts).isnan()[:, 0]
    assert is_spoiled.tolist() == [row < count for count in counts.tolist()]
    assert (
        nan_where_invalid(hlf=hlf, particles=particles, num_particles=counts)
        .isnan()[:, 0]
        .equal(is_spoiled)
    )
    assert nan_where_invalid(particles=particles).isnan().all()

    hlf[2, row] = index
    sound = torch.ones_like(particles)
    for columns in ({}, {"particles": sound}, {"particles": sound, "num_particles": counts}):
        assert nan_where_invalid(hlf=hlf, **columns).isnan()[:, 0].tolist() == [
            False,
            False,
            True,
            False,
        ]


def test_a_negative_number_of_particles_spoils_its_event() -> None:
    particles = torch.ones(3, 2, NUM_PARTICLE_FEATURES)
    actual = nan_where_invalid(particles=particles, num_particles=torch.tensor([-1, 0, 2]))
    assert actual.isnan()[:, 0].tolist() == [True, False, False]
    assert actual[1:].tolist() == [[0.0], [0.0]]
