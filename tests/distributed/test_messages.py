"""Collective calls, exchanges with neighbours, the global clock and the start of transports, on real MPI ranks."""

from __future__ import annotations

import re
from collections.abc import Hashable
from itertools import product
from pathlib import Path

import pytest
from rank_programs import IMPLEMENTATIONS, Case, Cases, Mpi, results_of, run_ranks

from training.launching.mpirun import probe_mpi
from training.settings import TrainSettings

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]


DTYPES = ["float32", "float64"]
EXCHANGES = [(2, 3), (5, 2013), (3, 200_000)]
ROUNDS = 12
#: 0: without mpirun.
ALONE = list(product([0, 1], [True, False]))
CASES: dict[Hashable, Case] = {
    **{("collect", dtype): Case(3, "messages:collect", {"dtype": dtype}) for dtype in DTYPES},
    **{
        ("exchange", ranks, size): Case(ranks, "messages:exchange", {"rounds": ROUNDS, "size": size})
        for ranks, size in EXCHANGES
    },
    ("count",): Case(4, "messages:count", {"times": 2000}),
    **{
        ("alone", ranks, in_memory): Case(ranks, "messages:alone", {"in_memory": in_memory})
        for ranks, in_memory in ALONE
    },
    ("several",): Case(3, "messages:several", {"vectors": 3}),
}


@pytest.fixture(scope="module", params=IMPLEMENTATIONS, ids=str)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    chosen: Mpi = request.param
    return chosen


@pytest.fixture(scope="module")
def cases(mpi: Mpi, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(mpi, tmp_path_factory.mktemp(f"messages-{mpi}"), CASES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_summed_and_broadcast_in_place(cases: Cases, dtype: str) -> None:
    for result in cases.results("collect", dtype):
        assert result["sum"] == [3 * element + 1.5 + 3 for element in range(4)]
        assert result["sent"] == [element + 0.25 for element in range(4)]
        assert result["dtypes"] == [dtype, dtype]
        assert result["later"]


@pytest.mark.parametrize(("ranks", "size"), EXCHANGES)
def test_neighbours_get_each_others_vectors_round_by_round(cases: Cases, ranks: int, size: int) -> None:
    for rank, result in enumerate(cases.results("exchange", ranks, size)):
        assert result["nobody"] == []
        assert len(result["came"]) == ROUNDS
        for number, came in enumerate(result["came"]):
            step = 1 + number % (ranks - 1)
            neighbours = [(rank + step) % ranks, (rank - step) % ranks]
            assert came == [[each, 100.0 * each + number, 100.0 * each + number] for each in neighbours]


def test_samples_of_all_ranks_are_counted_exactly(cases: Cases) -> None:
    results = cases.results("count")
    seen = [number for result in results for number in result["seen"]]
    assert {result["total"] for result in results} == {2000 * (1 + 2 + 3 + 4)} == {max(seen)}
    assert len(set(seen)) == len(seen)
    assert all(result["seen"] == sorted(result["seen"]) for result in results)


@pytest.mark.parametrize(("ranks", "in_memory"), ALONE)
def test_a_world_of_one(cases: Cases, ranks: int, in_memory: bool) -> None:
    (result,) = cases.results("alone", ranks, in_memory)
    assert result["world"] == 1
    assert result["out"] == [1, 2, 3]
    assert result["averages"] == 0
    assert result["samples"] == [2, 4]


def test_several_vectors_and_a_second_transport(cases: Cases) -> None:
    for found in cases.results("several"):
        assert found == [0, 1, 2, 0, 1, 2]


def test_doctor_starts_ranks_and_measures() -> None:
    words = probe_mpi(TrainSettings(workers=2, algorithm="ad-psgd"))
    found = re.search(
        r"all-reduce ([\d,.]+) us, pairwise average \(memory\) ([\d,.]+) us, push to a server ([\d,.]+)", words
    )
    assert found is not None, words
    assert all(float(number.replace(",", "")) > 0 for number in found.groups())


def test_memory_that_cannot_be_shared_is_an_error_with_advice(tmp_path: Path) -> None:
    for found in results_of(IMPLEMENTATIONS[0], 2, "messages:fail_to_start", tmp_path / "ranks"):
        assert "where 100 are free on host" in found
        assert "OMPI_MCA_osc" in found
        assert "--shm-size" in found


def test_a_folder_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    outcome = run_ranks(
        IMPLEMENTATIONS[0],
        2,
        "messages:fail_to_start",
        tmp_path / "ranks",
        environment={"OMPI_MCA_osc_sm_backing_directory": str(tmp_path / "nowhere")},
    )
    assert set(outcome.results) == {0, 1}, outcome.output
    assert all("nowhere, where 0 are free" in words for words in outcome.results.values())
