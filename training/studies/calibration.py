"""Measures this machine for the simulator by short MPI runs and messages, and checks the simulator with others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from training.algorithms.registry import METHODS
from training.launching.mpirun import measure_messages
from training.loop.records import read_records
from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings
from training.simulation.fitting import calibrate
from training.simulation.probe import Measurement
from training.studies.plan import CodeOf, PlannedRun, Subject, digest_of, on_this_machine, planned
from training.studies.run_in_simulator import num_parameters, simulate_times
from training.studies.run_result import rates
from training.studies.study import StudySettings
from training.studies.study_result import TimeCheck

FOLDER: Final = "timing"
#: Below and above the size of the HLF network's parameters [bytes].
_SIZES: Final = (256, 32_768)
#: Factor between the two batch sizes of one worker, which give the times per step and per event.
_LARGER_BATCH: Final = 4
#: A method of one worker; and workers that compute without messages within an epoch, which has fewer steps.
_ALONE: Final = next(name for name, method in METHODS.items() if method.traits.single_worker)
_APART: Final = next(name for name, method in METHODS.items() if method.traits.averages_models)
_MOST_STEPS: Final = 10**9


class CalibrationPlan(NamedTuple):
    """Short runs with at most one worker per core."""

    alone: list[PlannedRun]
    """One worker, with two batch sizes."""
    apart: list[PlannedRun]
    """Several workers that compute without messages."""
    checks: list[PlannedRun]
    """The methods of the study, without slow momentum, to check the simulator."""

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs."""
        return [*self.alone, *self.apart, *self.checks]


def plan_calibration(
    study: StudySettings, subject: Subject, base: TrainSettings, folder: Path, *, cores: int, code_of: CodeOf
) -> CalibrationPlan:
    """The runs that measure this machine.

    Args:
        study: The study.
        subject: What it trains.
        base: The section `train` of the config.
        folder: Folder of the study.
        cores: Number of cores, the highest number of workers.
        code_of: The code of a run.
    """
    epochs = study.calibration_epochs or 1
    counts = _worker_counts(cores)
    shared = {"epochs": epochs, "schedule": {}, "slowmo": None, "optimizer_state": None, "sharding": None, "skew": None}
    found = {method: next(study.combinations(method)) for method in study.methods}
    like = {method: study.train_settings(method, values, base.seed) for method, values in found.items()}
    batch = like[study.reference].batch_size

    def run(name: str, settings: TrainSettings, **changes: Any) -> PlannedRun:
        train = TrainSettings.model_validate({**settings.model_dump(), **shared, **changes})
        return planned(subject, on_this_machine(train, base), None, None, folder / FOLDER, name, {}, code_of=code_of)

    plain = like[study.reference].model_copy(update={"staleness_bound": None})
    alone = [
        run("alone", plain, algorithm=_ALONE, workers=1, batch_size=size) for size in (batch, batch * _LARGER_BATCH)
    ]
    never = {"name": _APART, "local_steps": _MOST_STEPS}
    apart = [run("apart", plain, workers=count, algorithm=never) for count in counts]
    bare = {json.dumps(each.model_dump(mode="json")["algorithm"]): name for name, each in reversed(like.items())}
    of_one = {name for name, each in like.items() if METHODS[each.algorithm.name].traits.single_worker}
    names = [name for name in like if name in bare.values() and name not in of_one]
    checks = [run(name, like[name], workers=count, batch_size=batch) for count in counts for name in names]
    return CalibrationPlan(alone, apart, checks)


def read_or_measure(folder: Path, like: TrainSettings, *, code: str) -> list[Measurement]:
    """Messages between two processes of this machine, measured once.

    Args:
        folder: Folder of their file.
        like: Settings of the launcher.
        code: Digest of the code that measures.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    settings = like.model_copy(update={"workers": 2})
    how = digest_of(
        [code, _SIZES, list(settings.algorithm.transport_options), settings.launcher, settings.launcher_args]
    )
    path = folder / f"messages-{how}.json"
    if not path.exists():
        content = [each._asdict() for each in measure_messages(settings, _SIZES)]
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
        unfinished.replace(path)
    return [Measurement(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def calibrated(plan: CalibrationPlan, messages: Sequence[Measurement]) -> tuple[ClusterSettings, list[TimeCheck]]:
    """The cluster of machines like this one, and the check of the simulator on this machine."""
    alone, apart = ([read_records(run.folder) for run in runs] for runs in (plan.alone, plan.apart))
    cluster = calibrate(alone, apart, messages)
    return cluster, [_checked(run, cluster) for run in plan.checks]


def _checked(run: PlannedRun, cluster: ClusterSettings) -> TimeCheck:
    settings = run.train
    workload = run.subject.settings.open()
    here = cluster.model_copy(update={"workers_per_host": settings.workers})
    predicted = simulate_times(workload.group_rows("train"), settings, here, num_parameters=num_parameters(workload))
    both = (rates(ranks)["seconds_per_batch"] for ranks in (read_records(run.folder), predicted.records))
    return TimeCheck(run.method, settings.workers, *both)


def _worker_counts(most: int) -> list[int]:
    """Numbers of workers to time: powers of 2 and `most`; at least 2, since one worker makes no averages.

    Examples:
        >>> _worker_counts(1), _worker_counts(6)
        ([2], [2, 4, 6])
    """
    powers = [2**power for power in range(1, 11) if 2**power <= most]
    return sorted({2, *powers, max(most, 2)})
