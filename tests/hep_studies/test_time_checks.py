"""Simulated times are checked where they are claimed: ranks that sleep for a step exchange by MPI."""

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
from hep_studies.time_checks import check_times
from hep_studies.workloads.surface_settings import SurfaceSettings

ROOT = Path(__file__).resolve().parents[2]
STEP = 2e-3


def runs_of(folder: Path, **changes: Any) -> list[PlannedRun]:
    cluster = {"step_seconds": STEP, "event_seconds": 0.0, "jitter": 0.1, "slow_ranks": {1: 3.0}}
    return example_plan(Subject(SurfaceSettings()), folder, cluster=cluster, **changes)


OWN_METHOD = """
import sys
from hep_core import plugins
from training.settings import TrainSettings
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies import time_checks

plugins.load([sys.argv[1]])
train = TrainSettings(algorithm={"name": "lazy-gossip", "patience": 3}, workers=2)
written = time_checks._SLEEPERS.dump_json([time_checks.Sleepers("lazy", 1e-3, train, ClusterSettings(), 10, [5, 5])])
(read,) = time_checks._SLEEPERS.validate_json(written)
assert read.train == train, read.train
"""


@pytest.mark.slow
def test_the_settings_of_an_own_method_are_written_and_read_without_a_warning() -> None:
    """`compare` printed 40 lines of pydantic, as the kinds of settings were those before the plugin."""
    plugin = ROOT / "docs" / "examples" / "own-analysis" / "plugin.py"
    command = [sys.executable, "-W", "error::UserWarning", "-c", OWN_METHOD, str(plugin)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_method_is_checked_with_its_step_and_as_many_workers_as_find_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It measured two workers with steps of this machine."""
    chosen: list[Any] = []

    def measured(sleepers: Any, _: Path) -> list[Any]:
        chosen.append(sleepers)
        return [TimeCheck("ar-sgd", STEP, 8, 3.0, 2.0)]

    monkeypatch.setattr(time_checks, "_measured", measured)
    runs = runs_of(tmp_path, vary={"train.workers": [4, 32], "train.learning_rate": [0.1, 0.2]})
    for code in ("old", "old", "new"):
        (found,) = check_times(runs, tmp_path / "timing", cores=4, code=code)
        assert (found.method, found.workers, found.gap) == ("ar-sgd", 8, 1.0)
    # It is measured once, and again after a change of the code; one worker sends nothing.
    assert [[(each.method, each.step_seconds) for each in some] for some in chosen] == [
        [("ar-sgd", STEP), ("ad-psgd", STEP)]
    ] * 2
    for each in chosen[0]:
        assert (each.train.workers, each.cluster.workers_per_host, each.cluster.slow_ranks) == (
            8,
            8,
            {},
        )


@pytest.mark.distributed
def test_ranks_sleep_for_the_step_and_exchange(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, train={"workers": 2, "slowmo": {"tau": 4}})
    found = {
        check.method: check for check in check_times(runs, tmp_path / "timing", cores=1, code="")
    }
    assert found.keys() == {"ar-sgd", "ad-psgd"}
    for each in found.values():
        # Jitter makes the mean of the fastest epoch a little shorter than a step.
        assert each.measured > 0.8 * STEP
        assert each.simulated > 0.8 * STEP
