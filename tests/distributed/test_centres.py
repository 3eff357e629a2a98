"""The centre and sums beside the computation, on real MPI ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import IMPLEMENTATIONS, Mpi, results_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


@pytest.fixture(params=IMPLEMENTATIONS, ids=str)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    chosen: Mpi = request.param
    return chosen


@pytest.mark.parametrize(("ranks", "shards", "overlap"), [(4, 1, "inline"), (3, 7, "thread")])
def test_no_commit_is_lost_and_clocks_count_them(
    tmp_path: Path, mpi: Mpi, ranks: int, shards: int, overlap: str
) -> None:
    results = results_of(
        mpi, ranks, "centres:conserve", tmp_path / "ranks", overlap=overlap, commits=150, size=101, shards=shards
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


def test_an_occupied_shard_is_not_waited_for_and_what_is_not_finite_is_refused(tmp_path: Path, mpi: Mpi) -> None:
    results = results_of(mpi, 2, "centres:occupied", tmp_path / "ranks", nap=0.3)
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
