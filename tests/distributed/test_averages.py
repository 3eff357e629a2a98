"""Shared vectors on real MPI ranks: nothing is lost, torn or stuck, for any pairs at any time."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from rank_programs import IMPLEMENTATIONS, Case, Cases

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

#: Whether ranks meet in memory, or through sockets as between hosts.
WAYS = [True, False]
IDS = ["memory", "sockets"]
DTYPES = ["float64", "float32"]
#: By the number of ranks.
AVERAGES = {2: 2000, 4: 1000, 8: 300}
#: How late a rank comes [s].
NAP = 0.5
in_each_way = pytest.mark.parametrize("in_memory", WAYS, ids=IDS)


def num_averages(ranks: int, *, in_memory: bool) -> int:
    """How many averages fit into seconds: through sockets, the answer comes when the partner gets a core."""
    return AVERAGES[ranks] // (1 if in_memory else 10)


def cases_of(folder: Path) -> dict[Hashable, Case]:
    """What the ranks run; those that leave something open come last."""
    found: dict[Hashable, Case] = {}

    def add(*name: Hashable, ranks: int, program: str = "", **arguments: Any) -> None:
        found[name] = Case(ranks, f"averages:{program or name[0]}", arguments)

    for way in WAYS:
        for ranks in AVERAGES:
            add("conserve", ranks, way, ranks=ranks, in_memory=way, averages=num_averages(ranks, in_memory=way))
        add("finish_early", way, ranks=4, in_memory=way, averages=200)
        signs = folder / f"{way}"
        signs.mkdir()
        add("straggle", way, ranks=4, in_memory=way, folder=str(signs), nap=60, averages=100)
        for dtype in DTYPES:
            add("types", way, dtype, ranks=3, program="conserve", in_memory=way, averages=300, dtype=dtype)
        add("long", way, ranks=2, program="conserve", in_memory=way, averages=5, size=1_000_000)
        add("stamps", way, ranks=4, in_memory=way, averages=1000, size=20_000)
        add("read_others", way, ranks=3, in_memory=way, duration=0.5, size=20_000)
        add("poison", way, ranks=3, in_memory=way)
        add("come_late", way, ranks=2, in_memory=way, nap=NAP)
    found["lost",] = Case(3, "lost_partners:break_connections", {"averages": 5, "nap": 0.3})
    add("skip", ranks=3)
    add("take_over", ranks=2, folder=str(folder))
    return found


@pytest.fixture(scope="module", params=IMPLEMENTATIONS, ids=str)
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    folder = tmp_path_factory.mktemp(f"averages-{request.param}")
    return Cases(request.param, folder, cases_of(folder), seconds=600)


def check_counts(results: list[dict[str, Any]]) -> None:
    """Every average that was begun was received; every rank saw all of its own and of others'."""
    counts = [result["counts"] for result in results]
    assert sum(each["begun"] for each in counts) == sum(each["received"] for each in counts)
    for result, each in zip(results, counts, strict=True):
        assert result["versions_grow"]
        assert result["last_version"] == each["begun"] + each["received"]


@in_each_way
@pytest.mark.parametrize("ranks", AVERAGES)
def test_the_sum_over_all_ranks_is_conserved_and_no_change_is_lost(cases: Cases, ranks: int, in_memory: bool) -> None:
    results = cases.results("conserve", ranks, in_memory)
    for result in results:
        assert max(map(abs, result["difference"])) <= 1e-6
        assert result["counts"]["begun"] >= num_averages(ranks, in_memory=in_memory)
        assert result["counts"]["exchange_seconds"] > 0
    check_counts(results)


@pytest.mark.parametrize("dtype", DTYPES)
@in_each_way
def test_other_types_are_averaged_too(cases: Cases, in_memory: bool, dtype: str) -> None:
    results = cases.results("types", in_memory, dtype)
    allowed = {"float64": 1e-6, "float32": 1e3}[dtype]
    for result in results:
        assert max(map(abs, result["difference"])) <= allowed
        # They began a million apart; changes of up to a thousand follow.
        assert result["distance"] < 20_000
    check_counts(results)


@in_each_way
def test_vectors_larger_than_the_buffers_of_the_network_are_averaged_too(cases: Cases, in_memory: bool) -> None:
    results = cases.results("long", in_memory)
    assert all(max(map(abs, result["difference"])) <= 1e-6 for result in results)
    check_counts(results)


@in_each_way
def test_a_half_changed_vector_is_never_seen(cases: Cases, in_memory: bool) -> None:
    for result in cases.results("stamps", in_memory)[:2]:
        assert result["reads"] > 20
        assert result["torn"] == 0


@in_each_way
def test_the_vector_of_another_rank_is_read_whole_without_its_help(cases: Cases, in_memory: bool) -> None:
    reader, *others = cases.results("read_others", in_memory)
    assert reader["grows"]
    assert reader["torn"] == 0
    for rank, other in enumerate(others, start=1):
        assert rank + 10 < reader["last"][str(rank)] <= other["own"]


@in_each_way
def test_a_vector_that_is_not_finite_reaches_nobody(cases: Cases, in_memory: bool) -> None:
    poisoned, *others = cases.results("poison", in_memory)
    assert not poisoned["finite"]
    assert poisoned["begun"] == poisoned["received"] == 0
    assert poisoned["refused"] == 50
    for other in others:
        assert other["finite"]
        assert other["refused"] > 0
        assert other["begun"] + other["refused"] == 50


def test_averages_with_a_lost_partner_are_left_out_and_counted(cases: Cases) -> None:
    *others, lost = cases.results("lost")
    # The one that was under way, and those that came after.
    assert [(other["first"], other["then"]) for other in others] == [(1, 5)] * 2
    assert (lost["first"], lost["then"], lost["counts"]["begun"]) == (0, 5, 0)
    for other in others:
        assert other["found"] == [0.5] * 3
        assert other["counts"]["begun"] == other["counts"]["received"] == 5
        assert other["counts"]["lost"] == 6


@in_each_way
def test_a_rank_that_comes_late_is_waited_for(cases: Cases, in_memory: bool) -> None:
    assert cases.results("come_late", in_memory) == [1.0, 1.0]


def test_a_holder_that_does_not_come_back_is_left_alone_and_a_dead_one_is_replaced(cases: Cases) -> None:
    first, second = cases.results("take_over")
    assert second["skipped"] == 1
    # (0 + 1 + 1) / 2
    assert first["found"] == second["found"] == [1.0] * 3


@in_each_way
def test_a_rank_that_sleeps_keeps_nobody_waiting(cases: Cases, in_memory: bool) -> None:
    *others, straggler = cases.results("straggle", in_memory)
    assert all(other["done"] < straggler["done"] for other in others)
    assert straggler["begun"] == 0
    assert straggler["received"] > 10


@in_each_way
def test_who_is_done_early_continues_to_serve_the_others(cases: Cases, in_memory: bool) -> None:
    early, *others = cases.results("finish_early", in_memory)
    assert early["received"] == sum(other["begun"] for other in others) == 600


def test_an_average_is_skipped_while_the_one_before_is_under_way(cases: Cases) -> None:
    counts, *others = cases.results("skip")
    assert (counts["begun"], counts["skipped"]) == (2, 2)
    assert [other["received"] for other in others] == [1, 1]
