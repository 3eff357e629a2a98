"""The centre and sums beside the computation, on real MPI ranks."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from rank_programs import IMPLEMENTATIONS, PROGRAMS, Mpi, results_of

from training.simulation.cluster import ClusterSettings
from training.simulation.transport import SimNetwork
from training.simulation.virtual_time import VirtualClock
from training.transports.transport import Transport

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


@pytest.fixture(params=IMPLEMENTATIONS, ids=str)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    chosen: Mpi = request.param
    return chosen


def simulated_turns(ranks: int) -> list[float]:
    """The result of `centres.turns` on the virtual clock."""
    found: list[list[float]] = []
    clock = VirtualClock()
    turns = runpy.run_path(str(PROGRAMS / "centres.py"))["turns"]

    async def run(transport: Transport) -> None:
        found.append(await turns(transport))

    for transport in SimNetwork(clock, ClusterSettings(), ranks).transports():
        clock.spawn(run(transport), f"worker {transport.rank}")
    clock.run()
    assert found == [found[0]] * ranks
    return found[0]


@pytest.mark.parametrize(
    ("ranks", "shards", "overlap", "protocol"), [(4, 1, "inline", "locked"), (3, 7, "thread", "sockets")]
)
def test_no_commit_is_lost_and_clocks_count_them(
    tmp_path: Path, mpi: Mpi, ranks: int, shards: int, overlap: str, protocol: str
) -> None:
    results = results_of(
        mpi,
        ranks,
        "centres:conserve",
        tmp_path / "ranks",
        protocol=protocol,
        overlap=overlap,
        commits=150,
        size=101,
        shards=shards,
    )
    for result in results:
        assert result["lost"] == 0
        assert result["clocks_are_right"]
        counts = result["counts"]
        assert counts["commits"] == 50 + 2 * 50 * shards
        assert (counts["refused"], counts["skipped"]) == (0, 0)
        assert counts["exchange_seconds"] > counts["wait_seconds"] > 0
        # The owner of all shards sends nothing.
        assert (counts["bytes"] == 0) == (shards == 1 and result is results[0])


def test_rules_that_do_not_commute_have_one_order_which_the_clocks_give(tmp_path: Path, mpi: Mpi) -> None:
    ranks, commits, size, shards = 4, 100, 10, 3
    results = results_of(mpi, ranks, "centres:order", tmp_path / "ranks", commits=commits, size=size, shards=shards)
    made = {(shard, clock): value for result in results for shard, clock, value in result["made"]}
    assert len(made) == ranks * commits * shards
    expected = []
    for shard in range(shards):
        value = 0
        for clock in range(ranks * commits):
            value = (3 * value + made[shard, clock]) % 1009
        expected += [value] * (size * (shard + 1) // shards - size * shard // shards)
    assert [result["final"] for result in results] == [expected] * ranks
    # With a fixed order, the simulator comes to the same numbers.
    assert [result["turns"] for result in results] == [simulated_turns(ranks)] * ranks


@pytest.mark.parametrize("protocol", ["locked", "sockets"])
def test_an_occupied_shard_is_not_waited_for_and_what_is_not_finite_is_refused(
    tmp_path: Path, mpi: Mpi, protocol: str
) -> None:
    results = results_of(mpi, 2, "centres:occupied", tmp_path / "ranks", protocol=protocol, nap=0.3)
    # The commit of rank 0 is in the thread while the rank sleeps.
    assert results[0]["counts"]["hidden_seconds"] > 0.2
    assert results[1]["tried"][:3] == [False, True, False]
    assert results[1]["counts"]["occupied"] >= 2
    added = sum(result["tried"][-1] for result in results)
    for result in results:
        assert result["refused"]
        assert result["final"] == [10.0] * 2 + [1.0 + 10 * added] * 3
        assert result["counts"]["refused"] == 2


@pytest.mark.parametrize("overlap", ["thread", "inline"])
def test_sums_beside_the_computation_are_right_and_need_no_call_of_the_worker(
    tmp_path: Path, mpi: Mpi, overlap: str
) -> None:
    results = results_of(mpi, 3, "centres:sums", tmp_path / "ranks", overlap=overlap, size=50_001)
    for result in results:
        assert result["first"] == [6.0]
        assert result["second"] == [30.0] * 3
        assert result["between"] == [3.0] * 2
        assert result["ended_beside"] == (overlap == "thread")
