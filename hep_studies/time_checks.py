"""Checks simulated times: MPI ranks sleep for the time of a step and exchange messages."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hep_core.atomic_files import new_file
from hep_studies.check_rules import is_busy, judge_checks
from hep_studies.fitted_links import fit_machine
from hep_studies.other_work import OtherWork
from hep_studies.plan import PlannedRun, digest_of
from hep_studies.run_in_simulator import num_parameters, simulate_times
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.study_result import TimeCheck
from hep_studies.synthetic_workload import (
    WORKLOADS,
    MeasuredStep,
    SyntheticWorkload,
    fastest_step,
    seconds_and_steps,
    steps_per_cycle,
)
from training.launching.mpirun import measure_messages, run_measurement
from training.loop.records import Record
from training.settings import TrainSettings

#: Ranks for each core. Asleep they need no core, but a step has work beside the sleep.
_RANKS_PER_CORE: Final = 2
#: Sizes of messages that the links are fitted to; the parameters of the network `hlf` lie between
#: them [bytes].
_MESSAGE_SIZES: Final = (256, 32_768)
#: Longest sleep in a step [s]. A longer step of a study is checked by one of this length, since
#: what messages add to a step does not grow with it.
_LONGEST_SLEEP: Final = 0.02
#: Steps of an epoch of a check. Epochs are short: the fastest one counts, and other work of the
#: machine disturbs a short one less.
_STEPS_PER_EPOCH: Final = 12
#: Number of repeats. The median of five is right even if other work disturbs two of them.
_REPEATS: Final = 5
#: Length of a repeat [s], and the limits of its number of epochs; the first and last do not count.
_REPEAT_SECONDS: Final = 1.6
_FEWEST_EPOCHS, _MOST_EPOCHS = 4, 16
#: How often checks are measured, as long as some are refused.
_ATTEMPTS: Final = 3
#: Time for which the processors are watched before another attempt [s].
_WATCH_SECONDS: Final = 3.0
#: Time after which a measurement fails [s].
_TIMEOUT_SECONDS: Final = 1800.0
#: Settings of the training in a check: those that cost time beside steps and messages are off. A
#: schedule is off since it costs none: ranks count their samples without waiting for an answer.
_CHECK_SETTINGS: Final[dict[str, Any]] = {
    "learning_rate": 1e-6,
    "schedule": {},
    "seed": 1,
    "skew": None,
}
#: Settings on which the computing time of a step depends.
_COMPUTATION_KEYS: Final = {
    "batch_size",
    "device",
    "launcher",
    "launcher_args",
    "momentum",
    "optimizer",
    "precision",
    "reader",
    "threads",
    "weight_decay",
    "workers",
}
#: Stands for the method of ranks that send nothing.
_SILENT: Final = ""
_CHECKS: Final = TypeAdapter(list[TimeCheck])


def check_times(
    runs: Sequence[PlannedRun], folder: Path, *, cores: int, code: str
) -> list[TimeCheck]:
    """Return measured and simulated time of a step, for each method and computing time of a step.

    MPI ranks on this machine sleep for the computing time, and exchange the messages of the method.
    The simulator predicts the same steps with links that are fitted to messages on this machine. A
    check has as many workers as the run, or as many as the machine has room for. Ranks that send
    nothing take their turns too: what their step takes beyond the simulated one is no error of the
    simulated messages. Checks that `check_rules` refuses are measured again, a few times now and by
    the next call, unless other work keeps the machine busy.

    Args:
        runs: The simulated runs of a study.
        folder: Keeps the measurement, which is made again only if its settings change.
        cores: Number of cores of this machine.
        code: Digest of the code that measures and predicts; another one makes it again too.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    workloads = _workloads_to_check(runs, max_workers=_RANKS_PER_CORE * cores)
    if not workloads:
        return []
    digest = digest_of([code, WORKLOADS.dump_python(workloads, mode="json")])
    path = folder / f"times-{digest}.json"
    checks: list[TimeCheck] = []
    if path.exists():
        checks = _CHECKS.validate_json(path.read_bytes())
    for _ in range(_ATTEMPTS):
        if checks and not any(check.refused for check in checks):
            break
        if checks and is_busy(_present_load(), cores):
            # Another measurement would be refused too.
            break
        folder.mkdir(parents=True, exist_ok=True)
        checks = _measure_again(workloads, checks, folder, cores=cores)
        with new_file(path) as unfinished:
            unfinished.write_bytes(_CHECKS.dump_json(checks))
    return checks


def _present_load() -> float:
    """Return the number of cores that other work keeps busy now; it takes some seconds."""
    other_work = OtherWork()
    time.sleep(_WATCH_SECONDS)
    return other_work.busy_cores(other_work.own_seconds())


