"""Shared vectors on real MPI ranks: nothing is lost, torn or stuck, for any pairs at any time."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import pytest
from rank_programs import IMPLEMENTATIONS, Case, Cases, Mpi

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

PROTOCOLS = ["locked", "additive", "sockets"]
OVERLAPS = ["inline", "thread"]
WAYS = list(product(PROTOCOLS, OVERLAPS))
DTYPES = ["float64", "float32", "int32"]
#: By the number of ranks.
AVERAGES = {2: 2000, 4: 1000, 8: 300}
#: How late a rank comes [s].
NAP = 1.0
FAILING = ["read", "add", "begin", "average", "drain", "close"]
REFUSED = ["size", "type", "complex", "self", "outside"]


def num_averages(mpi: Mpi, ranks: int, protocol: str) -> int:
    """How many averages fit into seconds."""
    if protocol == "sockets" or (ranks > 2 and not mpi.reaches_sleepers):
        # The answer of a partner, or its lock, comes when it gets a core: milliseconds.
        return AVERAGES[ranks] // 10
    return AVERAGES[ranks]


def cases_of(mpi: Mpi, folder: Path) -> dict[Hashable, Case]:
    """What the ranks run; those that leave something open come last."""
    found: dict[Hashable, Case] = {}

    def add(*name: Hashable, ranks: int, program: str = "", **arguments: Any) -> None:
        found[name] = Case(ranks, f"averages:{program or name[0]}", arguments)

    for protocol, overlap in WAYS:
        way = {"protocol": protocol, "overlap": overlap}
        for ranks in AVERAGES:
            averages = num_averages(mpi, ranks, protocol)
            add("conserve", ranks, protocol, overlap, ranks=ranks, **way, averages=averages)
        add("finish_early", protocol, overlap, ranks=4, **way, averages=200)
        if is_served_asleep(mpi, protocol, overlap):
            signs = folder / f"{protocol}-{overlap}"
            signs.mkdir()
            add("straggle", protocol, overlap, ranks=4, **way, folder=str(signs), nap=60, averages=100)
    for protocol, dtype in product(PROTOCOLS, DTYPES):
        given = {"protocol": protocol, "overlap": "inline", "averages": 300, "dtype": dtype}
        add("types", protocol, dtype, ranks=3, program="conserve", **given)
    long = {"protocol": "sockets", "overlap": "thread", "averages": 5, "size": 1_000_000}
    add("long", ranks=2, program="conserve", **long)
    for protocol in PROTOCOLS:
        add("stamps", protocol, ranks=4, protocol=protocol, averages=1000, size=20_000)
    add("read_others", ranks=3, protocol="sockets", duration=0.5, size=20_000)
    for overlap in OVERLAPS:
        add("poison", overlap, ranks=3, overlap=overlap)
        given = {"overlap": overlap, "averages": 5, "nap": 0.3}
        found["lost", overlap] = Case(3, "lost_partners:break_connections", given)
    for protocol in ("locked", "sockets"):
        add("skip", protocol, ranks=3, protocol=protocol)
        add("come_late", protocol, ranks=2, protocol=protocol, nap=NAP)
    add("exclude", ranks=4, nap=0.05, averages=5)
    for where in FAILING:
        add("fail_in_thread", where, ranks=2, where=where)
    for what in REFUSED:
        add("refuse", what, ranks=2, what=what)
    return found


def is_served_asleep(mpi: Mpi, protocol: str, overlap: str) -> bool:
    """Whether the vector of a rank that sleeps is reached."""
    return mpi.reaches_sleepers or (protocol, overlap) != ("locked", "inline")


@pytest.fixture(scope="module", params=IMPLEMENTATIONS, ids=str)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    chosen: Mpi = request.param
    return chosen


@pytest.fixture(scope="module")
def cases(mpi: Mpi, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    folder = tmp_path_factory.mktemp(f"averages-{mpi}")
    return Cases(mpi, folder, cases_of(mpi, folder), seconds=600)


def check_counts(results: list[dict[str, Any]]) -> None:
    """Every average that was begun was received; every rank saw all of its own and of others'."""
    counts = [result["counts"] for result in results]
    assert sum(each["begun"] for each in counts) == sum(each["received"] for each in counts)
    for result, each in zip(results, counts, strict=True):
        assert result["versions_grow"]
        assert result["last_version"] == each["begun"] + each["received"]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ranks", AVERAGES)
