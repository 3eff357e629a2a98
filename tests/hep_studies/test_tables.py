"""Tables of a study: functions of its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from example_study import STUDY, example_result, example_run, example_study

from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult
from hep_studies.study_sections import StudyTable
from hep_studies.tables import study_table, sweep_table

WORKERS, RATE = "train.workers", "train.learning_rate"


def cells_of(table: str) -> list[list[str]]:
    """The header and the rows of a Markdown table."""
    header, _, *rows = table.splitlines()
    cells = []
    for row in (header, *rows):
        _, *texts, _ = row.split("|")
        cells.append([text.strip() for text in texts])
    return cells


def table_rows(result: StudyResult, *measures: str, **table: Any) -> list[list[str]]:
    """The header and the rows of a table of a study."""
    settings = StudyTable.model_validate({"title": "T", "measures": measures, **table})
    return cells_of(study_table(result, settings))


def diverged_run(method: str, values: dict[str, Any] | None = None) -> RunResult:
    run = example_run(method, 3, values=values)
    return replace(run, counts=None, curves={}, numbers={"diverged": 1.0})


def test_a_table_has_means_over_seeds_beside_the_numbers_of_the_source() -> None:
    runs = [example_run("sgd", 1, correct=900), example_run("sgd", 2, correct=910)]
    result = example_result(example_study(), runs)

    rows = table_rows(result, "test_accuracy", "seconds", given={"sgd": "91.5 %"})

    assert rows == [
        ["", "test accuracy", "time of the run [s]", "Somebody 2020"],
        ["SGD", "90.50 % ± 0.71 (s.e. 0.50)", "1.22 ± 0.00849", "91.5 %"],
    ]


def test_what_a_claim_is_about_has_a_standard_error() -> None:
    claim = {
        "says": "It is faster.",
        "better": "ad-psgd",
        "control": "ar-sgd",
        "protocol": "equal settings",
        "measure": "seconds",
    }
    runs = [example_run("sgd", 1), example_run("sgd", 2)]
    result = example_result(example_study(claims=[claim]), runs)

    _, row = table_rows(result, "seconds", "seconds_per_batch", "val_loss")

    assert row[1] == "1.22 ± 0.00849 (s.e. 0.006)"
    assert "s.e." not in row[3]


def test_a_table_over_a_key_has_a_column_for_each_measure_and_value() -> None:
    runs = [example_run("sgd", seed, seconds=0.4) for seed in (1, 2)]
    for workers in (2, 4):
        values = {WORKERS: workers}
        seconds = 0.1 * workers
        runs += [example_run("ar-sgd", seed, values=values, seconds=seconds) for seed in (1, 2)]
    study = example_study(vary={WORKERS: [2, 4]}, times_only=4)
    result = example_result(study, runs)

    header, ar_sgd, sgd = table_rows(
        result, "seconds_per_batch", "speed_up", over=WORKERS, methods=["ar-sgd", "sgd"]
    )

    assert header[1:] == [
        "time per batch [s], workers 2",
        "time per batch [s], workers 4",
        "speed-up t(1) / t(n), workers 2",
        "speed-up t(1) / t(n), workers 4",
    ]
    means = [cell.partition(" ")[0] for cell in ar_sgd[1:]]
    assert means == ["0.02", "0.04", "2", "1"]
    # SGD runs on one worker: its numbers stand at all values.
    assert sgd[1] == sgd[2]
    assert sgd[3] == sgd[4]


def test_a_table_over_a_key_may_have_values_that_are_mappings() -> None:
    key = "cluster.slow_ranks"
    runs = [
        example_run("ar-sgd", 1, values={key: {}}, seconds=1),
        example_run("ar-sgd", 1, values={key: {0: 5.0}}, seconds=2),
    ]
    study = example_study(vary={key: [{}, {0: 5.0}]})
    result = example_result(study, runs)

    header, row = table_rows(result, "seconds_per_batch", over=key, methods=["ar-sgd"])

    assert header[1].endswith("slow ranks {}")
    assert header[2].endswith('slow ranks {"0": 5.0}')
    assert row[1:] == ["0.1", "0.2"]


def test_a_table_over_a_key_has_the_values_that_only_one_method_varies() -> None:
    ad_psgd = {"train": {"algorithm": "ad-psgd"}, "vary": {RATE: [0.5]}}
    methods = {**STUDY["methods"], "ad-psgd": ad_psgd}
    runs = [
        example_run("ar-sgd", 1, values={RATE: 0.1}),
        example_run("ad-psgd", 1, values={RATE: 0.5}, seconds=0.4),
    ]
    study = example_study(vary={RATE: [0.1]}, methods=methods)
    result = example_result(study, runs)

    _, first, second = table_rows(
        result, "seconds_per_batch", over=RATE, methods=["ar-sgd", "ad-psgd"]
    )

    assert first[1:] == ["0.02", "-"]
    assert second[1:] == ["-", "0.04"]


def test_runs_that_diverged_are_counted_and_not_part_of_a_mean() -> None:
    runs = [example_run("sgd", 1), example_run("sgd", 2)]
    runs += [diverged_run("sgd"), diverged_run("ad-psgd")]
    result = example_result(example_study(), runs)
    measures = ("test_accuracy", "seconds", "seconds_to=0.899", "seconds_to=0.999", "diverged")

    _, sgd, ad_psgd = table_rows(result, *measures)

    assert sgd[1:-1] == [
        "90.00 % ± 0.00 (s.e. 0.00); diverged in 1 of 3",
        "1.22 ± 0.00849; diverged in 1 of 3",
        "1.22; diverged in 1 of 3; not reached in 1 of 3",
        "not reached; diverged in 1 of 3",
    ]
    assert ad_psgd[1:] == ["diverged", "diverged", "diverged", "diverged", "100.00 %"]


def swept(best_rates: dict[str, float]) -> StudyResult:
    """A sweep of the learning rate; AD-PSGD varies lower rates than the other methods."""
    ad_psgd = {**STUDY["methods"]["ad-psgd"], "vary": {RATE: [0.01, 0.1]}}
    methods = {**STUDY["methods"], "ad-psgd": ad_psgd}
    study = example_study(vary={RATE: [0.1, 0.2, 0.3]}, best_of=[RATE], methods=methods)
    runs = []
    for method, best_rate in best_rates.items():
        for rate in study.values_of(method, RATE):
            correct = 950 if rate == best_rate else 900
            runs.append(example_run(method, 1, correct=correct, values={RATE: rate}))
    return example_result(study, runs)


def bold_columns(row: list[str]) -> list[int]:
    return [index for index, cell in enumerate(row) if "**" in cell]


def test_a_best_value_at_the_edge_of_the_sweep_of_its_method_is_said() -> None:
    result = swept({"ar-sgd": 0.1, "sgd": 0.2, "ad-psgd": 0.1})

    header, ar_sgd, sgd, ad_psgd = cells_of(sweep_table(result))

    rates = [f"learning rate {rate}" for rate in (0.01, 0.1, 0.2, 0.3)]
    assert header == ["", *rates, "best"]
    assert ar_sgd[0] == "AR-SGD"
    assert sgd[0] == "SGD"
    assert ad_psgd[0] == "AD-PSGD"
    assert bold_columns(ar_sgd) == [2]
    assert bold_columns(sgd) == [3]
    assert bold_columns(ad_psgd) == [2]
    assert ar_sgd[-1] == "the lowest tried: a better one may lie beyond"
    assert sgd[-1] == ""
    assert ad_psgd[-1] == "the highest tried: a better one may lie beyond"
    assert ar_sgd[1] == "-"


def test_a_sweep_counts_runs_that_diverged() -> None:
    result = swept({"sgd": 0.2})
    runs = [*result.runs, diverged_run("sgd", {RATE: 0.2})]

    table = sweep_table(replace(result, runs=runs))

    assert "|diverged in 1 of 2|" in table
