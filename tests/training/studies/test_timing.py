"""Simulated times: they are those of the real network on the real data, without its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from method_keys import nested
from simulated import toy_network, toy_rows

from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings
from training.simulation.simulate import simulate
from training.studies.timing import epoch_times, rates, simulate_times

CLUSTER = ClusterSettings(step_seconds=1e-3, event_seconds=1e-5, jitter=0.2, latency_seconds=1e-4, bytes_per_second=1e6)
METHODS: list[dict[str, Any]] = [
    {"algorithm": "ar-sgd"},
    {"algorithm": "ad-psgd"},
    {"algorithm": "swarm-sgd", "slowmo": {"tau": 4, "exact_average": True}},
]


def settings(**chosen: Any) -> TrainSettings:
    return TrainSettings(**({"workers": 4, "batch_size": 8, "epochs": 3} | nested(chosen)))


@pytest.mark.parametrize("chosen", METHODS, ids=str)
def test_the_stand_in_takes_as_long_as_the_network(chosen: dict[str, Any]) -> None:
    network, rows = toy_network(torch.float32), toy_rows(320, dtype=torch.float32)
    num_bytes = 4 * sum(parameter.numel() for parameter in network.parameters())
    # The stand-in has one row to validate.
    val = toy_rows(1, groups=1, dtype=torch.float32)
    expected = simulate(network, rows, val, settings(**chosen), CLUSTER).records
    found = simulate_times(rows.group_rows, settings(**chosen), CLUSTER, num_bytes=num_bytes)
    times = (epoch_times(records, settings(**chosen)) for records in (found, expected))
    for one, other in zip(*(each["seconds"] for each in times), strict=True):
        # The few sums at the end of an epoch are as long for both, and the links are not.
        assert one == pytest.approx(other, rel=0.02)


def test_larger_networks_take_longer_to_send() -> None:
    rows = [40] * 8
    small, large = (
        rates(settings(algorithm="ar-sgd"), simulate_times(rows, settings(), CLUSTER, num_bytes=size))
        for size in (1_000, 9_000)
    )
    # Two rounds with the whole vector, at 1 MB/s; once more than there are steps, for the average model.
    more = 8_000 * 2 / 1e6 * 11 / 10
    assert large["seconds_per_batch"] - small["seconds_per_batch"] == pytest.approx(more, rel=0.02)


def test_rates_leave_validation_and_the_first_epoch_out() -> None:
    first = {"steps": 4, "samples": 64, "seconds_by_kind": {"compute": 80.0}}
    second = {"steps": 4, "samples": 64, "seconds_by_kind": {"compute": 1.0, "communicate": 1.0, "validate": 9.0}}
    found = rates(settings(workers=2, batch_size=16), [[first, second], [first, second]])
    assert (found["seconds_per_batch"], found["samples_per_second"]) == (0.5, 64.0)


def test_an_epoch_in_which_the_machine_did_something_else_does_not_change_the_rate() -> None:
    epochs = [{"steps": 4, "samples": 64, "seconds_by_kind": {"compute": seconds}} for seconds in (9.0, 2.0, 2.0, 11.0)]
    assert rates(settings(workers=1, batch_size=16), [epochs])["seconds_per_batch"] == 0.5


def test_times_of_threads_count_as_communication() -> None:
    record = {"seconds": 2.0, "seconds_by_kind": {"compute": 1.0, "communicate": 0.25}, "exchange_seconds": 0.5}
    inline, beside = (settings(algorithm="ad-psgd", overlap=overlap) for overlap in ("inline", "thread"))
    assert epoch_times([[record], [record]], inline)["communicate"] == [0.25]
    assert epoch_times([[record], [record]], beside)["communicate"] == [0.75]
    assert np.isclose(epoch_times([[record]], inline)["seconds"], 2.0)
