"""Averages between hosts: network namespaces with a delay between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from network_hosts import Network, network, reason_against_hosts
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


def results_on_hosts(
    hosts: Network, program: str, folder: Path, *, ranks_per_host: int = 1, **arguments: Any
) -> list[Any]:
    """The results of a program on the ranks of all hosts."""
    options = [option.replace(":1", f":{ranks_per_host}") for option in hosts.launcher_args]
    return results_of(
        ranks_per_host * len(hosts.addresses),
        program,
        folder,
        options=tuple(options),
        on_host=lambda *command: hosts.on_host(0, *command),
        seconds=120,
        **arguments,
    )


@pytest.mark.parametrize("num_hosts", [2, 4])
def test_an_average_between_hosts_takes_one_round_trip_and_hides_behind_the_computation(
    tmp_path: Path, num_hosts: int
) -> None:
    with network(num_hosts, tmp_path / "network", delay=DELAY) as hosts:
        round_trip = hosts.round_trip()
        results = results_on_hosts(
            hosts, "averages:between_hosts", tmp_path / "ranks", step=5 * DELAY, averages=20
        )

    assert round_trip > 2 * DELAY
    for result in results:
        waited, hidden = result["waited"], result["beside"]
        # The measured round trip may be longer than later ones, as on a busy machine.
        assert 2 * DELAY < waited["median"] < 1.9 * round_trip
        assert waited["hidden_seconds"] == 0
        # The computing thread only copies and sends.
        assert hidden["median"] < DELAY
        assert hidden["begun"] + hidden["skipped"] == 21
        assert hidden["begun"] > 10
        assert hidden["hidden_seconds"] > 0.8 * hidden["exchange_seconds"]
        for averages in (waited, hidden):
            assert averages["sum"] == pytest.approx(sum(range(num_hosts)), abs=1e-4)


def test_a_push_between_hosts_waits_for_two_round_trips(tmp_path: Path) -> None:
    with network(2, tmp_path / "network", delay=DELAY) as hosts:
        round_trip = hosts.round_trip()
        results = results_on_hosts(
            hosts, "parameter_servers:between_hosts", tmp_path / "ranks", pushes=20
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
    averages = ["averages:conserve", {"in_memory": True, "averages": 200}]
    pushes = [
        "parameter_servers:conserve",
        {"in_memory": True, "background": True, "pushes": 60, "size": 101, "shards": 7},
    ]

    with network(2, tmp_path / "network", delay=0.0) as hosts:
        results = results_on_hosts(
            hosts, "several", tmp_path / "ranks", ranks_per_host=2, programs=[averages, pushes]
        )

    num_begun = num_received = 0
    for averaged, pushed in results:
        assert averaged["on_host"] == 2
        assert max(map(abs, averaged["difference"])) <= 1e-6
        num_begun += averaged["counts"]["begun"]
        num_received += averaged["counts"]["received"]
        assert pushed["lost"] == 0
        assert pushed["clocks_are_right"]
        # Each rank talks to shards of the other host.
        assert pushed["counts"]["bytes"] > 0
    assert num_begun == num_received
