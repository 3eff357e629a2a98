"""Simulated times are checked where they are claimed: ranks that sleep for a step exchange by
MPI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from example_study import example_plan

from hep_studies import time_checks
from hep_studies.plan import PlannedRun, Subject
from hep_studies.study_result import TimeCheck
from hep_studies.synthetic_workload import SyntheticWorkload
from hep_studies.time_checks import check_times
from hep_studies.workloads.surface_settings import SurfaceSettings

CHECKOUT = Path(__file__).resolve().parents[2]
STEP_SECONDS = 2e-3


def planned_runs(folder: Path, **changes: Any) -> list[PlannedRun]:
    cluster = {
        "step_seconds": STEP_SECONDS,
        "event_seconds": 0.0,
        "jitter": 0.1,
        "slow_ranks": {1: 3.0},
    }
    return example_plan(Subject(SurfaceSettings()), folder, cluster=cluster, **changes)


WRITE_AND_READ_PLUGIN_SETTINGS = """
import sys
from hep_core import plugins
from training.settings import TrainSettings
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.synthetic_workload import WORKLOADS, SyntheticWorkload

plugins.load([sys.argv[1]])
train = TrainSettings(algorithm={"name": "lazy-gossip", "patience": 3}, workers=2)
written = WORKLOADS.dump_json([SyntheticWorkload("lazy", 1e-3, train, ClusterSettings(), 10, [5, 5])])
(read,) = WORKLOADS.validate_json(written)
assert read.train == train, read.train
"""


@pytest.mark.slow
def test_the_settings_of_a_plugin_are_written_and_read_without_a_warning() -> None:
    plugin = CHECKOUT / "docs" / "examples" / "own-analysis" / "plugin.py"
    program = [sys.executable, "-W", "error::UserWarning", "-c", WRITE_AND_READ_PLUGIN_SETTINGS]

    completed = subprocess.run(
        [*program, str(plugin)], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )

    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[SyntheticWorkload]]:
    """The workloads of each measurement, which is replaced by a fixed result."""
    measurements: list[list[SyntheticWorkload]] = []

    def measure(workloads: list[SyntheticWorkload], _: Path) -> list[TimeCheck]:
        measurements.append(workloads)
        return [TimeCheck("ar-sgd", STEP_SECONDS, 8, 3.0, 2.0)]

    monkeypatch.setattr(time_checks, "_measure", measure)
    return measurements


def test_every_method_is_checked_with_its_step_and_as_many_workers_as_fit(
    tmp_path: Path, measured: list[list[SyntheticWorkload]]
) -> None:
    """One worker exchanges nothing, so that SGD needs no check."""
    runs = planned_runs(
        tmp_path, vary={"train.workers": [4, 32], "train.learning_rate": [0.1, 0.2]}
    )

    (check,) = check_times(runs, tmp_path / "timing", cores=4, code="")

    assert check.gap == 1.0
    (workloads,) = measured
    assert [workload.method for workload in workloads] == ["ar-sgd", "ad-psgd"]
    for workload in workloads:
        assert workload.step_seconds == STEP_SECONDS
        assert workload.train.workers == 8
        assert workload.cluster.workers_per_host == 8
        assert workload.cluster.slow_ranks == {}


def test_times_are_measured_once_and_again_after_a_change_of_the_code(
    tmp_path: Path, measured: list[list[SyntheticWorkload]]
) -> None:
    runs = planned_runs(tmp_path)

    for code in ("old", "old", "new"):
        check_times(runs, tmp_path / "timing", cores=4, code=code)

    assert len(measured) == 2


@pytest.mark.distributed
def test_ranks_sleep_for_the_step_and_exchange(tmp_path: Path) -> None:
    runs = planned_runs(tmp_path, train={"workers": 2, "slowmo": {"tau": 4}})

    checks = check_times(runs, tmp_path / "timing", cores=1, code="")

    assert [check.method for check in checks] == ["ar-sgd", "ad-psgd"]
    for check in checks:
        # Jitter makes the mean of the fastest epoch a little shorter than a step.
        assert check.measured > 0.8 * STEP_SECONDS
        assert check.simulated > 0.8 * STEP_SECONDS
