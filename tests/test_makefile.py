"""`make X` is `python -m pipeline X`, for any values of CONFIG and SET."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_MAKE = shutil.which("make") or "make"
ROOT = Path(__file__).resolve().parents[1]
#: What it is called with and in, an entry a line; `features` follows `ingest` even if that takes
#: longer.
PYTHON = """#!/bin/sh
case "$*" in *ingest) sleep 0.2 ;; esac
printf '%s|%s|%s\\n' "$*" "$HEP_PIPELINE_CONFIG" "$HEP_PIPELINE_SET" >> "$CALLS"
"""


class Make:
    """Runs make with a Python that only writes down how it is called."""

    def __init__(self, folder: Path) -> None:
        self._calls = folder / "calls"
        python = folder / "python"
        python.write_text(PYTHON)
        python.chmod(0o700)
        self.folder = folder

    def __call__(self, *arguments: str, **environment: str) -> list[list[str]]:
        """Run make; returns all calls until now: arguments, config, overrides."""
        foreign = ("HEP_", "MAKE", "MFLAGS")
        env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        subprocess.run(
            [_MAKE, "--directory", ROOT, "--old-file", "setup", f"BIN={self.folder}", *arguments],
            env=env | {"CALLS": str(self._calls)} | environment,
            capture_output=True,
            check=True,
        )
        return [line.split("|") for line in self._calls.read_text().splitlines()]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return Make(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        "report.title=a;touch {folder}/INJECTED",
        "report.title=`touch {folder}/INJECTED`",
        "report.title=$(touch {folder}/INJECTED)",
        "report.title=$(shell touch {folder}/INJECTED)",
        "report.title='two words' train.epochs=5",
        'report.title="it\'s # 5 $HOME"',
    ],
)
def test_values_arrive_as_they_are_and_are_never_run(make: Make, value: str) -> None:
    value = value.format(folder=make.folder)

    plan_calls = make("plan", f"SET={value}", f"CONFIG={value}")
    all_calls = make("rollback", f"NETWORK={value}")

    assert plan_calls == [["-m pipeline plan", value, value]]
    assert all_calls[1:] == [[f"-m pipeline rollback {value}", "", ""]]
    assert not (make.folder / "INJECTED").exists()


@pytest.mark.parametrize(
    ("goal", "variable"),
    [
        ("compare", "STUDY"),
        ("bench-data", "BENCH"),
        ("bench-workers", "BENCH"),
        ("torture", "TORTURE"),
        ("test-cluster", "CLUSTER"),
        ("test-fast", "TEST_PROCESSES"),
    ],
)
def test_a_command_in_a_value_is_not_run(make: Make, goal: str, variable: str) -> None:
    touch = f"touch {make.folder / 'INJECTED'}"
    value = f"x;{touch}`{touch}`$({touch})$(shell {touch})\n{touch}"

    calls = make(goal, f"{variable}={value}")

    assert "touch" in str(calls[-1])
    assert not (make.folder / "INJECTED").exists()


def test_without_values_our_variables_of_the_environment_count(make: Make) -> None:
    make("plan")
    make("plan", HEP_PIPELINE_CONFIG="mine.yaml", HEP_PIPELINE_SET="a=1")
    # Other programs use such names too.
    calls = make("plan", CONFIG="of.another.program", SET="x")

    assert calls == [
        ["-m pipeline plan", "", ""],
        ["-m pipeline plan", "mine.yaml", "a=1"],
        ["-m pipeline plan", "", ""],
    ]


def test_several_jobs_keep_the_order_of_the_goals(make: Make) -> None:
    overrides = "train.epochs=5 train.workers=1"

    calls = make("-j2", "ingest", "features", f"SET={overrides}")

    assert calls == [
        ["-m pipeline ingest", "", overrides],
        ["-m pipeline features", "", overrides],
    ]
