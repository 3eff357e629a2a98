"""Tables on a terminal of 80 columns, and in a log file."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from models.evaluation.intervals import Efficiency
from pipeline.reporting.cutflow import Step, Yield
from pipeline.terminal.evaluation_tables import evaluation_tables
from pipeline.terminal.grid import Grid
from pipeline.terminal.tables import (
    cutflow_table,
    export_table,
    firmware_table,
    rank_table,
    search_table,
)
from training.gridsearch.results import Cost, Score
from training.gridsearch.settings import Trial

CLASSES = ["QCD", "ttbar", "W+jets"]
RANK = {
    "rank": 15,
    "steps": 123_456,
    "samples": 12_345_678,
    "seconds_by_kind": {"compute": 12345.67, "communicate": 1234.56},
    "wait_seconds": 1234.56,
    "worker_val_accuracy": 0.94213,
}
SUMMARY = {
    "epochs": 200,
    "train_rows": 12_345_678,
    "samples": 2_469_135_600 - 123_456,
    "samples_left_out": 123_456,
    "acted": {},
    "per_rank": [RANK],
}


def example_search_table() -> list[Grid]:
    trial = Trial((150, 100, 50), 200, 0.0005, 120)
    score = Score(trial, 123_456, [0.94213, 0.95], 0.19234, 3, Cost(112.34, 0.1))
    return [search_table([score] * 27)]


def example_rank_table() -> list[Grid]:
    averages = {
        "averages_begun": 12345,
        "averages_received": 12345,
        "mean_staleness": 12.34,
        "max_staleness": 123,
        "slowmo_steps": 12345,
    }
    acted = {"averages_begun": 12345, "slowmo_steps": 12345}
    return [rank_table({**SUMMARY, "acted": acted, "per_rank": [RANK | averages]})]


def example_evaluation_tables() -> list[Grid]:
    estimate = {"value": 0.94213, "error": 0.02034}
    share = {"low": 0.1, "value": 0.3, "high": 0.5}
    unmeasured = {"wanted": 0.99, "num_failing": 3.4, "measurable": False}
    measured = unmeasured | {"measurable": True, "threshold": 0.98765, "purity": share}
    signal_point = measured | {
        "backgrounds": {"QCD": share, "W+jets": share},
        "rates": dict.fromkeys(CLASSES, share),
    }
    background_point = measured | {"signal": share, "all_backgrounds": share}
    run = {
        "accuracy": estimate,
        "auc": dict.fromkeys(CLASSES, estimate),
        "working_points": [signal_point, unmeasured],
        "background_points": [background_point, unmeasured],
    }
    spread = {"mean": 0.94213, "spread": 0.02034}
    trainings = {"count": 12, "accuracy": spread, "auc": dict.fromkeys(CLASSES, spread)}
    runs = {"particles": run | {"trainings": trainings}, "hlf": run, "boosted-trees": run}
    return evaluation_tables(
        {"classes": CLASSES, "signal": "ttbar", "rates_before": {"QCD": 1.0}, "runs": runs}
    )


def example_export_table() -> list[Grid]:
    network = {
        "forms": {"model.onnx": {"bytes": 12_345_678, "largest_difference": 1.2e-7}},
        "events_per_second": 1_234_567.0,
        "latency_us": {"p50": 1234.5, "p99": 12345.6, "p99_9": None},
    }
    return [export_table({"particles": network})]


def example_firmware_table() -> list[Grid]:
    simulation = {"largest_difference": 0.0288, "same_class": 0.9934}
    estimate = {"latency_ns": 40.0, "lookup_tables": 23_138}
    firmware = [{"bits": bits, **simulation, **estimate} for bits in (8, 16)]
    networks = {"particles": {"firmware": []}, "hlf": {"firmware": firmware}}
    return [firmware_table(networks)]


def printed(table: Grid) -> str:
    """A table as a terminal of 80 columns shows it, without colours."""
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system=None).print(table)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


@pytest.mark.parametrize(
    ("make_tables", "num_rows"),
    [
        (example_search_table, [10]),
        (example_rank_table, [1]),
        (example_evaluation_tables, [3, 6, 6, 3, 1]),
        (example_export_table, [1]),
        (example_firmware_table, [2]),
    ],
)
def test_tables_fit_80_columns_with_each_number_whole(
    make_tables: Callable[[], list[Grid]], num_rows: list[int]
) -> None:
    tables = make_tables()

    assert [len(table.rows) - 1 for table in tables] == num_rows
    for table in tables:
        output = printed(table)
        assert max(map(len, output.splitlines())) <= 80, output
        assert "…" not in output
        for row in table.rows:
            for cell in row:
                assert cell.strip() in output, output


def test_a_table_wider_than_the_terminal_continues_below() -> None:
    (wide_table,), (narrow_table,) = example_rank_table(), example_export_table()

    assert sum("─" in line for line in printed(wide_table).splitlines()) == 2
    assert sum("─" in line for line in printed(narrow_table).splitlines()) == 1


def test_names_are_left_and_numbers_right() -> None:
    table = Grid("network", "events")
    table.add_row("9", "10")

    assert re.fullmatch("9 {10,}10", str(table).splitlines()[2])


def test_ranks_that_average_no_pairs_have_no_columns_for_them() -> None:
    assert "staleness" not in str(rank_table(SUMMARY))


@pytest.mark.parametrize(("weight", "num_efficiencies"), [(9, 3), (7.5, 6)])
def test_a_cutflow_fits_a_terminal_and_has_all_columns_side_by_side_in_a_file(
    weight: float, num_efficiencies: int
) -> None:
    steps = []
    for name, share in (
        ("read", Efficiency(1.0, 1.0, 1.0)),
        ("lepton with pT > 23 GeV", Efficiency(0.5, 0.49, 0.51)),
    ):
        yields = dict.fromkeys(CLASSES, Yield(9, weight, 9))
        shares = dict.fromkeys(CLASSES, share)
        steps.append(Step(name, yields, shares, shares))

    table = cutflow_table(steps)

    terminal_output, file_output = printed(table), str(table)
    assert max(map(len, terminal_output.splitlines())) <= 80
    assert len(file_output.splitlines()) == 5
    for output in (terminal_output, file_output):
        assert output.split().count("0.500+-0.010") == num_efficiencies
        assert output.count("eff") == num_efficiencies


def test_the_table_of_firmware_has_the_difference_of_each_width() -> None:
    rows = [row for table in example_firmware_table() for row in table.rows]

    assert [list(row) for row in rows[1:]] == [
        ["hlf", "8", "0.0288", "99.3", "40", "23,138"],
        ["hlf", "16", "0.0288", "99.3", "40", "23,138"],
    ]