def _measure_again(
    workloads: Sequence[SyntheticWorkload],
    checks: Sequence[TimeCheck],
    folder: Path,
    *,
    cores: int,
) -> list[TimeCheck]:
    """Return the checks of workloads, with a new measurement of those that were refused.

    `checks`: those of an earlier measurement; empty if there is none.
    """
    if not checks:
        return judge_checks(workloads, _measure(workloads, folder), cores=cores)
    pairs = list(zip(workloads, checks, strict=True))
    refused = [workload for workload, check in pairs if check.refused]
    new_checks = iter(_measure(refused, folder))
    checks = [next(new_checks) if check.refused else check for check in checks]
    return judge_checks(workloads, checks, cores=cores)


def _workloads_to_check(runs: Sequence[PlannedRun], *, max_workers: int) -> list[SyntheticWorkload]:
    """Return a workload for each pair of a method and a computing time of a step.

    Of all runs of such a pair, it has the settings of the one with the most workers, and among
    those with the most messages. Runs of one worker send none and need no check.
    """

    def from_most_messages(run: PlannedRun) -> tuple[int, float]:
        # Most workers first, then the fewest steps between two averages.
        return -run.train.workers, run.train.algorithm.steps_between_averages

    workloads: dict[tuple[str, float], SyntheticWorkload] = {}
    for run in sorted(runs, key=from_most_messages):
        if run.cluster is None or run.train.workers == 1:
            continue
        step_seconds = run.cluster.step_of(run.train.batch_size)
        key = (run.method, step_seconds)
        if key not in workloads:
            workloads[key] = _synthetic_workload(run, run.cluster, max_workers=max_workers)
    return list(workloads.values())


def _synthetic_workload(
    run: PlannedRun, cluster: ClusterSettings, *, max_workers: int
) -> SyntheticWorkload:
    """Return the workload that checks the times of a run on this machine.

    An epoch has enough steps for an average, and for an outer step of SlowMo. As many epochs are
    made as fit into the time of a repeat, within limits.
    """
    step_seconds = cluster.step_of(run.train.batch_size)
    sleep_seconds = min(step_seconds, _LONGEST_SLEEP)
    num_workers = min(run.train.workers, max_workers)
    num_steps = max(_STEPS_PER_EPOCH, _steps_between_operations(run.train))
    num_epochs = _num_epochs(num_steps, sleep_seconds)
    changes = {**_CHECK_SETTINGS, "workers": num_workers, "epochs": num_epochs}
    train = TrainSettings.model_validate({**run.train.model_dump(), **changes})
    changes_of_cluster = {
        # All ranks are on this machine, and none is slow.
        "workers_per_host": num_workers,
        "pause_probability": 0.0,
        "slow_ranks": {},
        "step_seconds": cluster.step_seconds * sleep_seconds / step_seconds,
        "event_seconds": cluster.event_seconds * sleep_seconds / step_seconds,
    }
    return SyntheticWorkload(
        run.method,
        step_seconds,
        train,
        cluster.model_copy(update=changes_of_cluster),
        num_parameters(run.subject.settings.open()),
        rows=[train.batch_size * num_steps] * num_workers,
    )


def _num_epochs(num_steps: int, sleep_seconds: float) -> int:
    """Return how many epochs of a number of steps fit into the time of a repeat, within limits."""
    num_epochs = math.ceil(_REPEAT_SECONDS / (num_steps * sleep_seconds))
    return min(max(num_epochs, _FEWEST_EPOCHS), _MOST_EPOCHS)


def _silent_workload(workload: SyntheticWorkload) -> SyntheticWorkload:
    """Return the workload of as many ranks that take the same steps and send nothing in them.

    They are workers of LocalSGD, which would average after one step more than they take; only at
    the end of an epoch they do. Workloads that differ only in their method have the same one.
    """
    sleep_seconds = workload.cluster.step_of(workload.train.batch_size)
    num_epochs = _num_epochs(_STEPS_PER_EPOCH, sleep_seconds)
    local_steps = _STEPS_PER_EPOCH * num_epochs + 1
    changes = {
        **_CHECK_SETTINGS,
        "epochs": num_epochs,
        "algorithm": {"name": "local-sgd", "local_steps": local_steps},
    }
    computation = workload.train.model_dump(include=_COMPUTATION_KEYS)
    train = TrainSettings.model_validate({**computation, **changes})
    rows = [train.batch_size * _STEPS_PER_EPOCH] * train.workers
    return workload._replace(method=_SILENT, train=train, rows=rows)


def _steps_between_operations(train: TrainSettings) -> int:
    """Return the number of steps in which a method communicates in each way that it has."""
    num_steps = math.ceil(train.algorithm.steps_between_averages)
    if train.slowmo is None:
        return num_steps
    return max(num_steps, train.slowmo.tau)


