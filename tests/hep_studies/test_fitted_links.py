"""Fitting: the links of this machine are found again from messages on them."""

from __future__ import annotations

import pytest

from hep_studies.fitted_links import fit_link, fit_machine, predicted_seconds
from hep_studies.simulator.costs import Link
from training.launching.measurement import Measurement

LINK = Link(2e-5, 1e9)


def measurement(
    operation: str, workers: int, nbytes: int, *, extra_seconds: float = 0.0
) -> Measurement:
    """A message on the link, with additional time."""
    message = Measurement(operation, workers, nbytes, 0.0)
    return message._replace(seconds=predicted_seconds(message, LINK) + extra_seconds)


def test_the_links_of_a_machine_are_found_again() -> None:
    messages = [
        measurement("all-reduce", 2, 100),
        measurement("memory", 2, 10_000),
        measurement("all-reduce", 4, 10_000),
    ]
    pushes = [measurement("push", 2, nbytes, extra_seconds=5e-4) for nbytes in (100, 10_000)]

    without_pushes = fit_machine(messages)
    with_pushes = fit_machine([*messages, *pushes])

    assert without_pushes["push_seconds"] == 0.0
    assert with_pushes == {
        "memory_latency_seconds": pytest.approx(LINK.latency),
        "memory_bytes_per_second": pytest.approx(LINK.bandwidth),
        "push_seconds": pytest.approx(5e-4),
    }


@pytest.mark.parametrize(("small", "large"), [(1e-3, 1e-4), (1e-6, 1e-3)])
def test_noisy_messages_never_give_a_negative_latency_or_bandwidth(
    small: float, large: float
) -> None:
    link = fit_link([Measurement("sockets", 2, 10, small), Measurement("sockets", 2, 1000, large)])

    assert link.latency > 0
    assert link.bandwidth > 0
