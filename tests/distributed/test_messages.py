"""Collective calls, exchanges with neighbours, the global clock and the start of transports, on real MPI ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rank_programs import IMPLEMENTATIONS, Mpi, results_of, run_ranks

from training.errors import LaunchError
from training.launching.probing import measure_messages, probe_mpi
from training.settings import TrainSettings

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


@pytest.fixture(params=IMPLEMENTATIONS, ids=str)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    chosen: Mpi = request.param
    return chosen


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_are_summed_and_broadcast_in_place(tmp_path: Path, mpi: Mpi, dtype: str) -> None:
    for result in results_of(mpi, 3, "messages:collect", tmp_path / "ranks", dtype=dtype):
        assert result["sum"] == [3 * element + 1.5 + 3 for element in range(4)]
        assert result["sent"] == [element + 0.25 for element in range(4)]
        assert result["dtypes"] == [dtype, dtype]
        assert result["later"]


@pytest.mark.parametrize(("ranks", "size"), [(2, 3), (5, 2013), (3, 200_000)])
def test_neighbours_get_each_others_vectors_round_by_round(tmp_path: Path, mpi: Mpi, ranks: int, size: int) -> None:
    rounds = 12
    results = results_of(mpi, ranks, "messages:exchange", tmp_path / "ranks", rounds=rounds, size=size)
    for rank, result in enumerate(results):
        assert result["nobody"] == []
        assert len(result["came"]) == rounds
        for number, came in enumerate(result["came"]):
            step = 1 + number % (ranks - 1)
            neighbours = [(rank + step) % ranks, (rank - step) % ranks]
            assert came == [[each, 100.0 * each + number, 100.0 * each + number] for each in neighbours]


def test_samples_of_all_ranks_are_counted_exactly(tmp_path: Path, mpi: Mpi) -> None:
    results = results_of(mpi, 4, "messages:count", tmp_path / "ranks", times=2000)
    seen = [number for result in results for number in result["seen"]]
    assert {result["total"] for result in results} == {2000 * (1 + 2 + 3 + 4)} == {max(seen)}
    assert len(set(seen)) == len(seen)
    assert all(result["seen"] == sorted(result["seen"]) for result in results)


@pytest.mark.parametrize("overlap", ["inline", "thread"])
@pytest.mark.parametrize("protocol", ["locked", "additive", "sockets"])
@pytest.mark.parametrize("ranks", [0, 1], ids=["without mpirun", "one rank"])
def test_a_world_of_one(tmp_path: Path, mpi: Mpi, ranks: int, protocol: str, overlap: str) -> None:
    (result,) = results_of(mpi, ranks, "messages:alone", tmp_path / "ranks", protocol=protocol, overlap=overlap)
    assert result["world"] == 1
    assert result["out"] == [1, 2, 3]
    assert result["averages"] == 0
    assert result["words"] == "rank 0 of 1 cannot average with rank 0"
    assert result["samples"] == [2, 4]


def test_several_vectors_and_a_second_transport(tmp_path: Path, mpi: Mpi) -> None:
    for found in results_of(mpi, 3, "messages:several", tmp_path / "ranks", vectors=3):
        assert found == [0, 1, 2, 0, 1, 2]


def test_the_start_up_test_finds_nothing_and_measures(tmp_path: Path, mpi: Mpi) -> None:
    first, *others = results_of(mpi, 3, "messages:start_up_test", tmp_path / "ranks")
    assert all(other == first for other in others)
    assert first["problems"] == []
    assert mpi.name in first["library"].lower().replace(" ", "")
    assert first["seconds"] > 0
    if not mpi.reaches_sleepers:
        assert first["target_must_help"]


def test_doctor_did_not_say_what_averages_cost() -> None:
    words = probe_mpi(TrainSettings(workers=2, algorithm="ad-psgd"))
    found = re.search(r"takes ([\d,]+) us in MPI's windows and ([\d,]+) us through sockets; (.*)$", words)
    assert found is not None, words
    assert all(int(number.replace(",", "")) > 0 for number in found.groups()[:2])
    assert found[3] == "train with ad-psgd uses windows (locked): the workers share memory"


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("self-test", "Some MPI reads or writes the memory of other workers wrongly: rank 0: locks: 20 times"),
        ("room", "where 100 are free on host"),
    ],
)
def test_memory_that_cannot_be_shared_is_an_error_with_advice(tmp_path: Path, why: str, words: str) -> None:
    for found in results_of(IMPLEMENTATIONS[0], 2, "messages:fail_to_start", tmp_path / "ranks", why=why):
        assert words in found
        assert "OMPI_MCA_osc" in found
        assert "--shm-size" in found


def test_a_folder_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    outcome = run_ranks(
        IMPLEMENTATIONS[0],
        2,
        "messages:fail_to_start",
        tmp_path / "ranks",
        environment={"OMPI_MCA_osc_sm_backing_directory": str(tmp_path / "nowhere")},
        why="",
    )
    assert set(outcome.results) == {0, 1}, outcome.output
    assert all("nowhere, where 0 are free" in words for words in outcome.results.values())


def test_ranks_without_the_network_that_is_asked_for_end_at_once() -> None:
    method = {"name": "ad-psgd", "exchange": "sockets", "network": "nowhere"}
    settings = TrainSettings.model_validate({"algorithm": method, "workers": 2})
    with pytest.raises(LaunchError, match="no interface 'nowhere'"):
        measure_messages(settings, [64])
