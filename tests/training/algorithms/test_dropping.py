"""Gradient dropping: nothing is lost, and the large elements go first.

Source: Neckermann 2017, section 3.8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import UNEVEN_CLUSTER, LinearGradients, StepRecorder

from training.algorithms import sharded
from training.algorithms.sharded import Sharded, largest, update_view

SIZE = 1000


@pytest.mark.parametrize("drop_rate", [0.5, 0.9, 0.99])
def test_the_elements_that_are_sent_are_the_largest(drop_rate: float) -> None:
    values = np.random.default_rng(1).normal(size=SIZE)

    sent = largest(values, drop_rate)

    magnitudes = np.abs(values)
    dropped_magnitudes = np.delete(magnitudes, sent)
    assert len(sent) == round(SIZE * (1 - drop_rate))
    assert magnitudes[sent].min() > dropped_magnitudes.max()


@pytest.mark.parametrize("drop_rate", [0.5, 0.9, 0.99])
def test_the_threshold_of_a_sample_sends_about_as_many_elements(
    drop_rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(1).normal(size=SIZE)
    monkeypatch.setattr(sharded, "_SAMPLE_SIZE", SIZE // 4)

    num_sent = len(largest(values, drop_rate))

    assert num_sent == pytest.approx(SIZE * (1 - drop_rate), rel=0.5, abs=5)


def test_a_view_follows_the_server() -> None:
    rng = np.random.default_rng(1)
    view = np.zeros(SIZE)
    server = np.zeros(SIZE)
    for _ in range(50):
        server += rng.normal(size=SIZE)
        old_view = view.copy()

        num_changed = update_view(view, server, 0.9)

        changed = np.flatnonzero(view != old_view)
        assert num_changed == SIZE // 10
        assert len(changed) == num_changed
        np.testing.assert_array_equal(view[changed], server[changed])
        smallest_change = np.abs(view - old_view)[changed].min()
        assert np.abs(server - view).max() <= smallest_change
    assert np.abs(server - view).max() < 15


@pytest.mark.parametrize("overlap", ["inline", "thread"])
def test_workers_and_shards_lose_nothing(overlap: str) -> None:
    # Gradients that do not depend on the model: the server and the residuals add up to their sum.
    problem = LinearGradients(workers=3, steps=15, seed=2, size=40, hessian=0.0)
    recorder = StepRecorder()
    results = np.empty((3, 40))
    dropping: dict[str, Any] = {"overlap": overlap, "drop_rate": 0.8, "shards": 2}
    sgd: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.5}

    problem.drive(
        algorithm="sharded",
        cluster=UNEVEN_CLUSTER,
        before_step=recorder,
        results=results,
        **dropping,
        **sgd,
    )

    residual = np.zeros(40)
    for algorithm in recorder.algorithms.values():
        assert isinstance(algorithm, Sharded)
        residual += algorithm.residual
    assert np.abs(residual).max() > 0.5
    applied = (problem.initial - results[0]) / 0.5
    sum_of_gradients = -problem.pulls.sum(axis=(0, 1))
    np.testing.assert_allclose(applied + residual, sum_of_gradients, atol=1e-12)
