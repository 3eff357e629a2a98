"""Gradient dropping: nothing is lost, and the large elements go first (Neckermann 2017, section 3.8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import UNEVEN_CLUSTER, LinearGradients, StepRecorder

from training.algorithms import sharded
from training.algorithms.base import Algorithm
from training.algorithms.sharded import Sharded, largest, update_view

SIZE = 1000


@pytest.mark.parametrize("drop_rate", [0.5, 0.9, 0.99])
def test_the_elements_that_stay_are_the_largest(
    drop_rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(1).normal(size=SIZE)
    retained = largest(values, drop_rate)
    assert len(retained) == round(SIZE * (1 - drop_rate))
    assert np.abs(values[retained]).min() > np.abs(np.delete(values, retained)).max()
    monkeypatch.setattr(sharded, "_SAMPLE_SIZE", SIZE // 4)
    assert len(largest(values, drop_rate)) == pytest.approx(SIZE * (1 - drop_rate), rel=0.5, abs=5)


def test_a_view_follows_the_server() -> None:
    rng, view, server = np.random.default_rng(1), np.zeros(SIZE), np.zeros(SIZE)
    for _ in range(50):
        server += rng.normal(size=SIZE)
        copy_before, untold = view.copy(), server - view
        message = update_view(view, server, 0.9)
        moved = np.flatnonzero(view != copy_before)
        assert message == len(moved) == SIZE // 10
        np.testing.assert_array_equal(view[moved], server[moved])
        assert np.abs(server - view).max() <= np.abs(untold[moved]).min()
    assert np.abs(server - view).max() < 15


@pytest.mark.parametrize("overlap", ["inline", "thread"])
def test_workers_and_shards_lose_nothing(overlap: str) -> None:
    # Gradients that do not depend on the model: the server, the residuals and what is not yet sent add up.
    problem = LinearGradients(workers=3, steps=15, seed=2, size=40, hessian=0.0)
    watcher, results = StepRecorder(), np.empty((3, 40))
    settings: dict[str, Any] = {
        "algorithm": "sharded",
        "overlap": overlap,
        "drop_rate": 0.8,
        "shards": 2,
    }
    problem.drive(
        optimizer="sgd",
        learning_rate=0.5,
        cluster=UNEVEN_CLUSTER,
        before_step=watcher,
        results=results,
        **settings,
    )
    leftovers = sum(residual_of(watcher.algorithms[rank]) for rank in range(3))
    assert np.abs(leftovers).max() > 0.5
    total = -problem.pulls.sum(axis=(0, 1))
    np.testing.assert_allclose((problem.initial - results[0]) / 0.5 + leftovers, total, atol=1e-12)


def residual_of(algorithm: Algorithm) -> Any:
    assert isinstance(algorithm, Sharded)
    return algorithm.residual
