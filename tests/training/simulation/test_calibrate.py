"""Calibration: a simulated cluster is found again from the records of runs on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulated import toy_network, toy_rows

from training.settings import TrainSettings
from training.simulation.calibrate import calibrate, in_the_cloud
from training.simulation.cluster import ClusterSettings
from training.simulation.simulate import simulate

TRUTH = ClusterSettings(step_seconds=3e-4, event_seconds=5e-6, jitter=0.3, latency_seconds=2e-5, bytes_per_second=1e10)
NETWORK = toy_network(torch.float32)
NUM_BYTES = 4 * sum(parameter.numel() for parameter in NETWORK.parameters())


def records(algorithm: str, workers: int, batch_size: int, *, epochs: int = 30) -> list[list[dict[str, Any]]]:
    settings = TrainSettings(algorithm=algorithm, workers=workers, batch_size=batch_size, epochs=epochs)
    rows = toy_rows(640, dtype=torch.float32)
    return simulate(NETWORK, rows, rows, settings, TRUTH).records


@pytest.mark.slow
def test_the_cluster_of_simulated_runs_is_found_again() -> None:
    alone = [records("sgd", 1, 16), records("sgd", 1, 64)]
    found = calibrate(alone, [records("ad-psgd", 2, 16)], num_bytes=NUM_BYTES)
    assert found.step_seconds == pytest.approx(TRUTH.step_seconds, rel=0.1)
    assert found.event_seconds == pytest.approx(TRUTH.event_seconds, rel=0.15)
    assert found.jitter == pytest.approx(TRUTH.jitter, rel=0.35)
    assert found.latency_seconds == pytest.approx(TRUTH.latency_seconds, rel=0.1)


def made(batch: int, seconds: list[float]) -> list[list[dict[str, Any]]]:
    """The epochs of one worker, with 10 steps each, that take these times."""
    return [[{"steps": 10, "samples": 10 * batch, "seconds_by_kind": {"compute": 10 * each}} for each in seconds]]


def test_the_first_epoch_does_not_count_where_there_are_others() -> None:
    assert calibrate([made(16, [9.0, 1e-3, 1e-3])], num_bytes=1).step_seconds == pytest.approx(1e-3)
    assert calibrate([made(16, [9.0])], num_bytes=1).step_seconds == pytest.approx(9.0)


def test_with_one_batch_size_all_is_constant() -> None:
    found = calibrate([made(16, [0, 2e-3, 2e-3])], num_bytes=1)
    assert (found.step_seconds, found.event_seconds, found.jitter) == (pytest.approx(2e-3), 0.0, 0.0)


@pytest.mark.parametrize(("small", "large"), [(2e-3, 1e-3), (1e-3, 9e-3)])
def test_noise_never_makes_times_negative(small: float, large: float) -> None:
    found = calibrate([made(16, [small]), made(64, [large])], num_bytes=1)
    assert found.step_seconds >= 0
    assert found.event_seconds >= 0
    assert found.step_seconds + found.event_seconds > 0


def test_one_slow_epoch_does_not_count_as_jitter() -> None:
    assert calibrate([made(16, [1e-3] * 10 + [5e-2])], num_bytes=1).jitter == 0.0


def test_without_pairs_the_network_is_that_of_the_thesis() -> None:
    found = calibrate([made(16, [1e-3])], num_bytes=1)
    assert found == in_the_cloud(found)
    assert found.latency_seconds == ClusterSettings.THESIS_CLOUD["latency_seconds"]


def test_nothing_cannot_be_calibrated() -> None:
    with pytest.raises(ValueError, match="no run took a step"):
        calibrate([], num_bytes=1)
