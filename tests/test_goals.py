"""Each goal of the Makefile runs: at its smallest size here, in another test, or in CI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import STAGES, in_use

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Goals that run here, with the values that make them small.
SMALL = {
    "bench-workers": "BENCH=--rows 1000 --repeats 1 --workers 10",
    "bench-exchange": "BENCH=--repeats 1 --averages 20",
    "bench-stragglers": "BENCH=--repeats 1 --epochs 3 --methods ad-psgd",
    "bench-gridsearch": "BENCH=--events 500 --repeats 1",
    "bench-inference": "BENCH=--repeats 1",
    "bench-reading": "BENCH=--hlf 1000 --particles 1000 --repeats 1",
    "bench-data": "BENCH=--events 300 2000 --repeats 1",
    "bench-many-events": "BENCH=--events 600 1200",
    "bench-memory": "BENCH=--mebibytes 0 --stages 1",
    "docs": "",
}
#: Goals with tests of their own, that CI calls itself, or that `make run` of the README runs.
ELSEWHERE = {
    *("help", "setup", "java", "browser", "lint", "test", "test-fast", "test-slow", "test-goals"),
    *(
        "run",
        "simulate",
        "ingest",
        "features",
        "gridsearch",
        "train",
        "evaluate",
        "export",
        "report",
        "compare",
    ),
    *("config", "validate", "plan", "status", "promote", "track", "clean", "rollback", "doctor"),
    # `tests/integration/test_notebooks.py` runs the notebooks.
    "notebooks",
    # `test-slow` needs it, and `torture` is more of the same.
    "workflows-setup",
    "torture",
}
#: Goals that need Airflow, other hosts, or the newest packages; and one that is all others of its
#: name.
NOT_IN_CI = {
    "airflow-setup",
    "test-airflow",
    "test-cluster",
    "bench-network",
    "bench",
    "update",
    "update-docs",
    "format",
}


def words_of(variable: str) -> set[str]:
    """The words of a variable of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words: set[str] = set()
    for value in re.findall(rf"^{re.escape(variable)} ?:=? ?(.*)$", makefile, re.MULTILINE):
        words |= set(value.split())
    return words


def test_every_goal_of_the_makefile_is_run_somewhere() -> None:
    goals = words_of(".PHONY") - {"$(STAGES)", "$(COMMANDS)"}
    goals |= words_of("STAGES") | words_of("COMMANDS")

    assert goals == SMALL.keys() | ELSEWHERE | NOT_IN_CI


def make(goal: str, *values: str) -> None:
    """Run a goal; the test fails if the goal does."""
    foreign = ("MAKE", "MFLAGS", "PYTEST")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    completed = subprocess.run(
        [shutil.which("make") or "make", "--directory", ROOT, goal, *values],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-3000:]


@pytest.mark.goals
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("goal", SMALL)
def test_a_benchmark_or_the_site_runs_at_its_smallest_size(goal: str) -> None:
    make(goal, *filter(None, [SMALL[goal]]))


@pytest.fixture(scope="module")
def demo_counters() -> dict[str, Any]:
    """The counters of the stages of the demo, which the site may have run already."""
    make("run")
    run_dir = ROOT / "runs" / "demo"
    return {stage: in_use(run_dir, stage).manifest.counters for stage in STAGES}


@pytest.mark.goals
@pytest.mark.timeout(1800)
def test_numbers_of_events_in_the_readme_are_those_of_the_demo(
    demo_counters: dict[str, Any],
) -> None:
    ingested = demo_counters["ingest"]["samples"].values()
    selected = demo_counters["features"]["samples"].values()
    num_entries = sum(counts["entries"] for counts in ingested)
    num_selected = sum(counts["selected"] for counts in selected)
    num_tested = demo_counters["evaluate"]["num_events"]

    sentence = (
        f"has {num_entries} simulated events; {num_selected} pass the selection, {num_tested} are "
        "tested on"
    )
    assert sentence in " ".join(README.split())


@pytest.mark.goals
@pytest.mark.timeout(1800)
def test_results_in_the_readme_are_those_of_the_demo(demo_counters: dict[str, Any]) -> None:
    """They agree within errors, since other processors round otherwise."""
    runs = demo_counters["evaluate"]["runs"]

    accuracies_line = re.search(r"accuracy (hlf .*)", README)
    assert accuracies_line
    accuracies = dict(re.findall(r"([\w-]+) ([\d.]+) \+-", accuracies_line[1]))
    assert accuracies.keys() == runs.keys()
    for name, run in runs.items():
        assert_within_error(run["accuracy"], accuracies[name])

    results = re.search(
        r"Accuracy ([\d.]+) ± ([\d.]+); AUC ((?:[\d.]+ ± [\d.]+ \([^)]+\)(?:, )?)+)",
        " ".join(README.split()),
    )
    assert results
    assert_within_error(runs["hlf"]["accuracy"], results[1])
    areas = re.findall(r"([\d.]+) ± ([\d.]+) \(([^)]+)\)", results[3])
    assert len(areas) == 3
    for value, error, class_name in areas:
        area = runs["hlf"]["auc"][class_name]
        assert_within_error(area, value)
        assert area["error"] == pytest.approx(float(error), rel=0.5, abs=0.003)


def assert_within_error(estimate: dict[str, float], text: str) -> None:
    assert estimate["value"] == pytest.approx(float(text), abs=estimate["error"])
