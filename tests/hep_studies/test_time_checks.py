"""Simulated times are checked where they are claimed: ranks that sleep for a step exchange by
MPI."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from example_study import example_check, example_plan

from hep_studies import time_checks
from hep_studies.other_work import OtherWork
from hep_studies.plan import PlannedRun, Subject
from hep_studies.run_in_simulator import simulate_times
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.study_result import TimeCheck
from hep_studies.synthetic_workload import WORKLOADS, SyntheticWorkload
from hep_studies.time_checks import check_times
from hep_studies.workloads.surface_settings import SurfaceSettings
from training.launching.measurement import Measurement

CHECKOUT = Path(__file__).resolve().parents[2]
STEP_SECONDS = 2e-3


CLUSTER = {
    "step_seconds": STEP_SECONDS,
    "event_seconds": 0.0,
    "jitter": 0.1,
    "slow_ranks": {1: 3.0},
}


def planned_runs(
    folder: Path, *, cluster: dict[str, Any] = CLUSTER, **changes: Any
) -> list[PlannedRun]:
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


class FakeMeasurement:
    """Replaces the measurement, which would start ranks; the machine has four cores.

    It keeps the workloads of each measurement. `load`: cores that other work keeps busy in it.
    """

    def __init__(self) -> None:
        self.measured: list[list[SyntheticWorkload]] = []
        self.load: dict[str, float] = {}
        self.load_between = 0.0

    def measure(self, workloads: list[SyntheticWorkload], _: Path) -> list[TimeCheck]:
        self.measured.append(workloads)
        checks = []
        for workload in workloads:
            step_seconds = workload.step_seconds
            check = example_check(workload.method, 3.0, 2.0, step_seconds=step_seconds)
            checks.append(replace(check, load=self.load.get(workload.method, 0.0)))
        return checks

    @property
    def methods(self) -> list[list[str]]:
        """The methods of each measurement."""
        return [[workload.method for workload in workloads] for workloads in self.measured]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeasurement:
    measurement = FakeMeasurement()
    monkeypatch.setattr(time_checks, "_measure", measurement.measure)
    monkeypatch.setattr(time_checks, "_present_load", lambda: measurement.load_between)
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    return measurement


def test_every_method_is_checked_with_its_step_and_as_many_workers_as_fit(
    tmp_path: Path, fake: FakeMeasurement
) -> None:
    """One worker exchanges nothing, so that SGD needs no check."""
    runs = planned_runs(
        tmp_path, vary={"train.workers": [4, 32], "train.learning_rate": [0.1, 0.2]}
    )

    checks = check_times(runs, tmp_path / "timing", cores=4, code="")

    assert [check.gap for check in checks] == [1.0, 1.0]
    assert fake.methods == [["ar-sgd", "ad-psgd"]]
    for workload in fake.measured[0]:
        assert workload.step_seconds == STEP_SECONDS
        assert workload.train.workers == 8
        assert workload.cluster.workers_per_host == 8
        assert workload.cluster.slow_ranks == {}


def test_a_long_step_is_checked_by_a_shorter_sleep(tmp_path: Path, fake: FakeMeasurement) -> None:
    """So the time of a check has a limit."""
    cluster = {"step_seconds": 0.3, "event_seconds": 2e-3}
    runs = planned_runs(tmp_path, cluster=cluster, train={"workers": 2, "batch_size": 50})

    check_times(runs, tmp_path / "timing", cores=4, code="")

    for workload in fake.measured[0]:
        assert workload.step_seconds == pytest.approx(0.4)
        assert workload.cluster.step_of(50) == pytest.approx(0.02)
        assert workload.cluster.event_seconds == pytest.approx(1e-4)


def test_an_epoch_of_a_check_has_an_outer_step_of_slowmo(
    tmp_path: Path, fake: FakeMeasurement
) -> None:
    runs = planned_runs(tmp_path, train={"workers": 2, "batch_size": 10, "slowmo": {"tau": 30}})

    check_times(runs, tmp_path / "timing", cores=4, code="")

    assert [workload.rows for workload in fake.measured[0]] == [[300, 300], [300, 300]]


def test_times_are_measured_once_and_again_after_a_change_of_the_code(
    tmp_path: Path, fake: FakeMeasurement
) -> None:
    runs = planned_runs(tmp_path)

    for code in ("old", "old", "new"):
        check_times(runs, tmp_path / "timing", cores=4, code=code)

    assert len(fake.measured) == 2


def test_only_refused_checks_are_measured_again_a_few_times_and_by_the_next_command(
    tmp_path: Path, fake: FakeMeasurement
) -> None:
    runs = planned_runs(tmp_path)
    fake.load = {"ad-psgd": 1.4}

    checks = check_times(runs, tmp_path / "timing", cores=4, code="")

    assert [check.refused for check in checks] == ["", "the machine was busy, load 1.4 of 4 cores"]
    assert fake.methods == [["ar-sgd", "ad-psgd"], ["ad-psgd"], ["ad-psgd"]]
    fake.load = {}
    for _ in range(2):
        checks = check_times(runs, tmp_path / "timing", cores=4, code="")
        assert [check.refused for check in checks] == ["", ""]
    assert fake.methods[3:] == [["ad-psgd"]]


def test_a_machine_that_stays_busy_gets_no_further_attempt(
    tmp_path: Path, fake: FakeMeasurement
) -> None:
    fake.load = {"ar-sgd": 1.4, "ad-psgd": 1.4}
    fake.load_between = 1.4

    for _ in range(2):
        checks = check_times(planned_runs(tmp_path), tmp_path / "timing", cores=4, code="")
        assert all(check.refused for check in checks)

    assert len(fake.measured) == 1


#: Time of a step of ranks that send nothing, less than that of all others [s].
SILENT_SECONDS = 2.1e-3


def set_repeats(
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: Sequence[float],
    load: Sequence[float],
    silent_seconds: Sequence[float] = (SILENT_SECONDS,) * 5,
) -> None:
    """Replace the answers of ranks: one number for each repeat, the same for all methods.

    `silent_seconds`: those of ranks that send nothing.
    """

    def answers(_: Any, program: Sequence[str], **__: Any) -> list[list[float]]:
        workloads = WORKLOADS.validate_json(Path(program[1]).read_bytes())
        numbers = []
        for step, silent_step, repeat_load in zip(seconds, silent_seconds, load, strict=True):
            for workload in workloads:
                is_silent = workload.method == time_checks._SILENT
                numbers.append([silent_step if is_silent else step, repeat_load])
        return numbers

    messages = [
        Measurement(operation, 2, nbytes, 1e-5)
        for operation in ("all-reduce", "memory")
        for nbytes in (256, 32_768)
    ]
    monkeypatch.setattr(time_checks, "run_measurement", answers)
    monkeypatch.setattr(time_checks, "measure_messages", lambda *_, **__: messages)
    monkeypatch.setattr(OtherWork, "busy_cores", lambda *_: 0.0)


def test_one_disturbed_repeat_changes_neither_the_time_nor_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first repeat alone, 13.8 ms, would be taken for the time of a step."""
    seconds = [13.8e-3, 2.3e-3, 2.34e-3, 2.28e-3, 2.32e-3]
    set_repeats(monkeypatch, seconds=seconds, load=[1.9, 0.1, 0.0, 0.0, 0.1])

    checks = check_times(planned_runs(tmp_path), tmp_path / "timing", cores=2, code="")

    for check in checks:
        assert (check.measured, check.load, check.repeats) == (2.32e-3, 0.1, 5)
        assert check.spread == pytest.approx(0.02e-3)
        assert check.refused == ""


