"""Means, errors and what is called a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from training.studies.statistics import binomial_error, difference, mean_of, student

MANY_EVENTS = 10**8


def test_the_error_of_a_mean_is_the_spread_over_the_root_of_the_number() -> None:
    found = mean_of([0.90, 0.92, 0.94, 0.96])
    assert found.value == pytest.approx(0.93)
    assert found.spread == pytest.approx(np.std([0.90, 0.92, 0.94, 0.96], ddof=1))
    assert found.error == pytest.approx(found.spread / 2)


def test_one_seed_has_no_spread_and_shows_no_difference() -> None:
    assert math.isnan(mean_of([0.9]).spread)
    found = difference([0.99], [0.50], MANY_EVENTS)
    assert found.why_not == ["the spread is unknown with one seed"]


def test_pairs_cancel_what_seeds_have_in_common() -> None:
    seeds = np.array([0.80, 0.85, 0.90, 0.95])
    found = difference((seeds + 0.01).tolist(), seeds.tolist(), MANY_EVENTS)
    assert found.mean.value == pytest.approx(0.01)
    assert found.mean.error == pytest.approx(0, abs=1e-12)
    # They vary by more than they differ, though.
    assert "smaller than the spread over seeds" in found.why_not[0]


@pytest.mark.parametrize(
    ("this", "other", "num_events", "reason"),
    [
        ([0.910, 0.911, 0.910], [0.900, 0.901, 0.900], 100, "binomial error"),
        ([0.93, 0.90, 0.96], [0.91, 0.89, 0.93], MANY_EVENTS, "spread over seeds"),
        ([0.95, 0.96], [0.90, 0.93], MANY_EVENTS, "95 % interval"),
    ],
)
def test_small_differences_are_named_with_the_reason(
    this: list[float], other: list[float], num_events: int, reason: str
) -> None:
    assert any(reason in words for words in difference(this, other, num_events).why_not)


@pytest.mark.parametrize("sign", [1, -1])
def test_large_differences_are_seen_in_both_directions(sign: int) -> None:
    this, other = [0.95, 0.951, 0.949], [0.90, 0.899, 0.901]
    pair = (this, other) if sign > 0 else (other, this)
    found = difference(*pair, 10_000)
    assert found.why_not == []
    assert np.sign(found.mean.value) == sign


def test_false_alarms_are_rare_even_without_the_cautious_criteria() -> None:
    rng = np.random.default_rng(1)
    for num_seeds in (2, 3, 10):
        pulls = rng.normal(size=(4000, num_seeds))
        errors = pulls.std(axis=1, ddof=1) / math.sqrt(num_seeds)
        beyond = np.abs(pulls.mean(axis=1)) > student(num_seeds - 1) * errors
        assert 0.035 < beyond.mean() < 0.065


def test_the_binomial_error_is_that_of_many_drawn_test_sets() -> None:
    drawn = np.random.default_rng(2).binomial(500, 0.8, size=20_000) / 500
    assert binomial_error(0.8, 500) == pytest.approx(drawn.std(), rel=0.02)