def test_the_sum_over_all_ranks_is_conserved_and_no_change_is_lost(
    mpi: Mpi, cases: Cases, ranks: int, protocol: str, overlap: str
) -> None:
    results = cases.results("conserve", ranks, protocol, overlap)
    for result in results:
        assert set(result["difference"]) == {0}
        assert result["counts"]["begun"] >= num_averages(mpi, ranks, protocol)
        assert result["counts"]["exchange_seconds"] > 0
        assert (result["counts"]["wait_seconds"] > 0) == (protocol == "locked")
    check_counts(results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_other_types_are_averaged_too(cases: Cases, protocol: str, dtype: str) -> None:
    results = cases.results("types", protocol, dtype)
    allowed = {"float64": 1e-6, "float32": 1e3, "int32": 0}[dtype]
    for result in results:
        assert max(map(abs, result["difference"])) <= allowed
        # They began a million apart; changes of up to a thousand follow.
        assert result["distance"] < 20_000
    check_counts(results)


def test_vectors_larger_than_the_buffers_of_the_network_are_averaged_too(cases: Cases) -> None:
    results = cases.results("long")
    assert all(result["difference"] == [0] for result in results)
    check_counts(results)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_half_changed_vector_is_never_seen_or_at_least_counted(cases: Cases, protocol: str) -> None:
    for result in cases.results("stamps", protocol)[:2]:
        assert result["reads"] > 20
        assert result["unnoticed"] == 0
        if protocol != "additive":
            assert result["torn"] == result["mixed_reads"] == 0


def test_the_vector_of_another_rank_is_read_whole_without_its_help(cases: Cases) -> None:
    reader, *others = cases.results("read_others")
    assert reader["grows"]
    assert reader["torn"] == 0
    for rank, other in enumerate(others, start=1):
        assert rank + 10 < reader["last"][str(rank)] <= other["own"]


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_vector_that_is_not_finite_reaches_nobody(cases: Cases, overlap: str) -> None:
    poisoned, *others = cases.results("poison", overlap)
    assert not poisoned["finite"]
    assert poisoned["begun"] == poisoned["received"] == 0
    assert poisoned["refused"] == 50
    for other in others:
        assert other["finite"]
        assert other["refused"] > 0
        assert other["begun"] + other["refused"] == 50


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_averages_with_a_lost_partner_are_left_out_and_counted(cases: Cases, overlap: str) -> None:
    *others, lost = cases.results("lost", overlap)
    # The one that was under way, and those that came after.
    assert [(other["first"], other["then"]) for other in others] == [(1, 5)] * 2
    assert (lost["first"], lost["then"], lost["counts"]["begun"]) == (0, 5, 0)
    for other in others:
        assert other["found"] == [0.5] * 3
        assert other["counts"]["begun"] == other["counts"]["received"] == 5
        assert other["counts"]["lost"] == 6


@pytest.mark.parametrize("protocol", ["locked", "sockets"])
def test_a_rank_that_comes_late_is_waited_for(cases: Cases, protocol: str) -> None:
    early, late = cases.results("come_late", protocol)
    assert early["total"] == late["total"] == 1.0
    assert late["spans"] or protocol == "sockets"
    # What ends a job that is stuck does not run while the other one is awaited.
    for here, there in zip(early["came"], late["came"], strict=True):
        assert there - here >= NAP
        assert not [span for span in early["spans"] if span[0] < there < span[1]]


def test_one_vector_is_in_one_average_at_a_time(mpi: Mpi, cases: Cases) -> None:
    results = cases.results("exclude")
    held = sorted(each for rank in results for each in rank)
    assert len(held) == 20
    for rank in range(4):
        own = [(start, end) for start, end, ranks in held if rank in ranks]
        assert all(end <= start for (_, end), (start, _) in pairwise(own))
    if mpi.reaches_sleepers:
        # Pairs that have nobody in common do not wait for each other.
        assert any(
            start < end and not {*ranks} & {*others} for (_, end, ranks), (start, _, others) in combinations(held, 2)
        )


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rank_that_sleeps_keeps_nobody_waiting(mpi: Mpi, cases: Cases, protocol: str, overlap: str) -> None:
    if not is_served_asleep(mpi, protocol, overlap):
        pytest.skip(f"{mpi} gives locks of a rank only while that rank is inside MPI; a thread sees to that")
    *others, straggler = cases.results("straggle", protocol, overlap)
    assert all(other["done"] < straggler["done"] for other in others)
    assert straggler["begun"] == 0
    assert straggler["received"] > 10


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_is_done_early_continues_to_serve_the_others(cases: Cases, protocol: str, overlap: str) -> None:
    early, *others = cases.results("finish_early", protocol, overlap)
    assert early["received"] == sum(other["begun"] for other in others) == 600


@pytest.mark.parametrize("where", FAILING)
def test_an_error_in_the_thread_is_raised_by_the_next_call(cases: Cases, where: str) -> None:
    results = cases.results("fail_in_thread", where)
    assert [result["words"] for result in results] == ["no average with 1", "no average with 0"]
    assert all(result["begun"] == (where != "close") for result in results)


@pytest.mark.parametrize("protocol", ["locked", "sockets"])
def test_an_average_is_skipped_while_the_one_before_is_under_way(cases: Cases, protocol: str) -> None:
    for counts in cases.results("skip", protocol):
        assert counts["skipped"] == 2
        assert counts["begun"] == counts["received"] == 2
        assert counts["exchange_seconds"] > (0 if protocol == "sockets" else 0.6)


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_averaged_is_refused(cases: Cases, what: str) -> None:
    words = {"self": "rank 1 of 2 cannot average with rank 1", "outside": "rank 1 of 2 cannot average with rank 2"}
    found = cases.results("refuse", what)[1]
    assert words.get(what, "one length and one float or signed type") in found
