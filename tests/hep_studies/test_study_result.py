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

from hep_studies.cells import Cell
from hep_studies.run_result import curves_of, numbers_of, read_result, write_diverged
from hep_studies.study_result import (
    PACKED_FILE,
    StudyResult,
    as_plain,
    pack,
    read_study_result,
)
from hep_studies.tuning import Tuning
from training.errors import StudyError

RATE = "train.learning_rate"


def swept() -> StudyResult:
    """Runs with two rates: AD-PSGD is better with the higher one, AR-SGD with the lower one."""
    correct = {
        ("ar-sgd", 0.1): 900,
        ("ar-sgd", 0.2): 800,
        ("ad-psgd", 0.1): 850,
        ("ad-psgd", 0.2): 950,
    }
    runs = [
        example_run(method, seed, correct=num_correct, values={RATE: rate})
        for seed in (2, 1)
        for (method, rate), num_correct in correct.items()
    ]
    study = example_study(vary={RATE: [0.1, 0.2]}, best_of=[RATE])
    return example_result(study, runs, checks=[example_check("ar-sgd", 2e-3, 1e-3)])


def test_each_method_stands_at_its_own_best_value() -> None:
    result = swept()

    best_values = [result.best_combination(cell).plain_values for cell in result.cells()]

    assert best_values == [{RATE: 0.1}, {RATE: 0.2}]
    assert dict(result.numbers(Cell("ad-psgd"), "test_accuracy")) == {1: 0.95, 2: 0.95}
    assert result.curves(Cell("ar-sgd"), "val_loss").shape == (2, EPOCHS)


def test_a_packed_result_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / PACKED_FILE
    path.write_bytes(pack(swept()))

    result = read_study_result(path)

    assert result == swept()
    assert pack(result) == path.read_bytes()


def test_a_cut_result_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / PACKED_FILE
    path.write_bytes(pack(swept())[:-20])

    with pytest.raises(StudyError, match=r"result\.json\.xz is no result of a study \("):
        read_study_result(path)


def test_a_result_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**as_plain(swept()), "version": 1}))

    with pytest.raises(StudyError, match="Input should be 6"):
        read_study_result(path)


def test_values_that_are_mappings_are_the_same_after_json(tmp_path: Path) -> None:
    key = "cluster.slow_ranks"
    values = [{}, {0: 10.0}]
    runs = [example_run("ad-psgd", 1, values={key: value}) for value in values]
    written = example_result(example_study(vary={key: values}), runs)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(as_plain(written)))

    result = read_study_result(path)

    _, with_slow_rank = written.cells()
    assert result.cells() == written.cells()
    assert result.cells(["ad-psgd"], {key: {0: 10.0}}) == [with_slow_rank]


@pytest.mark.parametrize("value", [0, 0.0])
def test_a_value_is_the_same_with_and_without_a_decimal_point(value: float) -> None:
    key = "train.momentum"
    without_momentum = example_run("ad-psgd", 1, values={key: 0})
    with_momentum = example_run("ad-psgd", 1, values={key: 0.5})
    runs = [without_momentum, with_momentum]
    result = example_result(example_study(vary={key: [0, 0.5]}), runs)
    at_best = example_result(example_study(vary={key: [0, 0.5]}, best_of=[key]), runs)
    cell_without_momentum, _ = result.cells()
    (cell_at_best,) = at_best.cells()

    assert result.cells(values={key: value}) == [cell_without_momentum]
    assert at_best.runs_of(cell_at_best, Tuning({key: value})) == [without_momentum]


def test_a_method_that_sets_a_varied_key_itself_is_the_same_at_any_value_of_it() -> None:
    key = "train.momentum"
    run = example_run("sgd", 1)
    study = example_study(vary={key: [0, 0.5]}, best_of=[key])
    result = example_result(study, [run])
    (cell,) = result.cells()

    assert result.runs_of(cell, Tuning({key: 0.5})) == [run]


@pytest.mark.parametrize(
    ("execution", "load", "warning"),
    [
        ("mpi", 0.9, ""),
        ("mpi", 1.0, "measured on a busy machine"),
        ("simulate", 1.0, ""),
    ],
)
def test_times_that_were_measured_on_a_busy_machine_have_a_warning(
    execution: str, load: float, warning: str
) -> None:
    result = swept()
    machine = replace(result.provenance.machine, cores=2, load=load)
    study = result.study.model_copy(update={"execution": execution})
    provenance = replace(result.provenance, machine=machine)

    measured = replace(result, study=study, provenance=provenance)

    assert measured.warning == warning


