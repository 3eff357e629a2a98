"""`doctor` checks first, and starts the ranks only without errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from rich.console import Console

from pipeline.commands.doctor import doctor
from pipeline.config import load_config
from pipeline.machine.doctor import Finding
from pipeline.run_folder import RunFolder
from training.errors import LaunchError

ERROR = Finding("disk", "error", "The disk is full.", "Make room.")
WARNING = Finding("slots", "warning", "Few cores.", "Use fewer workers.")


def ranks_start(settings: object, hosts: object) -> str:
    return "2 ranks reach each other"


def ranks_do_not_start(settings: object, hosts: object) -> str:
    raise LaunchError("mpirun is broken")


@pytest.mark.parametrize(
    ("findings", "probe", "is_well", "last_line"),
    [
        ([], ranks_start, True, "2 ranks reach each other"),
        ([WARNING], ranks_start, True, "2 ranks reach each other"),
        (
            [],
            ranks_do_not_start,
            False,
            "broken\n    fix: Correct that; `train.workers: 1` needs no ranks.",
        ),
        ([ERROR], ranks_start, False, "Make room."),
    ],
)
def test_the_diagnosis_ends_with_the_ranks_or_the_fix(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    findings: list[Finding],
    probe: object,
    is_well: bool,
    last_line: str,
) -> None:
    reports: list[str] = []
    for name in [name for name in os.environ if "SPARK_" in name]:
        # PySpark sets some in a process that had a session.
        monkeypatch.delenv(name)
    monkeypatch.setattr(RunFolder, "examine", lambda *_: findings)
    monkeypatch.setattr("training.launching.mpirun.probe_mpi", probe)
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))

    diagnosis = doctor(run_folder, reports.append)

    assert diagnosis.is_well is is_well
    assert json.loads(json.dumps(diagnosis.as_json()))["is_well"] is is_well
    assert reports[-1].endswith(last_line)


def test_for_one_worker_no_ranks_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "examine", lambda *_: [])
    monkeypatch.setattr("training.launching.mpirun.probe_mpi", ranks_do_not_start)
    config = load_config(str(small_config(tmp_path, SAMPLES)), ["train.workers=1"])

    diagnosis = doctor(RunFolder(config, Console(quiet=True)), lambda _: None)

    assert diagnosis.is_well
