"""Tables on a terminal of 80 columns, and in a log file."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from models.evaluation.intervals import Efficiency
from pipeline.reporting.cutflow import Step, Yield
from pipeline.terminal.grid import Grid
from pipeline.terminal.tables import (
    cutflow_table,
    evaluation_tables,
    export_table,
    rank_table,
    search_table,
)
from training.gridsearch.results import Cost, Score
from training.gridsearch.settings import Trial

CLASSES = ["QCD", "ttbar", "W+jets"]


def searched() -> list[Grid]:
    trial = Trial((150, 100, 50), 200, 0.0005, 120)
    return [
        search_table([Score(trial, 123_456, [0.94213, 0.95], 0.19234, 3, Cost(112.34, 0.1))] * 27)
    ]


def ranks() -> list[Grid]:
    rank = {
        "steps": 123_456, "samples": 12_345_678, "seconds_by_kind": {"compute": 12345.67, "communicate": 1234.56},
        "wait_seconds": 1234.56, "averages_begun": 12345, "averages_received": 12345, "mean_staleness": 12.34,
        "max_staleness": 123, "worker_val_accuracy": 0.94213, "slowmo_steps": 12345,
    }  # fmt: skip
    complete = {
        "epochs": 200,
        "train_rows": 12_345_678,
        "samples": 2_469_135_600 - 123_456,
        "samples_left_out": 123_456,
    }
    acted = {"averages_begun": 12345, "slowmo_steps": 12345}
    return [rank_table({**complete, "acted": acted, "per_rank": [{"rank": 15, **rank}]})]


def evaluated() -> list[Grid]:
    estimate = {"value": 0.94213, "error": 0.02034}
    leftovers = {"low": 0.1, "value": 0.3, "high": 0.5}
    point: dict[str, Any] = {"wanted": 0.99, "num_failing": 3.4}
    measured = {
        "threshold": 0.98765,
        "backgrounds": {"QCD": leftovers, "W+jets": leftovers},
        "purity": leftovers,
    }
    run = {
        "accuracy": estimate,
        "auc": dict.fromkeys(CLASSES, estimate),
        "working_points": [
            {**point, "measurable": True, **measured, "rates": dict.fromkeys(CLASSES, leftovers)},
            {**point, "measurable": False},
        ],
        "background_points": [
            {
                **point,
                "measurable": True,
                **measured,
                "signal": leftovers,
                "all_backgrounds": leftovers,
            },
            {**point, "measurable": False},
        ],
    }
    spread = {"mean": 0.94213, "spread": 0.02034}
    several = {"count": 12, "accuracy": spread, "auc": dict.fromkeys(CLASSES, spread)}
    runs = {
        "particles": run | {"trainings": several},
        **dict.fromkeys(("hlf", "boosted-trees"), run),
    }
    return evaluation_tables(
        {"classes": CLASSES, "signal": "ttbar", "rates_before": {"QCD": 1.0}, "runs": runs}
    )


def exported() -> list[Grid]:
    actual = {
        "forms": {"model.onnx": {"bytes": 12_345_678, "largest_difference": 1.2e-7}}, "events_per_second": 1_234_567.0,
        "latency_us": {"p50": 1234.5, "p99": 12345.6, "p99_9": None},
    }  # fmt: skip
    return [export_table({"particles": actual})]


@pytest.mark.parametrize(
    ("make", "num_rows"),
    [(searched, [10]), (ranks, [1]), (evaluated, [3, 6, 6, 3, 1]), (exported, [1])],
)
def test_tables_fit_80_columns_with_each_number_whole(
    make: Callable[[], list[Grid]], num_rows: list[int]
) -> None:
    tables = make()
    # Below a row of heads.
    assert [len(table.rows) - 1 for table in tables] == num_rows
    for table in tables:
        file = io.StringIO()
        Console(file=file, width=80, force_terminal=True, color_system=None).print(table)
        displayed = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
        lines = displayed.splitlines()
        assert max(map(len, lines)) <= 80, displayed
        assert "…" not in displayed
        for row in table.rows[:11]:
            # Whole cells, on lines that begin with the row's name.
            assert all(cell.strip() in displayed for cell in row), (row, displayed)
        # Only pairwise averages need a second table.
        assert sum("─" in line for line in lines) == (2 if make is ranks else 1), displayed


def test_names_are_left_and_numbers_right() -> None:
    table = Grid("network", "events")
    table.add_row("9", "10")
    assert re.fullmatch("9 {10,}10", str(table).splitlines()[2])


def test_ranks_that_average_no_pairs_have_no_columns_for_them() -> None:
    rank = {
        "rank": 0,
        "steps": 3,
        "samples": 9,
        "seconds_by_kind": {},
        "wait_seconds": 0.5,
        "worker_val_accuracy": 0.9,
    }
    complete = {
        "epochs": 1,
        "train_rows": 9,
        "samples": 9,
        "samples_left_out": 0,
        "acted": {},
        "per_rank": [rank],
    }
    assert "staleness" not in str(rank_table(complete))


@pytest.mark.parametrize("weight", [9, 7.5])
def test_a_cutflow_fits_and_a_file_has_all_columns_side_by_side(weight: float) -> None:
    efficiency, half = Efficiency(1.0, 1.0, 1.0), Efficiency(0.5, 0.49, 0.51)
    steps = [
        Step(
            name,
            *(dict.fromkeys(CLASSES, yield_) for yield_ in (Yield(9, weight, 9), share, share)),
        )
        for name, share in (("read", efficiency), ("lepton with pT > 23 GeV", half))
    ]
    file = io.StringIO()
    Console(file=file, width=80).print(cutflow_table(steps))
    assert max(map(len, file.getvalue().splitlines())) <= 80
    num_kinds = 1 if weight == 9 else 2
    for displayed in (file.getvalue(), str(cutflow_table(steps))):
        assert displayed.split().count("0.500+-0.010") == 3 * num_kinds
        assert displayed.count("eff") == 3 * num_kinds
    assert len(str(cutflow_table(steps)).splitlines()) == 5
