"""Shared vectors on real MPI ranks: nothing is lost, torn or stuck, for any pairs at any time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rank_programs import IMPLEMENTATIONS, Mpi, results_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

PROTOCOLS = ["locked", "additive", "sockets"]
OVERLAPS = ["inline", "thread"]


@pytest.fixture(params=IMPLEMENTATIONS, ids=str)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    chosen: Mpi = request.param
    return chosen


def check_counts(results: list[dict[str, Any]]) -> None:
    """Every average that was begun was received; every rank saw all of its own and of others'."""
    counts = [result["counts"] for result in results]
    assert sum(each["begun"] for each in counts) == sum(each["received"] for each in counts)
    for result, each in zip(results, counts, strict=True):
        assert result["versions_grow"]
        assert result["last_version"] == each["begun"] + each["received"]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("ranks", "averages"), [(2, 5000), (4, 2500), (8, 500)])
def test_the_sum_over_all_ranks_is_conserved_and_no_change_is_lost(
    tmp_path: Path, mpi: Mpi, ranks: int, averages: int, protocol: str, overlap: str
) -> None:
    if protocol == "sockets" or (ranks > 2 and not mpi.reaches_sleepers):
        # The answer of a partner, or its lock, comes when it gets a core: milliseconds.
        averages //= 10
    results = results_of(
        mpi,
        ranks,
        "averages:conserve",
        tmp_path / "ranks",
        seconds=150,
        protocol=protocol,
        overlap=overlap,
        averages=averages,
    )
    for result in results:
        assert set(result["difference"]) == {0}
        assert result["counts"]["begun"] >= averages
        assert result["counts"]["exchange_seconds"] > 0
        assert (result["counts"]["wait_seconds"] > 0) == (protocol == "locked")
    check_counts(results)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_other_types_are_averaged_too(tmp_path: Path, mpi: Mpi, protocol: str, dtype: str) -> None:
    results = results_of(
        mpi, 3, "averages:conserve", tmp_path / "r", protocol=protocol, overlap="inline", averages=300, dtype=dtype
    )
    allowed = {"float64": 1e-6, "float32": 1e3, "int32": 0}[dtype]
    for result in results:
        assert max(map(abs, result["difference"])) <= allowed
        # They began a million apart; changes of up to a thousand follow.
        assert result["distance"] < 20_000
    check_counts(results)


def test_vectors_larger_than_the_buffers_of_the_network_are_averaged_too(tmp_path: Path) -> None:
    results = results_of(
        IMPLEMENTATIONS[0],
        2,
        "averages:conserve",
        tmp_path / "ranks",
        protocol="sockets",
        overlap="thread",
        averages=5,
        size=1_000_000,
    )
    assert all(result["difference"] == [0] for result in results)
    check_counts(results)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_half_changed_vector_is_never_seen_or_at_least_counted(tmp_path: Path, mpi: Mpi, protocol: str) -> None:
    results = results_of(mpi, 4, "averages:stamps", tmp_path / "ranks", protocol=protocol, averages=1000, size=20_000)
    for result in results[:2]:
        assert result["reads"] > 20
        assert result["unnoticed"] == 0
        if protocol != "additive":
            assert result["torn"] == result["mixed_reads"] == 0


def test_the_vector_of_another_rank_is_read_whole_without_its_help(tmp_path: Path, mpi: Mpi) -> None:
    reader, *others = results_of(
        mpi, 3, "averages:read_others", tmp_path / "r", protocol="sockets", duration=0.5, size=20_000
    )
    assert reader["grows"]
    assert reader["torn"] == 0
    for rank, other in enumerate(others, start=1):
        assert rank + 10 < reader["last"][str(rank)] <= other["own"]


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_vector_that_is_not_finite_reaches_nobody(tmp_path: Path, mpi: Mpi, overlap: str) -> None:
    poisoned, *others = results_of(mpi, 3, "averages:poison", tmp_path / "ranks", overlap=overlap)
    assert not poisoned["finite"]
    assert poisoned["begun"] == poisoned["received"] == 0
    assert poisoned["refused"] == 50
    for other in others:
        assert other["finite"]
        assert other["refused"] > 0
        assert other["begun"] + other["refused"] == 50


