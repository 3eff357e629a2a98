"""Properties of every network."""

from __future__ import annotations

import math
from itertools import pairwise
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
from torch import Tensor, nn

from features.columns import INPUT_COLUMNS, NUM_PARTICLE_FEATURES, hlf_names
from models.networks.classifier import nan_where_invalid
from models.networks.registry import NETWORKS, ModelName
from models.networks.scaling_layer import Scaler
from models.saved_model import ModelSpec, build

LENGTHS = [4, 1, 9, 6, 2]
NUM_HLF = len(hlf_names())
GRU_PARAMETERS = 3 * (19 * 50 + 50 * 50 + 2 * 50)
every_network = pytest.mark.parametrize("name", NAMES)
networks_on_particles = pytest.mark.parametrize(("name", "settings"), VARIANTS)


def dense_parameters(*widths: int) -> int:
    """Weights and biases of dense layers."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("hlf", dense_parameters(NUM_HLF, 50, 20, 10, 3)),
        ("particles", GRU_PARAMETERS + dense_parameters(50, 3)),
        ("inclusive", GRU_PARAMETERS + dense_parameters(50 + NUM_HLF, 25, 3)),
    ],
)
def test_the_defaults_are_the_published_sizes(name: ModelName, num_parameters: int) -> None:
    spec = ModelSpec(NETWORKS[name](), ["QCD", "ttbar", "W+jets"], SCALERS)

    model = build(spec)

    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    assert model.inputs == NETWORKS[name].inputs
    assert set(model.inputs) <= set(INPUT_COLUMNS)


@pytest.mark.slow
@every_network
@given(order=st.permutations(range(len(LENGTHS))))
def test_logits_depend_only_on_their_event(name: ModelName, order: list[int]) -> None:
    model = small_network(name)
    events = random_events(LENGTHS)
    shuffled = {column: values[order] for column, values in events.items()}
    first_alone = {column: values[:1] for column, values in shuffled.items()}

    logits = run(model, events)

    logits_of_shuffled = run(model, shuffled)
    logits_of_first = run(model, first_alone)

    assert_same(logits_of_shuffled, logits[order])
    assert_same(logits_of_first, logits[order[:1]])


@every_network
def test_features_and_scaler_in_other_units_give_the_same_logits(name: ModelName) -> None:
    # The frame of the lepton rotates by radians only.
    settings = {"frame": "detector"} if name in ON_PARTICLES else {}
    spec = small_spec(name, **settings)
    events = random_events(LENGTHS)
    events_in_other_units = dict(events)
    other_scalers = {}
    for column, scaler in SCALERS.items():
        events_in_other_units[column] = 8 * events[column] + 3
        mean = [8 * x + 3 for x in scaler.mean]
        std = [8 * x for x in scaler.std]
        other_scalers[column] = Scaler(mean, std)
    model = small_network(spec)
    model_in_other_units = small_network(spec._replace(scalers=other_scalers))

    logits = run(model, events)
    logits_in_other_units = run(model_in_other_units, events_in_other_units)
    wrong_logits = run(model, events_in_other_units)

    assert_same(logits_in_other_units, logits)
    assert not torch.allclose(wrong_logits, logits)


@every_network
def test_the_gradient_is_that_of_finite_differences(name: ModelName) -> None:
    model = small_network(name)
    events = random_events(LENGTHS)
    slopes = torch.cat([gradient.reshape(-1) for gradient in gradients(model, events)])
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(weights.shape, dtype=weights.dtype, generator=generator)

    @torch.no_grad()
    def loss(step: float) -> float:
        nn.utils.vector_to_parameters(weights + step * direction, model.parameters())
        logits = run(model, events)
        factors = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype)
        products = logits.flatten() * factors
        return float(products.sum())

    # Such short steps pass no kink of a ReLU, of which there are some for each particle.
    expected = (loss(1e-8) - loss(-1e-8)) / 2e-8
    assert float(slopes @ direction) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@every_network
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_reproducible_bit_by_bit(name: ModelName, dtype: torch.dtype) -> None:
    model = small_network(name, dtype=dtype)
    events = random_events(LENGTHS, dtype=dtype)
    torch.use_deterministic_algorithms(True)
    try:
        first = gradients(model, events)
        second = gradients(model, events)
    finally:
        torch.use_deterministic_algorithms(False)

    for first_gradient, second_gradient in zip(first, second, strict=True):
        assert first_gradient.dtype == dtype
        assert torch.equal(first_gradient, second_gradient)


@every_network
def test_the_forward_pass_never_waits_for_the_device(name: ModelName) -> None:
    """Tensors of the meta device hold no numbers: `.item()` and `.numpy()` are errors."""
    model = small_network(name).to("meta")
    events = {column: values.to("meta") for column, values in random_events(LENGTHS).items()}

    assert run(model, events).shape == (len(LENGTHS), 3)


@pytest.mark.slow
@networks_on_particles
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    more_rows=st.integers(0, 20),
    padding=st.sampled_from([0.0, 1.0, 1e30, -1e300, math.inf, math.nan]),
)
def test_padding_changes_neither_logits_nor_gradients(
    name: ModelName, settings: dict[str, Any], lengths: list[int], more_rows: int, padding: float
) -> None:
    model = small_network(name, **settings)
    events = random_events(lengths)
    particles = events["particles"]
    num_events, num_rows, num_features = particles.shape
    shape = (num_events, num_rows + more_rows, num_features)
    padded = torch.full(shape, padding, dtype=torch.float64)
    for event, length in enumerate(lengths):
        padded[event, :length] = particles[event, :length]
    padded_events = {**events, "particles": padded}

    logits = run(model, padded_events)
    padded_gradients = gradients(model, padded_events)

    assert_same(logits, run(model, events))
    for gradient, expected in zip(padded_gradients, gradients(model, events), strict=True):
        assert_same(gradient, expected)


@networks_on_particles
def test_an_event_without_particles_counts_as_one_average_particle(
    name: ModelName, settings: dict[str, Any]
) -> None:
    # The frame of the lepton would rotate an average particle.
    model = small_network(name, **{**settings, "frame": "detector"})
    events = random_events([0, 3])
    events_with_average = random_events([0, 3])
    average_particle = torch.tensor(SCALERS["particles"].mean, dtype=torch.float64)
    events_with_average["particles"][0, 0] = average_particle
    events_with_average["num_particles"][0] = 1

    logits = run(model, events)

    assert_same(logits, run(model, events_with_average))
    for gradient in gradients(model, events):
        assert gradient.isfinite().all()


@networks_on_particles
def test_a_list_shorter_than_its_events_is_an_error(
    name: ModelName, settings: dict[str, Any]
) -> None:
    model = small_network(name, **settings)
    events = random_events([3, 2])
    events["num_particles"] = torch.tensor([4, 2])

    with pytest.raises(RuntimeError, match="out of bounds"):
        run(model, events)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", range(3))
def test_a_number_that_is_not_finite_makes_its_event_invalid_unless_it_is_padding(
    row: int, value: float
) -> None:
    counts = torch.tensor([0, 1, 2, 3])
    hlf = torch.ones(4, NUM_HLF)
    particles = torch.ones(4, 3, NUM_PARTICLE_FEATURES)
    particles[:, row, row] = value

    def is_invalid(**columns: Tensor) -> list[bool]:
        sums = nan_where_invalid(**columns)
        return sums.isnan()[:, 0].tolist()

    expected = [row < count for count in counts.tolist()]
    assert is_invalid(particles=particles, num_particles=counts) == expected
    assert is_invalid(hlf=hlf, particles=particles, num_particles=counts) == expected
    # Without counts all rows are particles.
    assert is_invalid(particles=particles) == [True] * 4
    hlf[2, row] = value
    finite = torch.ones_like(particles)
    expected = [False, False, True, False]
    assert is_invalid(hlf=hlf) == expected
    assert is_invalid(hlf=hlf, particles=finite) == expected
    assert is_invalid(hlf=hlf, particles=finite, num_particles=counts) == expected


def test_a_negative_number_of_particles_makes_its_event_invalid() -> None:
    particles = torch.ones(3, 2, NUM_PARTICLE_FEATURES)
    counts = torch.tensor([-1, 0, 2])

    sums = nan_where_invalid(particles=particles, num_particles=counts)

    assert sums.isnan()[:, 0].tolist() == [True, False, False]
    assert sums[1:].tolist() == [[0.0], [0.0]]
