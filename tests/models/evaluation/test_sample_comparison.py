"""Comparisons of two samples, equal and different ones."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_figures import data_outside_axes, style_faults
from matplotlib.figure import Figure

from models.evaluation.curves import cumulative_distance
from models.evaluation.sample_comparison import (
    WeightedEvents,
    plot_comparison,
    separation,
    transfer,
)
from models.evaluation.style import NO_LABELS


def normal_events(
    num_events: int, seed: int, *, shift: float = 0.0, num_features: int = 3
) -> WeightedEvents:
    """Events of weight 1 with normal features."""
    rng = np.random.default_rng(seed)
    features = rng.normal(shift, 1, (num_events, num_features))
    return WeightedEvents(features, np.ones(num_events))


@pytest.mark.slow
def test_trees_cannot_tell_equal_samples_apart() -> None:
    first = normal_events(400, 1)
    second = normal_events(600, 2)

    area = separation(first, second, seed=1)

    assert area.value == pytest.approx(0.5, abs=4 * area.error)
    assert 0.005 < area.error < 0.05


@pytest.mark.slow
def test_trees_tell_different_samples_apart() -> None:
    first = normal_events(500, 1)
    second = normal_events(500, 2, shift=0.6)

    area = separation(first, second, seed=1)

    # Three numbers that differ by 0.6 standard deviations each have an AUC of 0.77.
    assert area.value == pytest.approx(0.77, abs=0.06)


@pytest.mark.slow
def test_events_count_by_their_weights() -> None:
    ordinary = normal_events(400, 1)
    light = normal_events(400, 3, shift=3.0)
    features = np.concatenate([ordinary.features, light.features])
    weights = np.repeat([1.0, 1e-6], 400)
    mixed = WeightedEvents(features, weights)
    second = normal_events(400, 2)

    area = separation(mixed, second, seed=1)

    assert area.value < 0.6


@pytest.mark.slow
def test_a_network_loses_what_the_second_sample_teaches_wrongly() -> None:
    """The second sample has the same two classes, or the two classes exchanged."""
    sample = [normal_events(300, 1), normal_events(300, 2, shift=1.5)]
    same_classes = [normal_events(300, 3), normal_events(300, 4, shift=1.5)]
    exchanged_classes = [normal_events(300, 3, shift=1.5), normal_events(300, 4)]

    same = transfer(sample, same_classes, seed=1)
    exchanged = transfer(sample, exchanged_classes, seed=1)

    assert same["loss"].value == pytest.approx(0.0, abs=0.05)
    assert exchanged["loss"].value > 0.5


@pytest.mark.slow
def test_networks_are_tested_on_events_that_they_were_not_trained_on() -> None:
    # With this many features of noise, a network remembers its training events.
    sample = [normal_events(num, num, num_features=40) for num in (300, 200)]
    second_sample = [normal_events(num, num, num_features=40) for num in (310, 150)]

    areas = transfer(sample, second_sample, seed=1)

    assert areas["own"].value == pytest.approx(0.5, abs=0.06)
    assert areas["loss"].value == pytest.approx(0.0, abs=0.1)


def test_the_distance_is_the_largest_difference_of_the_distributions() -> None:
    values = np.arange(10.0)
    weights = np.ones(10)
    weight = np.ones(1)

    distance = cumulative_distance(values, weights, values + 5, weights)
    # Too few events for a p-value still have a distance.
    distance_of_two_events = cumulative_distance(np.zeros(1), weight, np.ones(1), weight)

    assert distance == pytest.approx(0.5)
    assert distance_of_two_events == 1.0


def test_the_figure_names_the_distance() -> None:
    values = np.arange(10.0)
    weights = np.ones(10)
    samples = (values, weights), (values + 5, weights)

    figure = plot_comparison({"pt": samples}, ("ours", "theirs"), NO_LABELS)

    assert "D = 0.500" in figure.axes[0].get_xlabel()


@pytest.mark.parametrize("lightest", [1.0, -0.5])
def test_the_figure_has_the_common_style_and_shows_all_data(lightest: float) -> None:
    weights = np.where(np.arange(60) % 5, 1.0, lightest)
    first = normal_events(60, 1).features[:, 0]
    second = normal_events(60, 2).features[:, 0]
    samples = (first, weights), (second, weights)

    def draw() -> Figure:
        return plot_comparison({"pt": samples}, ("ours", "theirs"), NO_LABELS)

    assert style_faults(draw) == []
    assert data_outside_axes(draw()) == []
