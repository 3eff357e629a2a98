"""Transports on MPI ranks: shared vectors, servers, collective calls, exchanges and starts.

All programs of one number of ranks share a start of ranks.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Hashable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from rank_programs import Case, Cases, results_of, run_ranks

from training.errors import IdleSettingError, LaunchError
from training.launching.mpirun import probe_mpi, rank_command, run_measurement
from training.settings import TrainSettings

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

#: Number of averages by the number of ranks.
AVERAGES = {2: 2000, 3: 3000, 4: 1000}
DTYPES = {2: "float64", 3: "float32", 4: "float64"}
#: Ranks and size of a vector.
EXCHANGES = [(2, 3), (4, 2013), (3, 200_000)]
ROUNDS = 12
#: By the number of ranks.
PUSHES: dict[int, dict[str, Any]] = {
    4: {"shards": 1, "background": False, "in_memory": True},
    3: {"shards": 7, "background": True, "in_memory": False},
}
ORDER = {"pushes": 100, "size": 10, "shards": 3}
COUNTS = [5, 3, 7]
in_each_way = pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "sockets"])


def num_averages(ranks: int, *, in_memory: bool) -> int:
    """Number of averages that take seconds; answers through sockets wait for a core."""
    return AVERAGES[ranks] if in_memory else AVERAGES[ranks] // 10


def exchange_cases() -> dict[Hashable, Case]:
    cases: dict[Hashable, Case] = {}
    for ranks, size in EXCHANGES:
        arguments = {"rounds": ROUNDS, "size": size}
        cases["exchange", ranks, size] = Case(ranks, "messages:exchange", arguments)
    cases["exchange alone",] = Case(2, "messages:exchange_in_background", {"size": 1_000_000})
    return cases


def server_cases() -> dict[Hashable, Case]:
    cases: dict[Hashable, Case] = {}
    for ranks, options in PUSHES.items():
        arguments = options | {"pushes": 150, "size": 101}
        cases["push", ranks] = Case(ranks, "parameter_servers:conserve", arguments)
    cases["order",] = Case(4, "parameter_servers:order", ORDER)
    cases["elements",] = Case(2, "parameter_servers:push_elements", {"size": 1000, "stride": 10})
    for background in (True, False):
        arguments = {"background": background, "size": 50_001}
        cases["sums", background] = Case(3, "parameter_servers:sums", arguments)
    for in_memory in (True, False):
        arguments = {"in_memory": in_memory, "nap": 0.3}
        cases["occupied", in_memory] = Case(2, "parameter_servers:occupied", arguments)
    return cases


def average_cases(folder: Path, *, in_memory: bool) -> dict[Hashable, Case]:
    cases: dict[Hashable, Case] = {}
    for ranks, dtype in DTYPES.items():
        averages = num_averages(ranks, in_memory=in_memory)
        arguments = {"in_memory": in_memory, "averages": averages, "dtype": dtype}
        cases["conserve", ranks, in_memory] = Case(ranks, "averages:conserve", arguments)
    done_files = folder / f"{in_memory}"
    done_files.mkdir()
    programs: dict[str, tuple[int, str, dict[str, Any]]] = {
        "straggle": (4, "straggle", {"folder": str(done_files), "nap": 60, "averages": 100}),
        "long": (2, "conserve", {"averages": 5, "size": 1_000_000}),
        "stamps": (4, "stamps", {"averages": 1000, "size": 20_000}),
        "poison": (3, "poison", {}),
    }
    for name, (ranks, function, arguments) in programs.items():
        arguments["in_memory"] = in_memory
        cases[name, in_memory] = Case(ranks, f"averages:{function}", arguments)
    return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """All programs; those that leave something open come last."""
    folder = tmp_path_factory.mktemp("transports")
    cases = exchange_cases() | server_cases()
    for in_memory in (True, False):
        cases |= average_cases(folder, in_memory=in_memory)
    cases["lost",] = Case(3, "lost_partners:break_connections", {"averages": 5, "nap": 0.3})
    cases["load late",] = Case(2, "messages:load_late", {"rank": 1, "nap": 0.3})
    arguments = {"counts": COUNTS, "patience": 10}
    cases["count",] = Case(2, "messages:count_at_a_busy_owner", arguments)
    cases["skip",] = Case(3, "averages:skip", {})
    cases["take_over",] = Case(2, "averages:take_over", {"folder": str(folder)})
    return Cases(folder, cases, seconds=600)


def test_a_rank_of_another_host_counts_samples_without_waiting_for_an_answer(cases: Cases) -> None:
    owner, counting = cases.results("count")

    assert not owner["waited"]
    assert counting["totals"] == [5, 8, 15]
    assert counting["ticket"] == 1
    assert owner["total"] == 15


def test_no_rank_draws_work_before_all_have_loaded_the_code_for_it(cases: Cases) -> None:
    results = cases.results("load late")

    # All ranks of the host have the same clock.
    last_first_count = max(result["first_count"] for result in results)
    assert min(result["opened"] for result in results) >= last_first_count
    assert sorted(result["tickets"] for result in results) == [1, 2]


def check_counts(results: list[dict[str, Any]]) -> None:
    """Every average that was begun was received; every rank saw all of its own and of others'."""
    counts = [result["counts"] for result in results]
    assert sum(count["begun"] for count in counts) == sum(count["received"] for count in counts)
    for result in results:
        assert result["versions_grow"]
        assert result["last_version"] == result["counts"]["begun"] + result["counts"]["received"]


