"""Whether two samples look alike: equal and different ones."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_figures import data_outside_axes, style_faults

from models.evaluation.curves import cumulative_distance
from models.evaluation.sample_comparison import (
    WeightedEvents,
    plot_comparison,
    separation,
    transfer,
)
from models.evaluation.style import NO_LABELS


def events(index: int, seed: int, *, shift: float = 0.0, num_features: int = 3) -> WeightedEvents:
    features = np.random.default_rng(seed).normal(shift, 1, (index, num_features))
    return WeightedEvents(features, np.ones(index))


@pytest.mark.slow
def test_trees_cannot_tell_equal_samples_apart() -> None:
    actual = separation(events(400, 1), events(600, 2), seed=1)
    assert actual.value == pytest.approx(0.5, abs=4 * actual.error)
    assert 0.005 < actual.error < 0.05


@pytest.mark.slow
def test_trees_tell_different_samples_apart() -> None:
    # Of three numbers that differ by 0.6 standard deviations each: AUC 0.77.
    actual = separation(events(500, 1), events(500, 2, shift=0.6), seed=1)
    assert actual.value == pytest.approx(0.77, abs=0.06)


@pytest.mark.slow
def test_weights_count() -> None:
    mixed = np.concatenate([events(400, 1).features, events(400, 3, shift=3.0).features])
    weights = np.repeat([1.0, 1e-6], 400)
    assert separation(WeightedEvents(mixed, weights), events(400, 2), seed=1).value < 0.6


@pytest.mark.slow
def test_a_network_loses_what_the_other_sample_teaches_wrongly() -> None:
    same = transfer(
        [events(300, 1), events(300, 2, shift=1.5)],
        [events(300, 3), events(300, 4, shift=1.5)],
        seed=1,
    )
    assert same["loss"].value == pytest.approx(0.0, abs=0.05)
    second = transfer(
        [events(300, 1), events(300, 2, shift=1.5)],
        [events(300, 3, shift=1.5), events(300, 4)],
        seed=1,
    )
    assert second["loss"].value > 0.5


@pytest.mark.slow
def test_networks_are_tested_on_events_that_they_were_not_trained_on() -> None:
    # With this number of features of noise, a network remembers its training events.
    first, second, *remaining = (
        events(index, index, num_features=40) for index in (300, 200, 310, 150)
    )
    actual = transfer([first, second], remaining, seed=1)
    assert actual["own"].value == pytest.approx(0.5, abs=0.06)
    assert actual["loss"].value == pytest.approx(0.0, abs=0.1)


def test_the_figure_names_the_largest_difference() -> None:
    first, two = (np.arange(10.0), np.ones(10)), (np.arange(10.0) + 5, np.ones(10))
    assert cumulative_distance(*first, *two) == pytest.approx(0.5)
    # Too few events for a p-value still have a distance.
    assert cumulative_distance(np.zeros(1), np.ones(1), np.ones(1), np.ones(1)) == 1.0
    figure = plot_comparison({"pt": (first, two)}, ("ours", "theirs"), NO_LABELS)
    assert "D = 0.500" in figure.axes[0].get_xlabel()


@pytest.mark.parametrize("lightest", [1.0, -0.5])
def test_the_figure_has_the_style_of_all_and_shows_all_data(lightest: float) -> None:
    first, two = (
        (events(60, seed).features[:, 0], np.where(np.arange(60) % 5, 1.0, lightest))
        for seed in (1, 2)
    )
    assert (
        style_faults(lambda: plot_comparison({"pt": (first, two)}, ("ours", "theirs"), NO_LABELS))
        == []
    )
    assert (
        data_outside_axes(plot_comparison({"pt": (first, two)}, ("ours", "theirs"), NO_LABELS))
        == []
    )
