"""The distance correlation against its definition, a library, and its invariants."""

from __future__ import annotations

from typing import NamedTuple

import dcor
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from training.workloads.distance_correlation import distance_correlation

Array = NDArray[np.float64]


class Events(NamedTuple):
    """Two related columns and weights of events."""

    first: Array
    second: Array
    weights: Array


def random_events(num_events: int, *, seed: int) -> Events:
    rng = np.random.default_rng(seed)
    first = rng.normal(size=num_events)
    second = first**2 + 0.5 * rng.normal(size=num_events)
    return Events(first, second, rng.exponential(size=num_events))


def correlation(first: Array, second: Array, weights: Array) -> float:
    columns = [torch.tensor(column) for column in (first, second, weights)]
    return float(distance_correlation(*columns))


def correlation_by_definition(first: Array, second: Array, weights: Array) -> float:
    """Centre the matrices of distances, then average products: the definition of the papers."""
    num_events = len(weights)
    weights = weights / weights.mean()
    pair_weights = np.outer(weights, weights)

    def centred_distances(column: Array) -> Array:
        distances = np.abs(np.subtract.outer(column, column))
        row_means = (distances * weights).sum(axis=1) / num_events
        overall_mean = (pair_weights * distances).sum() / num_events**2
        centred: Array = distances - np.add.outer(row_means, row_means) + overall_mean
        return centred

    first_centred = centred_distances(first)
    second_centred = centred_distances(second)
    covariance = (pair_weights * first_centred * second_centred).mean()
    first_variance = (pair_weights * first_centred**2).mean()
    second_variance = (pair_weights * second_centred**2).mean()
    return float(covariance / np.sqrt(first_variance * second_variance))


@given(num_events=st.integers(3, 40), seed=st.integers(0, 1000))
def test_it_is_the_mean_product_of_centred_distances(num_events: int, seed: int) -> None:
    events = random_events(num_events, seed=seed)

    expected = correlation_by_definition(*events)
    assert correlation(*events) == pytest.approx(expected, abs=1e-12)


@given(num_events=st.integers(3, 40), seed=st.integers(0, 1000))
def test_without_weights_it_is_that_of_dcor(num_events: int, seed: int) -> None:
    first, second, _ = random_events(num_events, seed=seed)

    unweighted = correlation(first, second, np.ones(num_events))

    expected = float(dcor.distance_correlation_sqr(first, second))
    assert unweighted == pytest.approx(expected, abs=1e-12)


def test_an_event_of_weight_3_counts_like_three_events() -> None:
    first, second, _ = random_events(30, seed=1)
    counts = np.random.default_rng(2).integers(0, 4, 30)

    weighted = correlation(first, second, counts.astype(np.float64))

    repeated_first = np.repeat(first, counts)
    repeated_second = np.repeat(second, counts)
    expected = float(dcor.distance_correlation_sqr(repeated_first, repeated_second))
    assert weighted == pytest.approx(expected, abs=1e-12)


@given(shift=st.floats(-1e3, 1e3), scale=st.floats(1e-6, 1e6), sign=st.sampled_from([-1, 1]))
def test_shifts_and_scales_change_nothing(shift: float, scale: float, sign: int) -> None:
    first, second, weights = random_events(25, seed=3)

    moved_first = sign * scale * (first + shift)
    changed = correlation(moved_first, second, 7.0 * weights)

    unchanged = correlation(first, second, weights)
    assert changed == pytest.approx(unchanged, abs=1e-9)


def test_it_is_symmetric_and_1_for_a_linear_relation() -> None:
    first, second, weights = random_events(25, seed=4)

    exchanged = correlation(second, first, weights)
    linear = correlation(first, 3 - 5 * first, weights)

    assert correlation(first, second, weights) == pytest.approx(exchanged)
    assert linear == pytest.approx(1, abs=1e-12)


def test_independent_columns_have_the_value_of_permuted_ones() -> None:
    rng = np.random.default_rng(5)
    first = rng.normal(size=400)
    second = rng.exponential(size=400)
    ones = np.ones(400)

    independent = correlation(first, second, ones)
    dependent = correlation(first, first**2, ones)
    permuted = [correlation(first, rng.permutation(second), ones) for _ in range(200)]

    lowest, highest = np.quantile(permuted, [0.001, 0.999])
    assert lowest < independent < highest
    assert independent < 0.02 < dependent


def test_all_values_of_a_grid_together_are_exactly_independent() -> None:
    first = np.repeat([1.0, 2.0, 5.0], 4)
    second = np.tile([0.0, 3.0, 4.0, 9.0], 3)

    correlation_of_grid = correlation(first, second, np.ones(12))

    assert correlation_of_grid == pytest.approx(0, abs=1e-15)


def test_its_gradient_is_that_of_finite_differences() -> None:
    events = random_events(12, seed=6)
    first, second, weights = [torch.tensor(column) for column in events]
    first.requires_grad_()

    def correlation_of(column: Tensor) -> Tensor:
        return distance_correlation(column, second, weights)

    assert torch.autograd.gradcheck(correlation_of, [first], atol=1e-8)


@pytest.mark.parametrize(
    ("first", "second", "weights"),
    [
        ([], [], []),
        ([1.0], [2.0], [1.0]),
        ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0], [1.0, 1.0, 1.0]),
        ([5.0, 5.0, 5.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.0, 4.0, 0.0]),
    ],
    ids=["no event", "one event", "constant", "constant score", "no weight", "one weight"],
)
def test_where_it_is_not_defined_it_is_0_with_a_finite_gradient(
    first: list[float], second: list[float], weights: list[float]
) -> None:
    scores = torch.tensor(first, requires_grad=True)

    undefined = distance_correlation(scores, torch.tensor(second), torch.tensor(weights))
    # The sum alone has a gradient of ones.
    loss = undefined + scores.sum()
    loss.backward()

    assert float(undefined.detach()) == 0
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.ones_like(scores))


def test_columns_that_hardly_vary_or_are_huge_lose_no_digits() -> None:
    first, second, weights = random_events(25, seed=7)

    hardly_varying = 0.3 + 1e-9 * first
    huge = 1e30 * second

    extreme = correlation(hardly_varying, huge, weights)

    expected = correlation(first, second, weights)
    assert extreme == pytest.approx(expected, abs=1e-5)