@pytest.mark.parametrize("protocol", ["locked", "sockets"])
def test_a_rank_that_comes_late_is_waited_for(tmp_path: Path, protocol: str) -> None:
    results = results_of(
        IMPLEMENTATIONS[0], 2, "averages:come_late", tmp_path / "ranks", protocol=protocol, patience=0.5, nap=1.0
    )
    assert results == [1.0, 1.0]


def test_one_vector_is_in_one_average_at_a_time(tmp_path: Path, mpi: Mpi) -> None:
    results = results_of(mpi, 4, "averages:exclude", tmp_path / "ranks", nap=0.05, averages=5)
    held = sorted(each for rank in results for each in rank)
    assert len(held) == 20
    for rank in range(4):
        own = [(start, end) for start, end, ranks in held if rank in ranks]
        assert all(end <= start for (_, end), (start, _) in pairwise(own))
    if mpi.reaches_sleepers:
        # Pairs that have nobody in common do not wait for each other.
        assert sum(end - start for start, end, _ in held) > held[-1][1] - held[0][0]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rank_that_sleeps_keeps_nobody_waiting(tmp_path: Path, mpi: Mpi, protocol: str, overlap: str) -> None:
    if not mpi.reaches_sleepers and (protocol, overlap) == ("locked", "inline"):
        pytest.skip(f"{mpi} gives locks of a rank only while that rank is inside MPI; a thread sees to that")
    *others, straggler = results_of(
        mpi, 4, "averages:straggle", tmp_path / "ranks", protocol=protocol, overlap=overlap, nap=8, averages=100
    )
    assert all(other["done"] < straggler["done"] - 1 for other in others)
    assert straggler["begun"] == 0
    assert straggler["received"] > 10


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_is_done_early_continues_to_serve_the_others(tmp_path: Path, mpi: Mpi, protocol: str, overlap: str) -> None:
    early, *others = results_of(
        mpi, 4, "averages:finish_early", tmp_path / "ranks", protocol=protocol, overlap=overlap, averages=200
    )
    assert early["received"] == sum(other["begun"] for other in others) == 600


@pytest.mark.parametrize("where", ["read", "add", "begin", "average", "drain", "close"])
def test_an_error_in_the_thread_is_raised_by_the_next_call(tmp_path: Path, where: str) -> None:
    results = results_of(IMPLEMENTATIONS[0], 2, "averages:fail_in_thread", tmp_path / "ranks", where=where)
    assert [result["words"] for result in results] == ["no average with 1", "no average with 0"]
    assert all(result["begun"] == (where != "close") for result in results)


@pytest.mark.parametrize("protocol", ["locked", "sockets"])
def test_an_average_is_skipped_while_the_one_before_is_under_way(tmp_path: Path, mpi: Mpi, protocol: str) -> None:
    for counts in results_of(mpi, 3, "averages:skip", tmp_path / "ranks", protocol=protocol):
        assert counts["skipped"] == 2
        assert counts["begun"] == counts["received"] == 2
        assert counts["exchange_seconds"] > (0 if protocol == "sockets" else 0.6)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("size", "one length and one float or signed type"),
        ("type", "one length and one float or signed type"),
        ("complex", "one length and one float or signed type"),
        ("self", "rank 1 of 2 cannot average with rank 1"),
        ("outside", "rank 1 of 2 cannot average with rank 2"),
    ],
)
def test_what_cannot_be_averaged_is_refused(tmp_path: Path, what: str, words: str) -> None:
    assert words in results_of(IMPLEMENTATIONS[0], 2, "averages:refuse", tmp_path / "ranks", what=what)[1]