def test_a_push_of_some_elements_counts_the_bytes_that_it_sends(cases: Cases) -> None:
    owner, pushing = cases.results("elements")

    assert owner == {"counted": 0, "sent": 0}
    # Two pushes of 100 elements: an index, and the value there and back, of 4 bytes each.
    assert pushing == {"counted": 2400, "sent": 2400}


@in_each_way
@pytest.mark.parametrize("ranks", AVERAGES)
def test_the_sum_over_all_ranks_is_conserved_and_no_change_is_lost(
    cases: Cases, ranks: int, in_memory: bool
) -> None:
    results = cases.results("conserve", ranks, in_memory)

    tolerance = 1e3 if DTYPES[ranks] == "float32" else 1e-6
    for result in results:
        assert max(map(abs, result["difference"])) <= tolerance
        # They began a million apart; changes of up to a thousand follow.
        assert ranks != 3 or result["distance"] < 20_000
        assert result["counts"]["begun"] >= num_averages(ranks, in_memory=in_memory)
        assert result["counts"]["exchange_seconds"] > 0
    check_counts(results)


@in_each_way
def test_vectors_larger_than_the_buffers_of_the_network_are_averaged(
    cases: Cases, in_memory: bool
) -> None:
    results = cases.results("long", in_memory)

    assert all(max(map(abs, result["difference"])) <= 1e-6 for result in results)
    check_counts(results)


@in_each_way
def test_a_half_changed_vector_is_never_seen(cases: Cases, in_memory: bool) -> None:
    for result in cases.results("stamps", in_memory)[:2]:
        assert result["reads"] > 20
        assert result["torn"] == 0


@in_each_way
def test_a_vector_that_is_not_finite_reaches_nobody_and_every_rank_reads_every_vector(
    cases: Cases, in_memory: bool
) -> None:
    results = cases.results("poison", in_memory)

    assert [result["first_elements"] for result in results] == [[1.0, 2.0, 3.0]] * 3
    poisoned, *healthy = results
    assert not poisoned["finite"]
    assert poisoned["begun"] == poisoned["received"] == 0
    assert poisoned["refused"] == 50
    for result in healthy:
        assert result["finite"]
        assert result["refused"] > 0
        assert result["begun"] + result["refused"] == 50


def test_averages_with_a_lost_partner_are_left_out_and_counted(cases: Cases) -> None:
    *healthy, lost = cases.results("lost")

    assert (lost["first"], lost["then"], lost["counts"]["begun"]) == (0, 5, 0)
    for result in healthy:
        # The average that was under way, and those that came after.
        assert (result["first"], result["then"]) == (1, 5)
        assert result["vector"] == [0.5] * 3
        assert result["counts"]["begun"] == result["counts"]["received"] == 5
        assert result["counts"]["lost"] == 6
        # The lost rank had the lock of their server.
        assert result["pushed"] == [2.0]


def test_a_stopped_owner_of_a_mutex_is_skipped_and_a_dead_one_is_replaced(cases: Cases) -> None:
    for result in cases.results("take_over"):
        assert result["skipped"] == 1
        assert result["works"] == [True] * 4
        # (0 + 1 + 1) / 2 = 1, then (1 + 1 + 1) / 2.
        assert result["vector"] == [1.5] * 3


@in_each_way
def test_a_rank_that_sleeps_lets_nobody_wait_and_a_rank_that_is_done_still_serves(
    cases: Cases, in_memory: bool
) -> None:
    results = cases.results("straggle", in_memory)

    *awake, sleeper = results
    assert all(result["done"] < sleeper["done"] for result in awake)
    assert sleeper["begun"] == 0
    assert sleeper["received"] > 10
    assert [result["lost"] for result in awake] == [0] * 3
    begun = sum(result["begun"] for result in awake)
    assert sum(result["received"] for result in results) == begun


def test_an_average_is_skipped_while_the_last_one_is_under_way(cases: Cases) -> None:
    beginner, *partners = cases.results("skip")

    assert (beginner["begun"], beginner["skipped"]) == (2, 2)
    assert [partner["received"] for partner in partners] == [1, 1]


@pytest.mark.parametrize(("ranks", "size"), EXCHANGES)
def test_neighbours_get_each_others_vectors_round_by_round(
    cases: Cases, ranks: int, size: int
) -> None:
    for rank, result in enumerate(cases.results("exchange", ranks, size)):
        assert result["nobody"] == []
        assert len(result["came"]) == ROUNDS
        for index, received in enumerate(result["came"]):
            step = 1 + index % (ranks - 1)
            expected = []
            for neighbour in ((rank + step) % ranks, (rank - step) % ranks):
                element = 100.0 * neighbour + index
                expected.append([neighbour, element, element])
            assert received == expected


