"""Fitting: the links of this machine are found again from messages on them."""

from __future__ import annotations

import pytest

from hep_studies.simulator.costs import Link
from hep_studies.time_checks import fit_link, fit_machine, predicted
from training.launching.message_probe import Measurement

LINK = Link(2e-5, 1e9)


def test_the_links_of_a_machine_are_found_again() -> None:
    messages = [
        Measurement(
            operation, workers, nbytes, predicted(Measurement(operation, workers, nbytes, 0), LINK)
        )
        for operation, workers, nbytes in (
            ("all-reduce", 2, 100),
            ("memory", 2, 10_000),
            ("all-reduce", 4, 10_000),
        )
    ]
    assert fit_machine(messages)["push_seconds"] == 0.0
    messages += [
        each._replace(seconds=5e-4 + predicted(each, LINK))
        for each in (Measurement("push", 2, nbytes, 0) for nbytes in (100, 10_000))
    ]
    assert fit_machine(messages) == {
        "memory_latency_seconds": pytest.approx(LINK.latency),
        "memory_bytes_per_second": pytest.approx(LINK.bandwidth),
        "push_seconds": pytest.approx(5e-4),
    }


def test_noisy_messages_never_give_a_negative_latency_or_bandwidth() -> None:
    for small, large in ((1e-3, 1e-4), (1e-6, 1e-3)):
        found = fit_link(
            [Measurement("sockets", 2, 10, small), Measurement("sockets", 2, 1000, large)]
        )
        assert found.latency > 0
        assert found.bandwidth > 0
