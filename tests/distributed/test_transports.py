"""Transports on real MPI ranks: shared vectors, parameter servers, collective calls, exchanges, clocks and starts.

All programs of one number of ranks share a start of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rank_programs import Case, Cases, results_of, run_ranks

from training.errors import IdleSettingError
from training.launching.mpirun import probe_mpi, rank_command
from training.settings import TrainSettings

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

#: Whether ranks meet in memory, or through sockets as between hosts.
WAYS = [True, False]
#: By the number of ranks.
AVERAGES = {2: 2000, 3: 3000, 4: 1000}
DTYPES = {2: "float64", 3: "float32", 4: "float64"}
EXCHANGES = [(2, 3), (4, 2013), (3, 200_000)]
ROUNDS = 12
PUSHES = [(4, 1, False, True), (3, 7, True, False)]
ORDER = {"pushes": 100, "size": 10, "shards": 3}
in_each_way = pytest.mark.parametrize("in_memory", WAYS, ids=["memory", "sockets"])


def num_averages(ranks: int, *, in_memory: bool) -> int:
    """How many averages fit into seconds: through sockets, the answer comes when the partner gets a core."""
    return AVERAGES[ranks] // (1 if in_memory else 10)


def cases_of(folder: Path) -> dict[Hashable, Case]:
    """What the ranks run; those that leave something open come last."""
    actual: dict[Hashable, Case] = {}

    def add(*name: Hashable, ranks: int, program: str = "", **arguments: Any) -> None:
        file, _, function = (program or str(name[0])).rpartition(":")
        actual[name] = Case(ranks, f"{file or 'averages'}:{function}", arguments)

    for ranks, size in EXCHANGES:
        add(
            "exchange",
            ranks,
            size,
            ranks=ranks,
            program="messages:exchange",
            rounds=ROUNDS,
            size=size,
        )
    for ranks, shards, background, way in PUSHES:
        chosen = {
            "in_memory": way,
            "background": background,
            "pushes": 150,
            "size": 101,
            "shards": shards,
        }
        add("push", ranks, ranks=ranks, program="parameter_servers:conserve", **chosen)
    add("order", ranks=4, program="parameter_servers:order", **ORDER)
    for background in (True, False):
        add(
            "sums",
            background,
            ranks=3,
            program="parameter_servers:sums",
            background=background,
            size=50_001,
        )
    for way in WAYS:
        add("occupied", way, ranks=2, program="parameter_servers:occupied", in_memory=way, nap=0.3)
    for way in WAYS:
        for ranks in AVERAGES:
            averages = num_averages(ranks, in_memory=way)
            add(
                "conserve",
                ranks,
                way,
                ranks=ranks,
                in_memory=way,
                averages=averages,
                dtype=DTYPES[ranks],
            )
        signs = folder / f"{way}"
        signs.mkdir()
        add("straggle", way, ranks=4, in_memory=way, folder=str(signs), nap=60, averages=100)
        add("long", way, ranks=2, program="conserve", in_memory=way, averages=5, size=1_000_000)
        add("stamps", way, ranks=4, in_memory=way, averages=1000, size=20_000)
        add("poison", way, ranks=3, in_memory=way)
    actual["lost",] = Case(3, "lost_partners:break_connections", {"averages": 5, "nap": 0.3})
    add("skip", ranks=3)
    add("take_over", ranks=2, folder=str(folder))
    return actual


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    folder = tmp_path_factory.mktemp("transports")
    return Cases(folder, cases_of(folder), seconds=600)


def check_counts(results: list[dict[str, Any]]) -> None:
    """Every average that was begun was received; every rank saw all of its own and of others'."""
    counts = [result["counts"] for result in results]
    assert sum(count["begun"] for count in counts) == sum(count["received"] for count in counts)
    for result, each in zip(results, counts, strict=True):
        assert result["versions_grow"]
        assert result["last_version"] == each["begun"] + each["received"]


