"""The server and sums in the background, on real MPI ranks."""

from __future__ import annotations

import runpy
from collections.abc import Hashable

import pytest
from rank_programs import IMPLEMENTATIONS, PROGRAMS, Case, Cases

from training.simulation.cluster import ClusterSettings
from training.simulation.transport import SimNetwork
from training.simulation.virtual_time import VirtualClock
from training.transports.transport import Transport

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


CONSERVED = [(4, 1, False, True), (3, 7, True, False)]
ORDER = {"pushes": 100, "size": 10, "shards": 3}
CASES: dict[Hashable, Case] = {
    **{
        ("conserve", ranks): Case(
            ranks,
            "parameter_servers:conserve",
            {"in_memory": in_memory, "background": background, "pushes": 150, "size": 101, "shards": shards},
        )
        for ranks, shards, background, in_memory in CONSERVED
    },
    ("order",): Case(4, "parameter_servers:order", ORDER),
    **{
        ("occupied", in_memory): Case(2, "parameter_servers:occupied", {"in_memory": in_memory, "nap": 0.3})
        for in_memory in (True, False)
    },
    **{
        ("sums", background): Case(3, "parameter_servers:sums", {"background": background, "size": 50_001})
        for background in (True, False)
    },
}


@pytest.fixture(scope="module", params=IMPLEMENTATIONS, ids=str)
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(request.param, tmp_path_factory.mktemp(f"parameter-servers-{request.param}"), CASES)


def simulated_turns(ranks: int) -> list[float]:
    """The result of `parameter_servers.turns` on the virtual clock."""
    found: list[list[float]] = []
    clock = VirtualClock()
    turns = runpy.run_path(str(PROGRAMS / "parameter_servers.py"))["turns"]

    async def run(transport: Transport) -> None:
        found.append(await turns(transport))

    for transport in SimNetwork(clock, ClusterSettings(), ranks).transports():
        clock.spawn(run(transport), f"worker {transport.rank}")
    clock.run()
    assert found == [found[0]] * ranks
    return found[0]


@pytest.mark.parametrize(("ranks", "shards"), [(ranks, shards) for ranks, shards, *_ in CONSERVED])
def test_no_push_is_lost_and_clocks_count_them(cases: Cases, ranks: int, shards: int) -> None:
    results = cases.results("conserve", ranks)
    for result in results:
        assert result["lost"] == 0
        assert result["clocks_are_right"]
        counts = result["counts"]
        assert counts["pushes"] == 50 + 2 * 50 * shards
        assert (counts["refused"], counts["skipped"]) == (0, 0)
        assert counts["exchange_seconds"] > counts["wait_seconds"] > 0
        # The owner of all shards sends nothing.
        assert (counts["bytes"] == 0) == (shards == 1 and result is results[0])


def test_rules_that_do_not_commute_have_one_order_which_the_clocks_give(cases: Cases) -> None:
    ranks, (pushes, size, shards) = 4, ORDER.values()
    results = cases.results("order")
    made = {(shard, clock): value for result in results for shard, clock, value in result["made"]}
    assert len(made) == ranks * pushes * shards
    expected = []
    for shard in range(shards):
        value = 0
        for clock in range(ranks * pushes):
            value = (3 * value + made[shard, clock]) % 1009
        expected += [value] * (size * (shard + 1) // shards - size * shard // shards)
    assert [result["final"] for result in results] == [expected] * ranks
    # With a fixed order, the simulator comes to the same numbers.
    assert [result["turns"] for result in results] == [simulated_turns(ranks)] * ranks


@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "sockets"])
def test_an_occupied_shard_is_not_waited_for_and_what_is_not_finite_is_refused(cases: Cases, in_memory: bool) -> None:
    results = cases.results("occupied", in_memory)
    # The push of rank 0 is in the thread while the rank sleeps.
    assert results[0]["counts"]["hidden_seconds"] > 0.1
    assert results[1]["tried"][:3] == [False, True, False]
    assert results[1]["counts"]["occupied"] >= 2
    added = sum(result["tried"][-1] for result in results)
    for result in results:
        assert result["refused"]
        assert result["final"] == [10.0] * 2 + [1.0 + 10 * added] * 3
        assert result["counts"]["refused"] == 2


@pytest.mark.parametrize("background", [True, False])
def test_sums_in_the_background_are_right_and_need_no_call_of_the_worker(cases: Cases, background: bool) -> None:
    for result in cases.results("sums", background):
        assert result["first"] == [6.0]
        assert result["second"] == [30.0] * 3
        assert result["between"] == [3.0] * 2
        assert result["ended_in_background"] == background
