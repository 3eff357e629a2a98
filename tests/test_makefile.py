"""`make X` is `python -m pipeline X`, for any values of CONFIG and SET."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

_MAKE = shutil.which("make") or "make"
ROOT = Path(__file__).resolve().parents[1]
#: What it is called with and in, an entry a line; `features` follows `ingest` even if that takes longer.
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
        """The calls: arguments, config, overrides."""
        retained = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HEP_", "MAKE", "MFLAGS"))
        }
        subprocess.run(
            [_MAKE, "--directory", ROOT, "--old-file", "setup", f"BIN={self.folder}", *arguments],
            env={**retained, "CALLS": str(self._calls), **environment},
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
    assert make("plan", f"SET={value}", f"CONFIG={value}") == [["-m pipeline plan", value, value]]
    assert make("rollback", f"NETWORK={value}")[1:] == [[f"-m pipeline rollback {value}", "", ""]]
    assert not (make.folder / "INJECTED").exists()


@pytest.mark.parametrize(
    ("goal", "name"),
    [
        *(
            ("compare", "STUDY"),
            ("bench-data", "BENCH"),
            ("bench-workers", "BENCH"),
            ("torture", "TORTURE"),
        ),
        *(("test-cluster", "CLUSTER"), ("test-fast", "TEST_PROCESSES")),
    ],
)
def test_what_stands_behind_a_semicolon_of_a_study_was_run(
    make: Make, goal: str, name: str
) -> None:
    created = make.folder / "INJECTED"
    calls = make(
        goal,
        f"{name}=x;touch {created}`touch {created}`$(touch {created})$(shell touch {created})\ntouch {created}",
    )
    assert "touch" in str(calls[-1])
    assert not created.exists()


def test_without_values_those_of_the_environment_count(make: Make) -> None:
    assert make("plan") == [["-m pipeline plan", "", ""]]
    assert make("plan", HEP_PIPELINE_CONFIG="mine.yaml", HEP_PIPELINE_SET="a=1")[1:] == [
        ["-m pipeline plan", "mine.yaml", "a=1"]
    ]
    # Such names are common; HEP_PIPELINE_CONFIG is ours.
    assert make("plan", CONFIG="of.another.program", SET="x")[2:] == [["-m pipeline plan", "", ""]]


def test_goals_run_in_the_order_they_are_given_with_several_jobs_too(make: Make) -> None:
    calls = make("-j2", "ingest", "features", "SET=train.epochs=5 train.workers=1")
    assert [shlex.split(arguments)[-1] for arguments, *_ in calls] == ["ingest", "features"]
    assert {overrides for *_, overrides in calls} == {"train.epochs=5 train.workers=1"}