@in_each_way
@pytest.mark.parametrize("ranks", AVERAGES)
def test_the_sum_over_all_ranks_is_conserved_and_no_change_is_lost(
    cases: Cases, ranks: int, in_memory: bool
) -> None:
    results = cases.results("conserve", ranks, in_memory)
    for result in results:
        assert (
            max(map(abs, result["difference"])) <= {"float64": 1e-6, "float32": 1e3}[DTYPES[ranks]]
        )
        # They began a million apart; changes of up to a thousand follow.
        assert ranks != 3 or result["distance"] < 20_000
        assert result["counts"]["begun"] >= num_averages(ranks, in_memory=in_memory)
        assert result["counts"]["exchange_seconds"] > 0
    check_counts(results)
    if ranks == 2:
        # Larger than the buffers of the network.
        results = cases.results("long", in_memory)
        assert all(max(map(abs, result["difference"])) <= 1e-6 for result in results)
        check_counts(results)


@in_each_way
def test_a_half_changed_vector_is_never_seen(cases: Cases, in_memory: bool) -> None:
    for result in cases.results("stamps", in_memory)[:2]:
        assert result["reads"] > 20
        assert result["torn"] == 0


@in_each_way
def test_a_vector_that_is_not_finite_reaches_nobody_and_all_see_those_of_all(
    cases: Cases, in_memory: bool
) -> None:
    poisoned, *remaining = cases.results("poison", in_memory)
    assert [outcome["seen"] for outcome in (poisoned, *remaining)] == [[1.0, 2.0, 3.0]] * 3
    assert not poisoned["finite"]
    assert poisoned["begun"] == poisoned["received"] == 0
    assert poisoned["refused"] == 50
    for second in remaining:
        assert second["finite"]
        assert second["refused"] > 0
        assert second["begun"] + second["refused"] == 50


def test_averages_with_a_lost_partner_are_left_out_and_counted(cases: Cases) -> None:
    *remaining, lost = cases.results("lost")
    # The one that was under way, and those that came after.
    assert [(second["first"], second["then"]) for second in remaining] == [(1, 5)] * 2
    assert (lost["first"], lost["then"], lost["counts"]["begun"]) == (0, 5, 0)
    for second in remaining:
        assert second["found"] == [0.5] * 3
        assert second["counts"]["begun"] == second["counts"]["received"] == 5
        assert second["counts"]["lost"] == 6
        # The lost rank had the lock of their server.
        assert second["pushed"] == [2.0]


def test_a_holder_that_does_not_come_back_is_left_alone_and_a_dead_one_is_replaced(
    cases: Cases,
) -> None:
    for actual in cases.results("take_over"):
        assert actual["skipped"] == 1
        assert actual["works"] == [True] * 4
        # (0 + 1 + 1) / 2 = 1, then (1 + 1 + 1) / 2.
        assert actual["found"] == [1.5] * 3


@in_each_way
def test_a_rank_that_sleeps_keeps_nobody_waiting_and_who_is_done_serves_on(
    cases: Cases, in_memory: bool
) -> None:
    *remaining, straggler = cases.results("straggle", in_memory)
    assert all(second["done"] < straggler["done"] for second in remaining)
    assert straggler["begun"] == 0
    assert straggler["received"] > 10
    assert [outcome["lost"] for outcome in remaining] == [0] * 3
    assert sum(outcome["received"] for outcome in (*remaining, straggler)) == sum(
        outcome["begun"] for outcome in remaining
    )


def test_an_average_is_skipped_while_the_one_before_is_under_way(cases: Cases) -> None:
    counts, *remaining = cases.results("skip")
    assert (counts["begun"], counts["skipped"]) == (2, 2)
    assert [second["received"] for second in remaining] == [1, 1]


@pytest.mark.parametrize(("ranks", "size"), EXCHANGES)
def test_neighbours_get_each_others_vectors_round_by_round(
    cases: Cases, ranks: int, size: int
) -> None:
    for rank, result in enumerate(cases.results("exchange", ranks, size)):
        assert result["nobody"] == []
        assert len(result["came"]) == ROUNDS
        for index, came in enumerate(result["came"]):
            step = 1 + index % (ranks - 1)
            neighbours = [(rank + step) % ranks, (rank - step) % ranks]
            assert came == [
                [neighbour, 100.0 * neighbour + index, 100.0 * neighbour + index]
                for neighbour in neighbours
            ]


