"""Each goal of the Makefile runs: at its smallest size here, or in another test, or as a step of CI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import STAGES, in_use

ROOT = Path(__file__).resolve().parents[1]
#: Goals that run here, with the values that make them small.
SMALL = {
    "bench-workers": "BENCH=--rows 1000 --repeats 1 --workers 10",
    "bench-exchange": "BENCH=--repeats 1 --averages 20",
    "bench-stragglers": "BENCH=--repeats 1 --epochs 3 --methods ad-psgd",
    "bench-gridsearch": "BENCH=--events 500 --repeats 1",
    "bench-inference": "BENCH=--repeats 1",
    "bench-reading": "BENCH=--hlf 1000 --particles 1000 --repeats 1",
    "bench-data": "BENCH=--events 300 2000 --repeats 1",
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
    # More of what `test-slow` does.
    "torture",
}
#: Goals that need Airflow, other hosts, or the newest packages; and one that is all others of its name.
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


def test_every_goal_of_the_makefile_is_run_somewhere() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    goals = {
        goal for line in re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE) for goal in line.split()
    }
    stages, commands = (
        re.search(rf"^{name} := (.*)$", text, re.MULTILINE) for name in ("STAGES", "COMMANDS")
    )
    assert stages
    assert commands
    goals = goals - {"$(STAGES)", "$(COMMANDS)"} | {*stages[1].split(), *commands[1].split()}
    assert goals == SMALL.keys() | ELSEWHERE | NOT_IN_CI


def make(goal: str, *values: str) -> None:
    retained = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS", "PYTEST"))
    }
    completed = subprocess.run(
        [shutil.which("make") or "make", "--directory", ROOT, goal, *values],
        env=retained,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-3000:]


@pytest.mark.goals
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("goal", SMALL)
def test_the_front_figures_of_the_docs_could_not_be_repeated(goal: str) -> None:
    """Two benchmarks ended with an exception, and no check touched their files."""
    make(goal, *filter(None, [SMALL[goal]]))


@pytest.mark.goals
@pytest.mark.timeout(1800)
def test_numbers_in_the_readme_are_those_of_the_demo() -> None:
    """By its command, which has nothing to do where the site has just shown the demo."""
    make("run")
    counters = {stage: in_use(ROOT / "runs" / "demo", stage).manifest.counters for stage in STAGES}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    entries = sum(counter["entries"] for counter in counters["ingest"]["samples"].values())
    selected = sum(counter["selected"] for counter in counters["features"]["samples"].values())
    tested = counters["evaluate"]["num_events"]
    message = " ".join(readme.split())
    assert (
        f"has {entries} simulated events; {selected} pass the selection, {tested} are tested on"
        in message
    )
    # Within their errors: other processors round otherwise, and the grid search may choose other layers there.
    line = re.search(r"accuracy (hlf .*)", readme)
    assert line
    displayed = {
        name: float(value) for name, value in re.findall(r"([\w-]+) ([\d.]+) \+-", line[1])
    }
    runs = {name: run["accuracy"] for name, run in counters["evaluate"]["runs"].items()}
    assert displayed.keys() == runs.keys()
    for name, accuracy in runs.items():
        assert accuracy["value"] == pytest.approx(displayed[name], abs=accuracy["error"])
    match = re.search(
        r"Accuracy ([\d.]+) ± ([\d.]+); AUC ((?:[\d.]+ ± [\d.]+ \([^)]+\)(?:, )?)+)", message
    )
    assert match
    assert runs["hlf"]["value"] == pytest.approx(float(match[1]), abs=runs["hlf"]["error"])
    areas = re.findall(r"([\d.]+) ± ([\d.]+) \(([^)]+)\)", match[3])
    assert len(areas) == 3
    for value, error, name in areas:
        area = counters["evaluate"]["runs"]["hlf"]["auc"][name]
        assert area["value"] == pytest.approx(float(value), abs=area["error"])
        assert area["error"] == pytest.approx(float(error), rel=0.5, abs=0.003)