def test_speed_up_and_temporal_efficiency_compare_with_the_same_seed() -> None:
    runs = [
        example_run("ar-sgd", 1, seconds=0.4),
        example_run("sgd", 1, seconds=0.8),
        example_run("ad-psgd", 1, seconds=0.2),
    ]
    result = example_result(example_study(), runs)

    def efficiency_of(method: str) -> float:
        efficiencies = result.numbers(Cell(method), "temporal_efficiency")
        return float(efficiencies[1])

    speed_up = result.numbers(Cell("ad-psgd"), "speed_up")

    assert dict(speed_up) == {1: pytest.approx(4)}
    assert efficiency_of("sgd") <= efficiency_of("ar-sgd") <= efficiency_of("ad-psgd")
    assert efficiency_of("ar-sgd") == pytest.approx(1)


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        # Without the first epoch, as in the figure.
        ("variance_of_epochs", 1),
        ("seconds_to=0.8", 10),
        ("seconds_to=0.95", math.inf),
        ("seconds_per_epoch", 3),
    ],
)
def test_measures_of_the_times_of_epochs(measure: str, value: float) -> None:
    sgd = example_run("sgd", 1)
    curves = {**sgd.curves, "seconds": [9.0, 1.0, 3.0], "val_accuracy": [0.5, 0.8, 0.85]}
    result = example_result(example_study(), [replace(sgd, curves=curves)])

    assert result.numbers(Cell("sgd"), measure)[1] == value


def test_a_run_that_diverged_is_a_result(tmp_path: Path) -> None:
    write_diverged(tmp_path, code="commit 2")

    diverged = read_result(tmp_path, "ad-psgd", {}, 1)

    assert diverged is not None
    assert diverged.numbers == {"diverged": 1.0}
    assert diverged.made_with == "commit 2"
    result = example_result(example_study(), [diverged, example_run("ad-psgd", 2)])
    cell = Cell("ad-psgd")
    assert dict(result.numbers(cell, "test_accuracy")) == {2: 0.9}
    assert result.numbers(cell, "diverged")[1] == 1
    assert len(result.curves(cell, "val_loss")) == 1


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "null", "7", '{"made_with": "commit 1"}', "[" * 100_000]
)
def test_a_run_whose_result_is_missing_or_damaged_has_none(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "result.json").write_text(text)

    assert read_result(tmp_path, "ad-psgd", {}, 1) is None


def record(epoch: int, seconds: float, staleness: dict[str, int]) -> dict[str, Any]:
    """A worker's record of an epoch."""
    return {
        "epoch": epoch,
        "val_accuracy": 0.5,
        "val_loss": 0.5,
        "train_loss": 0.5,
        "train_accuracy": 0.5,
        "consensus_distance": 0.5,
        "seconds": seconds,
        "seconds_by_kind": {"compute": 1.0, "wait": 0.5},
        "hidden_seconds": 0.25,
        "staleness": staleness,
        "scaling_percent": {"40": 2, "10": 1},
    }


def test_curves_are_means_over_the_workers_that_took_part_in_an_epoch() -> None:
    first_rank = [record(0, 1.0, {"0": 1}), record(1, 2.0, {"2": 1})]
    second_rank = [record(1, 4.0, {"4": 3})]

    curves = curves_of([first_rank, second_rank])

    assert curves["seconds"] == [1.0, 3.0]
    assert curves["staleness"] == [0.0, 3.5]
    assert curves["scaling_percent"] == [30.0, 30.0]


@pytest.mark.parametrize(("hidden_seconds", "communicate"), [(0.25, 0.75), (0.0, 0.5)])
def test_averages_in_the_background_count_as_communication(
    hidden_seconds: float, communicate: float
) -> None:
    times = {"hidden_seconds": hidden_seconds, "exchange_seconds": 0.4}
    averaging = {**record(0, 1.0, {}), **times}

    curves = curves_of([[averaging]])

    assert curves["communicate"] == [communicate]


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_waiting_for_an_average_counts_once(exchange: str) -> None:
    slow_links = CLUSTER.model_copy(update={"latency_seconds": 5e-3})

    simulated = run(cluster=slow_links, algorithm="ad-psgd", exchange=exchange, sharding="static")

    curves = curves_of(simulated.records)
    for communicate, seconds in zip(curves["communicate"], curves["seconds"], strict=True):
        assert 0 < communicate <= seconds


def test_the_accuracy_of_workers_is_that_of_single_models() -> None:
    settings = {"algorithm": "d-psgd", "workers": 24, "learning_rate": 0.3}

    rows = toy_rows(480, groups=24)

    records = run(train=rows, **settings).records

    last_records = [worker[-1] for worker in records]
    accuracies = [
        last["worker_val_accuracy"] for last in last_records if "worker_val_accuracy" in last
    ]
    assert 2 <= len(accuracies) < 24
    accuracy = numbers_of(records)["worker_val_accuracy"]
    accuracy_of_mean_model = last_records[0]["val_accuracy"]
    assert accuracy == pytest.approx(np.mean(accuracies))
    assert accuracy != pytest.approx(accuracy_of_mean_model)


def test_the_accuracy_of_a_single_worker_is_that_of_its_model() -> None:
    records = run(algorithm="sgd", workers=1).records

    numbers = numbers_of(records)

    *_, last = records[0]
    assert numbers["worker_val_accuracy"] == last["val_accuracy"]