def test_doctor_starts_ranks_and_measures() -> None:
    message = probe_mpi(TrainSettings(workers=2, algorithm="ad-psgd"))
    match = re.search(
        r"all-reduce ([\d,.]+) us, pairwise average \(memory\) ([\d,.]+) us, push to a server ([\d,.]+)",
        message,
    )
    assert match is not None, message
    assert all(float(index.replace(",", "")) > 0 for index in match.groups())


def test_memory_that_cannot_be_shared_is_an_error_with_advice(tmp_path: Path) -> None:
    for actual in results_of(2, "messages:fail_to_start", tmp_path / "ranks"):
        assert "where 100 are free on host" in actual
        assert "OMPI_MCA_osc" in actual
        assert "--shm-size" in actual


def test_a_folder_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    outcome = run_ranks(
        2,
        "messages:fail_to_start",
        tmp_path / "ranks",
        environment={"OMPI_MCA_osc_sm_backing_directory": str(tmp_path / "nowhere")},
    )
    assert set(outcome.results) == {0, 1}, outcome.output
    assert all("nowhere, where 0 are free" in message for message in outcome.results.values())


@pytest.mark.parametrize(("ranks", "shards"), [(ranks, shards) for ranks, shards, *_ in PUSHES])
def test_no_push_is_lost_and_clocks_count_them(cases: Cases, ranks: int, shards: int) -> None:
    results = cases.results("push", ranks)
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
    created = {
        (shard, clock): value for result in results for shard, clock, value in result["made"]
    }
    assert len(created) == ranks * pushes * shards
    expected = []
    for shard in range(shards):
        value = 0
        for clock in range(ranks * pushes):
            value = (3 * value + created[shard, clock]) % 1009
        expected += [value] * (size * (shard + 1) // shards - size * shard // shards)
    assert [result["final"] for result in results] == [expected] * ranks


@in_each_way
def test_an_occupied_shard_is_not_waited_for_and_what_is_not_finite_is_refused(
    cases: Cases, in_memory: bool
) -> None:
    results = cases.results("occupied", in_memory)
    # The push of rank 0 is in the thread while the rank sleeps.
    assert results[0]["counts"]["hidden_seconds"] > 0.1
    assert results[1]["tried"][:3] == [False, True, False]
    assert results[1]["counts"]["occupied"] >= 2
    assert sorted(ticket for result in results for ticket in result["tickets"]) == [*range(1, 21)]
    added = sum(result["tried"][-1] for result in results)
    for result in results:
        assert result["refused"]
        assert result["final"] == [10.0] * 2 + [1.0 + 10 * added] * 3
        assert result["counts"]["refused"] == 2


@pytest.mark.parametrize("background", [True, False])
def test_sums_in_the_background_are_right_and_need_no_call_of_the_worker(
    cases: Cases, background: bool
) -> None:
    for result in cases.results("sums", background):
        assert result["first"] == [6.0]
        assert result["second"] == [30.0] * 3
        assert result["between"] == [3.0] * 2
        assert result["ended_in_background"] == background


@pytest.mark.parametrize(
    ("launcher", "where", "is_idle"),
    [("mpirun", [], True), ("mpirun", ["--host", "a:1,b:1"], False), ("spark", [], False)],
)
def test_a_network_between_hosts_is_refused_on_this_host_alone(
    launcher: str, where: list[str], is_idle: bool
) -> None:
    """It was accepted without effect; then it was refused, too, where Spark had placed all workers on one host."""
    algorithm = {"name": "ad-psgd", "network": "lo"}
    settings = TrainSettings.model_validate(
        {"workers": 2, "launcher": launcher, "algorithm": algorithm}
    )
    refused = pytest.raises(
        IdleSettingError, match=r"network: lo has no effect: all 2 workers are on one host"
    )
    with refused if is_idle else nullcontext():
        rank_command(settings, ["true"], where)