def test_repeats_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_checks, "_ATTEMPTS", 1)
    seconds = [13.8e-3, 2.3e-3, 2.34e-3, 2.28e-3, 9.32e-3]
    set_repeats(monkeypatch, seconds=seconds, load=[0.0] * 5)

    check, _ = check_times(planned_runs(tmp_path), tmp_path / "timing", cores=2, code="")

    assert check.refused == "its repeats differ by 3.51 ms, in a step of 2 ms"


def test_what_a_step_takes_without_messages_is_no_error_of_the_simulated_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training loop takes 0.1 ms of a step of 1 ms, also that of a worker alone."""
    loop_seconds = 0.7e-3
    # Other work slows down all of a turn, and no difference within it.
    turns = np.array([0.0, 0.0, 0.0, 0.1e-3, 0.2e-3])
    silent = turns + 2e-3
    messages = 0.05e-3
    gaps = []
    for loop in (0.0, loop_seconds):
        set_repeats(
            monkeypatch,
            seconds=(silent + messages + loop).tolist(),
            silent_seconds=(silent + loop).tolist(),
            load=[0.0] * 5,
        )
        checks = check_times(planned_runs(tmp_path), tmp_path / f"{loop}", cores=2, code="")
        gaps.append([check.gap for check in checks])
        for check in checks:
            assert check.spread == pytest.approx(0.0)
            assert check.gap == pytest.approx(check.measured - check.overhead - check.simulated)

    assert gaps[0] == pytest.approx(gaps[1])


def test_ranks_that_send_nothing_take_the_steps_of_the_others(
    tmp_path: Path, fake: FakeMeasurement
) -> None:
    methods = {
        "ar-sgd": {"train": {"algorithm": {"name": "ar-sgd"}, "slowmo": {"tau": 30}}},
        "ad-psgd": {"train": {"algorithm": {"name": "ad-psgd"}, "staleness_bound": 2}},
        "momentum": {"train": {"optimizer": "sgd", "momentum": 0.9}},
    }
    check_times(planned_runs(tmp_path, methods=methods), tmp_path / "timing", cores=2, code="")
    workloads = fake.measured[0]

    silent = [time_checks._silent_workload(workload) for workload in workloads]

    assert silent[0] == silent[1] != silent[2]
    for workload, silent_workload in zip(workloads, silent, strict=True):
        train = silent_workload.train
        assert train.optimizer == workload.train.optimizer
        assert train.momentum == workload.train.momentum
        assert silent_workload.cluster == workload.cluster
        steps = []
        for latency in (0.0, 1.0):
            cluster = ClusterSettings(memory_latency_seconds=latency, workers_per_host=4)
            rows = silent_workload.rows
            simulated = simulate_times(rows, train, cluster, num_parameters=10)
            steps.append(time_checks._CheckedSteps(silent_workload, [], simulated.records))
        quiet, slow = [step.simulated_seconds for step in steps]
        # Only the mean at the end of an epoch of 12 steps takes messages: for four workers, two
        # one after the other.
        assert 12 * (slow - quiet) == pytest.approx(2.0, rel=1e-3)


@pytest.fixture
def busy_process() -> Iterator[None]:
    """A process that keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    process.kill()
    process.wait()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check only once, with few and short repeats."""
    monkeypatch.setattr(time_checks, "_ATTEMPTS", 1)
    monkeypatch.setattr(time_checks, "_REPEATS", 3)
    monkeypatch.setattr(time_checks, "_REPEAT_SECONDS", 0.2)


@pytest.mark.distributed
@pytest.mark.usefixtures("short")
def test_ranks_sleep_for_the_step_and_exchange(tmp_path: Path) -> None:
    runs = planned_runs(tmp_path, train={"workers": 2, "slowmo": {"tau": 4}})

    checks = check_times(runs, tmp_path / "timing", cores=1, code="")

    assert [check.method for check in checks] == ["ar-sgd", "ad-psgd"]
    for check in checks:
        # Jitter makes the mean of the fastest epoch a little shorter than a step.
        assert check.measured > 0.8 * STEP_SECONDS
        assert check.simulated > 0.8 * STEP_SECONDS
        assert check.repeats == 3
        assert check.slept == pytest.approx(STEP_SECONDS)
        assert check.overhead > 0


@pytest.mark.distributed
@pytest.mark.usefixtures("short")
def test_ranks_of_a_joint_model_count_their_steps_between_two_sums(tmp_path: Path) -> None:
    algorithm = {"name": "mpca", "cycle_steps": 4, "shards": 2}
    methods = {
        "ar-sgd": {"train": {"algorithm": {"name": "ar-sgd"}}},
        "mpca": {"train": {"algorithm": algorithm}},
    }
    runs = planned_runs(tmp_path, methods=methods, train={"workers": 2})

    without_sums, check = check_times(runs, tmp_path / "timing", cores=1, code="")

    # A shard is in each second sum. The end of an epoch adds a sum of fewer steps for each.
    assert 4 < check.steps_per_cycle <= 8
    assert check.steps_per_cycle == check.simulated_steps_per_cycle
    assert without_sums.steps_per_cycle == without_sums.simulated_steps_per_cycle == 0


@pytest.mark.distributed
@pytest.mark.usefixtures("short", "busy_process")
def test_a_check_beside_other_work_is_refused_with_its_load(tmp_path: Path) -> None:
    runs = planned_runs(tmp_path, train={"workers": 2})

    checks = check_times(runs, tmp_path / "timing", cores=psutil.cpu_count() or 1, code="")

    for check in checks:
        assert check.load > 0.3
        assert check.refused.startswith(f"the machine was busy, load {check.load:.1f} of ")
