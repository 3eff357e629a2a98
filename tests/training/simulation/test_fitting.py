"""Calibration: a simulated cluster is found again from the records of runs on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulated import toy_network, toy_rows

from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings, ComputeTimes
from training.simulation.costs import Link
from training.simulation.fitting import calibrate, fit_link, in_the_cloud, predicted
from training.simulation.probe import Measurement
from training.simulation.simulate import simulate

TRUTH = ClusterSettings(step_seconds=3e-4, event_seconds=5e-6, jitter=0.3, crowding={2: 1.4})
LINK = Link(2e-5, 1e9)
NETWORK = toy_network(torch.float32)


def records(algorithm: str, workers: int, batch_size: int, *, epochs: int = 30) -> list[list[dict[str, Any]]]:
    settings = TrainSettings(algorithm=algorithm, workers=workers, batch_size=batch_size, epochs=epochs)
    cluster = TRUTH.model_copy(update={"workers_per_host": workers})
    rows = toy_rows(640, dtype=torch.float32)
    return simulate(NETWORK, rows, rows, settings, cluster).records


@pytest.mark.slow
def test_the_cluster_of_simulated_runs_is_found_again() -> None:
    alone = [records("sgd", 1, 16), records("sgd", 1, 64)]
    crowded = [records("local-sgd", 2, 16)]
    messages = [
        Measurement(operation, workers, nbytes, predicted(Measurement(operation, workers, nbytes, 0), LINK))
        for operation, workers, nbytes in (("all-reduce", 2, 100), ("memory", 2, 10_000), ("all-reduce", 4, 10_000))
    ]
    pushes = [
        each._replace(seconds=5e-4 + predicted(each, LINK))
        for each in (Measurement("push", 2, nbytes, 0) for nbytes in (100, 10_000))
    ]
    found = calibrate(alone, crowded, messages + pushes)
    assert found.push_seconds == pytest.approx(5e-4)
    assert found.step_seconds == pytest.approx(TRUTH.step_seconds, rel=0.1)
    assert found.event_seconds == pytest.approx(TRUTH.event_seconds, rel=0.15)
    assert found.jitter == pytest.approx(TRUTH.jitter, rel=0.35)
    assert found.crowding == pytest.approx(TRUTH.crowding, rel=0.1)
    assert found.latency_seconds == found.memory_latency_seconds == pytest.approx(LINK.latency)
    assert found.bytes_per_second == found.memory_bytes_per_second == pytest.approx(LINK.bandwidth)


def test_noisy_messages_never_give_a_negative_latency_or_bandwidth() -> None:
    for small, large in ((1e-3, 1e-4), (1e-6, 1e-3)):
        found = fit_link([Measurement("sockets", 2, 10, small), Measurement("sockets", 2, 1000, large)])
        assert found.latency > 0
        assert found.bandwidth > 0


def test_workers_that_share_a_host_are_slower() -> None:
    found = calibrate([made(16, [1e-3])], [made(16, [1.5e-3]) * 2, made(16, [4e-3]) * 8])
    assert found.crowding == pytest.approx({2: 1.5, 8: 4.0})
    times = {
        per_host: ComputeTimes(found.model_copy(update={"workers_per_host": per_host}), seed=1, rank=0, world_size=8)
        for per_host in (1, 2, 8)
    }
    assert [each.draw(16) for each in times.values()] == pytest.approx([1e-3, 1.5e-3, 4e-3])
    # The ninth of nine workers is alone on its host, as is a single one.
    full = found.model_copy(update={"workers_per_host": 8})
    for rank, world_size in ((8, 9), (0, 1)):
        assert ComputeTimes(full, seed=1, rank=rank, world_size=world_size).draw(16) == pytest.approx(1e-3)
    # Noise never makes them faster.
    assert calibrate([made(16, [1e-3])], [made(16, [0.5e-3]) * 2]).crowding == {2: 1.0}


def made(batch: int, seconds: list[float]) -> list[list[dict[str, Any]]]:
    """The epochs of one worker, with 10 steps each, that take these times."""
    return [[{"steps": 10, "samples": 10 * batch, "seconds_by_kind": {"compute": 10 * each}} for each in seconds]]


def test_the_first_epoch_does_not_count_where_there_are_others() -> None:
    assert calibrate([made(16, [9.0, 1e-3, 1e-3])]).step_seconds == pytest.approx(1e-3)
    assert calibrate([made(16, [9.0])]).step_seconds == pytest.approx(9.0)


def test_with_one_batch_size_all_is_constant() -> None:
    found = calibrate([made(16, [0, 2e-3, 2e-3])])
    assert (found.step_seconds, found.event_seconds, found.jitter) == (pytest.approx(2e-3), 0.0, 0.0)


@pytest.mark.parametrize(("small", "large"), [(2e-3, 1e-3), (1e-3, 9e-3)])
def test_noise_never_makes_times_negative(small: float, large: float) -> None:
    found = calibrate([made(16, [small]), made(64, [large])])
    assert found.step_seconds >= 0
    assert found.event_seconds >= 0
    assert found.step_seconds + found.event_seconds > 0


def test_one_slow_epoch_does_not_count_as_jitter() -> None:
    assert calibrate([made(16, [1e-3] * 10 + [5e-2])]).jitter == 0.0


def test_without_messages_the_network_is_that_of_the_thesis() -> None:
    found = calibrate([made(16, [1e-3])])
    assert found == in_the_cloud(found)
    assert found.latency_seconds == 5e-5


def test_crowded_runs_without_a_step_say_nothing_about_crowding() -> None:
    assert calibrate([made(16, [1e-3])], [[[], []]]).crowding == {2: 1.0}


def test_nothing_cannot_be_calibrated() -> None:
    with pytest.raises(ValueError, match="no run took a step"):
        calibrate([])