def _measure(workloads: Sequence[SyntheticWorkload], folder: Path) -> list[TimeCheck]:
    """Measure the steps of workloads, and simulate them with the links of this machine.

    Workloads with the same number of workers share their ranks, which start only once, and are
    measured in turn. The ranks read the workloads from a file. Whether a check is refused is not
    decided here.
    """
    # Messages between two workers are enough to fit latency and bandwidth.
    two_workers = workloads[0].train.model_copy(update={"workers": 2})
    other_work = OtherWork()
    messages = measure_messages(two_workers, _MESSAGE_SIZES, timeout=_TIMEOUT_SECONDS)
    links = fit_machine(messages)
    load_of_messages = other_work.busy_cores(other_work.own_seconds())
    path = (folder / "workloads.json").absolute()
    checks: dict[tuple[str, float], TimeCheck] = {}
    for num_workers in sorted({workload.train.workers for workload in workloads}):
        batch = [workload for workload in workloads if workload.train.workers == num_workers]
        new_checks = _measure_batch(batch, path, links)
        for workload, check in zip(batch, new_checks, strict=True):
            # The simulated step depends on the messages that the links are fitted to.
            load = max(check.load, load_of_messages)
            checks[workload.key] = replace(check, load=load)
    return [checks[workload.key] for workload in workloads]


def _measure_batch(
    workloads: Sequence[SyntheticWorkload], path: Path, links: dict[str, float]
) -> list[TimeCheck]:
    """Measure and simulate the steps of workloads of one number of workers, on the same ranks.

    `path`: the file by which the ranks get them. `links`: keys of the cluster from `fit_machine`.
    """
    silent_workloads = [_silent_workload(workload) for workload in workloads]
    batch = list(workloads)
    for silent_workload in silent_workloads:
        if silent_workload not in batch:
            batch.append(silent_workload)
    path.write_bytes(WORKLOADS.dump_json(batch))
    program = ("hep_studies.synthetic_workload", str(path), str(_REPEATS))
    answers = run_measurement(batch[0].train, program, timeout=_TIMEOUT_SECONDS)
    measured_steps = [MeasuredStep(*answer) for answer in answers]

    def steps_of(workload: SyntheticWorkload) -> _CheckedSteps:
        # The workloads take turns.
        repeats = measured_steps[batch.index(workload) :: len(batch)]
        return _CheckedSteps(workload, repeats, _simulated_records(workload, links))

    checks = []
    for workload, silent_workload in zip(workloads, silent_workloads, strict=True):
        checks.append(_check_from(steps_of(workload), steps_of(silent_workload)))
    return checks


class _CheckedSteps(NamedTuple):
    """The steps of a workload, measured and simulated."""

    workload: SyntheticWorkload
    repeats: list[MeasuredStep]
    simulated: list[list[Record]]
    """Records of each simulated worker."""

    @property
    def measured_seconds(self) -> NDArray[np.float64]:
        """Measured time of a step in each repeat [s]."""
        return np.array([step.seconds for step in self.repeats])

    @property
    def simulated_seconds(self) -> float:
        """Simulated time of a step, computed as that of the real ranks [s]."""
        num_epochs = self.workload.train.epochs
        sums_of_ranks = [seconds_and_steps(records, num_epochs) for records in self.simulated]
        return fastest_step(np.sum(sums_of_ranks, axis=0))

    @property
    def load(self) -> float:
        """Number of cores that other work kept busy: the median of the repeats."""
        return float(np.median([step.load for step in self.repeats]))


def _check_from(steps: _CheckedSteps, silent: _CheckedSteps) -> TimeCheck:
    """Return the check of a workload.

    All measured values are medians, so that other work in one of the repeats changes none.
    `silent`: the steps of ranks that send nothing, measured in the same turns.
    """
    workload = steps.workload
    added_seconds = steps.measured_seconds - silent.measured_seconds
    lower_quartile, upper_quartile = np.percentile(added_seconds, [25, 75])
    return TimeCheck(
        workload.method,
        workload.step_seconds,
        workload.train.workers,
        float(np.median(steps.measured_seconds)),
        steps.simulated_seconds,
        spread=float(upper_quartile - lower_quartile) / 2,
        repeats=len(steps.repeats),
        load=max(steps.load, silent.load),
        slept=workload.cluster.step_of(workload.train.batch_size),
        steps_per_cycle=float(np.median([step.steps_per_cycle for step in steps.repeats])),
        simulated_steps_per_cycle=steps_per_cycle(steps.simulated),
        overhead=float(np.median(silent.measured_seconds)) - silent.simulated_seconds,
    )


def _simulated_records(
    workload: SyntheticWorkload, links: dict[str, float]
) -> list[list[dict[str, Any]]]:
    """Return the records of the simulated workers of a workload, on links of this machine.

    `links`: keys of the cluster from `fit_machine`.
    """
    simulated = simulate_times(
        workload.rows,
        workload.train,
        workload.cluster.model_copy(update=links),
        num_parameters=workload.num_parameters,
    )
    return simulated.records
