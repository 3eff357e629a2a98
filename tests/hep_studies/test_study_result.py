"""Results of a study: cells, their best values, measures; all of it survives JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_study import EPOCHS, example_check, example_result, example_run, example_study
from simulated import CLUSTER, run, toy_rows

from hep_studies.run_result import curves_of, numbers_of, read_result, write_diverged
from hep_studies.study_result import (
    PACKED_FILE,
    Cell,
    StudyResult,
    as_plain,
    pack,
    read_study_result,
)
from training.errors import StudyError

RATE = "train.learning_rate"


def swept() -> StudyResult:
    """Two rates; with the higher one AD-PSGD is better and AR-SGD worse."""
    study = example_study(vary={RATE: [0.1, 0.2]}, best_of=[RATE])
    correct = {
        ("ar-sgd", 0.1): 900,
        ("ar-sgd", 0.2): 800,
        ("ad-psgd", 0.1): 850,
        ("ad-psgd", 0.2): 950,
    }
    names = [(seed, name, rate) for seed in (2, 1) for name, rate in correct]
    runs = [
        example_run(name, seed, correct=correct[name, rate], values={RATE: rate})
        for seed, name, rate in names
    ]
    return example_result(study, runs, checks=[example_check("ar-sgd", 2e-3, 1e-3)])


def test_each_method_stands_at_its_own_best_value() -> None:
    result = swept()
    assert [result.best_combination(cell).plain_values[RATE] for cell in result.cells()] == [
        0.1,
        0.2,
    ]
    assert dict(result.numbers(Cell("ad-psgd"), "test_accuracy")) == {1: 0.95, 2: 0.95}
    assert result.curves(Cell("ar-sgd"), "val_loss").shape == (2, EPOCHS)


def test_a_packed_result_is_the_same_and_another_file_is_refused_by_name(tmp_path: Path) -> None:
    result, path = swept(), tmp_path / PACKED_FILE
    path.write_bytes(pack(result))
    assert read_study_result(path) == result
    assert pack(read_study_result(path)) == path.read_bytes()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StudyError, match=r"result\.json\.xz is no result of a study \("):
        read_study_result(path)
    old = tmp_path / "result.json"
    old.write_text(json.dumps({**as_plain(result), "version": 1}))
    with pytest.raises(StudyError, match="Input should be 6"):
        read_study_result(old)


def test_values_that_are_mappings_are_the_same_after_json(tmp_path: Path) -> None:
    key = "cluster.slow_ranks"
    study = example_study(vary={key: [{}, {0: 10.0}]})
    runs = [example_run("ad-psgd", 1, values={key: value}) for value in ({}, {0: 10.0})]
    result = example_result(study, runs)
    (tmp_path / "result.json").write_text(json.dumps(as_plain(result)))
    again = read_study_result(tmp_path / "result.json")
    assert again.cells() == result.cells()
    assert again.cells(["ad-psgd"], {key: {0: 10.0}}) == result.cells()[1:]


def test_a_value_is_the_same_with_and_without_a_decimal_point() -> None:
    key = "train.momentum"
    runs = [example_run("ad-psgd", 1, values={key: value}) for value in (0, 0.5)]
    result = example_result(example_study(vary={key: [0, 0.5]}), runs)
    assert result.cells(values={key: 0.0}) == result.cells()[:1]
    at_best = example_result(example_study(vary={key: [0, 0.5]}, best_of=[key]), runs)
    (cell,) = at_best.cells()
    assert at_best.runs_of(cell, {key: 0.0}) == runs[:1]


def test_times_that_were_measured_on_a_busy_machine_are_said_to_be_that() -> None:
    created = swept()
    for execution, busy, message in (
        ("mpi", 0.9, ""),
        ("mpi", 1.0, "measured on a busy machine"),
        ("simulate", 1.0, ""),
    ):
        machine = replace(created.provenance.machine, load=busy)
        study = created.study.model_copy(update={"execution": execution})
        assert (
            replace(
                created, study=study, provenance=replace(created.provenance, machine=machine)
            ).warning
            == message
        )


def test_speed_up_and_temporal_efficiency_compare_with_the_same_seed() -> None:
    seconds = {"ar-sgd": 0.4, "sgd": 0.8, "ad-psgd": 0.2}
    result = example_result(
        example_study(), [example_run(name, 1, seconds=time) for name, time in seconds.items()]
    )
    assert dict(result.numbers(Cell("ad-psgd"), "speed_up")) == {1: pytest.approx(4)}
    slow, same, fast = (
        result.numbers(Cell(name), "temporal_efficiency")[1]
        for name in ("sgd", "ar-sgd", "ad-psgd")
    )
    assert slow < same < fast
    assert same == pytest.approx(1)


def test_measures_of_the_times_of_epochs() -> None:
    """The variance had the first one, which the figure leaves out."""
    first = example_run("sgd", 1)
    times = {**first.curves, "seconds": [9.0, 1.0, 3.0], "val_accuracy": [0.5, 0.8, 0.85]}
    result = example_result(example_study(), [replace(first, curves=times)])
    expected = {
        "variance_of_epochs": 1,
        "seconds_to=0.8": 10,
        "seconds_to=0.95": math.inf,
        "seconds_per_epoch": 3,
    }
    assert {name: result.numbers(Cell("sgd"), name)[1] for name in expected} == expected


def test_a_run_that_diverged_is_a_result(tmp_path: Path) -> None:
    write_diverged(tmp_path, code="commit 2")
    lost = read_result(tmp_path, "ad-psgd", {}, 1)
    assert lost is not None
    assert (lost.numbers["diverged"], lost.made_with) == (1.0, "commit 2")
    result = example_result(
        example_study(), [lost, example_run("ad-psgd", 2), example_run("ar-sgd", 1)]
    )
    assert dict(result.numbers(Cell("ad-psgd"), "test_accuracy")) == {2: 0.9}
    assert result.numbers(Cell("ad-psgd"), "diverged")[1] == 1
    assert len(result.curves(Cell("ad-psgd"), "val_loss")) == 1
    assert read_result(tmp_path / "none", "ad-psgd", {}, 1) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '{"made_with": "commit 1"}', "[" * 100_000]
)
def test_a_run_whose_result_is_damaged_is_made_again(tmp_path: Path, text: str) -> None:
    write_diverged(tmp_path, code="commit 1")
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert read_result(tmp_path, "ad-psgd", {}, 1) is None


def test_curves_are_means_over_the_workers_whatever_epochs_each_took_part_in() -> None:
    def record(epoch: int, seconds: float, staleness: dict[str, int]) -> dict[str, Any]:
        names = ("val_accuracy", "val_loss", "train_loss", "train_accuracy", "consensus_distance")
        times = {
            "seconds": seconds,
            "seconds_by_kind": {"compute": 1.0, "wait": 0.5},
            "hidden_seconds": 0.25,
        }
        counts = {"staleness": staleness, "scaling_percent": {"40": 2, "10": 1}}
        return {"epoch": epoch, **dict.fromkeys(names, 0.5), **times, **counts}

    ranks = [[record(0, 1.0, {"0": 1}), record(1, 2.0, {"2": 1})], [record(1, 4.0, {"4": 3})]]
    actual = curves_of(ranks)
    assert (actual["seconds"], actual["staleness"]) == ([1.0, 3.0], [0.0, 3.5])
    assert actual["scaling_percent"] == [30.0, 30.0]
    # In a thread, averages count as communication too.
    assert actual["communicate"] == [0.75, 0.75]
    inline = [
        [{**each, "hidden_seconds": 0.0, "exchange_seconds": 0.4} for each in records]
        for records in ranks
    ]
    assert curves_of(inline)["communicate"] == [0.5, 0.5]


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_waiting_for_an_average_counts_once(exchange: str) -> None:
    slow = CLUSTER.model_copy(update={"latency_seconds": 5e-3})
    actual = curves_of(
        run(cluster=slow, algorithm="ad-psgd", exchange=exchange, sharding="static").records
    )
    assert all(
        0 < chunk <= complete
        for chunk, complete in zip(actual["communicate"], actual["seconds"], strict=True)
    )


def test_the_accuracy_of_single_workers_took_that_of_the_mean_model_for_all_but_sixteen() -> None:
    settings = {"algorithm": "d-psgd", "workers": 24, "learning_rate": 0.3}
    records = run(train=toy_rows(480, groups=24), **settings).records
    single = [
        worker[-1]["worker_val_accuracy"]
        for worker in records
        if "worker_val_accuracy" in worker[-1]
    ]
    assert 2 <= len(single) < 24
    actual = numbers_of(records)["worker_val_accuracy"]
    assert actual == pytest.approx(np.mean(single)) != records[0][-1]["val_accuracy"]
    alone = run(algorithm="sgd", workers=1).records
    numbers = numbers_of(alone)
    assert numbers["worker_val_accuracy"] == alone[0][-1]["val_accuracy"]
