"""Averages between hosts: network namespaces with a delay between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from network_hosts import network, reason_against_hosts
from rank_programs import results_of

pytestmark = [
    pytest.mark.minutes,
    pytest.mark.distributed,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        bool(reason_against_hosts()), reason=reason_against_hosts() or "all is here"
    ),
]

#: One way; long, so that a busy machine matters little beside it.
DELAY = 0.01


@pytest.mark.parametrize("hosts", [2, 4])
def test_an_average_between_hosts_takes_one_round_trip_and_hides_behind_the_computation(
    tmp_path: Path, hosts: int
) -> None:
    with network(hosts, tmp_path / "network", delay=DELAY) as between:
        round_trip = between.round_trip()
        results = results_of(
            hosts,
            "averages:between_hosts",
            tmp_path / "ranks",
            options=tuple(between.launcher_args),
            on_host=lambda *command: between.on_host(0, *command),
            seconds=120,
            step=5 * DELAY,
            averages=20,
        )
    assert round_trip > 2 * DELAY
    for result in results:
        waited, beside = result["waited"], result["beside"]
        # The measured round trip may be longer than later ones, as on a busy machine.
        assert 2 * DELAY < waited["median"] < 1.9 * round_trip
        assert waited["hidden_seconds"] == 0
        # The computing thread only copies and sends.
        assert beside["median"] < DELAY
        assert beside["begun"] + beside["skipped"] == 21
        assert beside["begun"] > 10
        assert beside["hidden_seconds"] > 0.8 * beside["exchange_seconds"]
        for timing in (waited, beside):
            assert timing["sum"] == pytest.approx(sum(range(hosts)), abs=1e-4)


def test_a_push_between_hosts_waits_for_two_round_trips(tmp_path: Path) -> None:
    with network(2, tmp_path / "network", delay=DELAY) as between:
        round_trip = between.round_trip()
        results = results_of(
            2,
            "parameter_servers:between_hosts",
            tmp_path / "ranks",
            options=tuple(between.launcher_args),
            on_host=lambda *command: between.on_host(0, *command),
            pushes=20,
        )
    for result in results:
        # The measured round trip may be longer than later ones, as on a busy machine.
        assert 4 * DELAY < result["median"] < 2.9 * round_trip
        assert result["final"] == [20.0]
        # 50 numbers there and back, and in the end back.
        assert result["bytes"] == 8 * 50 * (2 * 20 + 1)


def test_partners_meet_in_memory_on_a_host_and_through_sockets_between_hosts(
    tmp_path: Path,
) -> None:
    """Four ranks on two hosts, in one run: averages, and pushes to shards of all ranks."""
    with network(2, tmp_path / "network", delay=0.0) as between:
        options = tuple(word.replace(":1", ":2") for word in between.launcher_args)
        averages = ["averages:conserve", {"in_memory": True, "averages": 200}]
        pushes = [
            "parameter_servers:conserve",
            {"in_memory": True, "background": True, "pushes": 60, "size": 101, "shards": 7},
        ]
        results = results_of(
            4,
            "several",
            tmp_path / "ranks",
            options=options,
            on_host=lambda *command: between.on_host(0, *command),
            seconds=120,
            programs=[averages, pushes],
        )
    for averaged, pushed in results:
        assert averaged["on_host"] == 2
        assert max(map(abs, averaged["difference"])) <= 1e-6
        assert pushed["lost"] == 0
        assert pushed["clocks_are_right"]
    counts = [averaged["counts"] for averaged, _ in results]
    assert sum(count["begun"] for count in counts) == sum(count["received"] for count in counts)
    # Each rank talks to shards of the other host.
    assert all(pushed["counts"]["bytes"] > 0 for _, pushed in results)