def test_a_large_message_to_neighbours_needs_no_call_of_the_worker(cases: Cases) -> None:
    for rank, result in enumerate(cases.results("exchange alone")):
        element = 10.0 + (1 - rank)
        assert result["has_ended"]
        assert result["came"] == [[1 - rank, element, element]]


def test_doctor_starts_ranks_and_measures() -> None:
    message = probe_mpi(TrainSettings(workers=2, algorithm="ad-psgd"))

    match = re.search(
        r"all-reduce ([\d,.]+) us, pairwise average \(memory\) ([\d,.]+) us, push to a server ([\d,.]+)",
        message,
    )
    assert match is not None, message
    assert all(float(microseconds.replace(",", "")) > 0 for microseconds in match.groups())


def test_no_rank_outlives_a_measurement_that_takes_too_long() -> None:
    marker = f"marker_{uuid.uuid4().hex} = 0"
    program = ("timeit", "--number=1", "--setup", marker, "import time; time.sleep(300)")

    with pytest.raises(LaunchError, match=r"2 ranks did not finish a short test of MPI in 5 s"):
        run_measurement(TrainSettings(workers=2), program, timeout=5.0)

    assert [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if marker in (process.info["cmdline"] or [])
    ] == []


def test_memory_that_cannot_be_shared_is_an_error_with_advice(tmp_path: Path) -> None:
    for message in results_of(2, "messages:fail_to_start", tmp_path / "ranks"):
        assert "where 100 are free on host" in message
        assert "OMPI_MCA_osc" in message
        assert "--shm-size" in message


def test_a_folder_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    environment = {"OMPI_MCA_osc_sm_backing_directory": str(tmp_path / "nowhere")}

    outcome = run_ranks(2, "messages:fail_to_start", tmp_path / "ranks", environment=environment)

    assert set(outcome.results) == {0, 1}, outcome.output
    assert all("nowhere, where 0 are free" in message for message in outcome.results.values())


@pytest.mark.parametrize("ranks", PUSHES)
def test_no_push_is_lost_and_clocks_count_them(cases: Cases, ranks: int) -> None:
    shards = PUSHES[ranks]["shards"]
    for rank, result in enumerate(cases.results("push", ranks)):
        assert result["lost"] == 0
        assert result["clocks_are_right"]
        counts = result["counts"]
        assert counts["pushes"] == 50 + 2 * 50 * shards
        assert (counts["refused"], counts["skipped"]) == (0, 0)
        assert counts["exchange_seconds"] > counts["wait_seconds"] > 0
        # The owner of all shards sends nothing.
        owns_all_shards = shards == 1 and rank == 0
        assert (counts["bytes"] == 0) == owns_all_shards


def test_rules_that_do_not_commute_have_one_order_which_the_clocks_give(cases: Cases) -> None:
    ranks, shards = 4, ORDER["shards"]
    num_pushes = ranks * ORDER["pushes"]
    results = cases.results("order")

    terms = {(shard, clock): term for result in results for shard, clock, term in result["terms"]}
    assert len(terms) == num_pushes * shards
    expected = []
    for shard in range(shards):
        element = 0
        for clock in range(num_pushes):
            element = (3 * element + terms[shard, clock]) % 1009
        start, stop = (ORDER["size"] * bound // shards for bound in (shard, shard + 1))
        expected += [element] * (stop - start)
    assert [result["final"] for result in results] == [expected] * ranks


@in_each_way
def test_nobody_waits_for_an_occupied_shard_and_results_that_are_not_finite_are_refused(
    cases: Cases, in_memory: bool
) -> None:
    results = cases.results("occupied", in_memory)

    # The push of rank 0 is in the thread while the rank sleeps.
    assert results[0]["counts"]["hidden_seconds"] > 0.1
    assert results[1]["tries"][:3] == [False, True, False]
    assert results[1]["counts"]["occupied"] >= 2
    tickets = results[0]["tickets"] + results[1]["tickets"]
    assert sorted(tickets) == list(range(1, 21))
    num_last_tries = sum(result["tries"][-1] for result in results)
    for result in results:
        assert result["is_refused"]
        assert result["final"] == [10.0] * 2 + [1.0 + 10 * num_last_tries] * 3
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
    ("launcher", "arguments", "is_idle"),
    [("mpirun", [], True), ("mpirun", ["--host", "a:1,b:1"], False), ("spark", [], False)],
)
def test_a_network_between_hosts_is_refused_on_this_host_alone(
    launcher: str, arguments: list[str], is_idle: bool
) -> None:
    """Spark and lists of hosts may place the workers on several hosts."""
    algorithm = {"name": "ad-psgd", "network": "lo"}
    settings = TrainSettings.model_validate(
        {"workers": 2, "launcher": launcher, "algorithm": algorithm}
    )
    refusal = pytest.raises(
        IdleSettingError, match=r"network: lo has no effect: all 2 workers are on one host"
    )
    with refusal if is_idle else nullcontext():
        rank_command(settings, ["true"], arguments)
