"""Checks the times of the simulator where a study claims them: ranks that sleep for its step exchange by MPI."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from training.launching.mpirun import measure_messages, measured_by
from training.settings import TrainSettings
from training.simulation.fitting import fit_machine
from training.studies.plan import PlannedRun, digest_of
from training.studies.run_in_simulator import num_parameters, simulate_times
from training.studies.sleeping_ranks import Sleepers, fastest_epoch, seconds_and_steps
from training.studies.study_result import TimeCheck

#: Ranks for each core: asleep they need no core, but a step has work beside the sleep.
_RANKS_PER_CORE: Final = 2
#: Sizes of messages, around that of the HLF network's parameters [bytes].
_SIZES: Final = (256, 32_768)
#: Steps of an epoch of a check; it is short, since the fastest counts: other work disturbs it the less.
_STEPS: Final = 12
#: Length of a check [s], and its numbers of epochs, of which the first and last do not count.
_SECONDS: Final = 8.0
_FEWEST, _MOST = 4, 60
_TIMEOUT: Final = 1800.0
#: What a check leaves out: nothing of it costs time.
_PLAIN: Final[dict[str, Any]] = {"learning_rate": 1e-6, "schedule": {}, "seed": 1, "skew": None}


def check_times(runs: Sequence[PlannedRun], folder: Path, *, cores: int, code: str) -> list[TimeCheck]:
    """Check each method of simulated runs for each time of a step, with as many of its workers as find room.

    The measurement is made once and kept.

    Args:
        runs: The runs.
        folder: Folder of the measurement.
        cores: Number of cores.
        code: Digest of the code that measures and predicts.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    chosen = _chosen(runs, most=_RANKS_PER_CORE * cores)
    path = folder / f"times-{digest_of([code, [each.to_json() for each in chosen.values()]])}.json"
    if chosen and not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found = _measured(chosen, folder)
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(json.dumps(found), encoding="utf-8")
        unfinished.replace(path)
    return [TimeCheck(*each) for each in json.loads(path.read_text(encoding="utf-8"))] if chosen else []


def _chosen(runs: Sequence[PlannedRun], *, most: int) -> dict[tuple[str, float], Sleepers]:
    """Of each method and time of a step the run with the most workers and messages."""
    found: dict[tuple[str, float], Sleepers] = {}
    for run in sorted(runs, key=lambda run: (-run.train.workers, run.train.algorithm.steps_apart)):
        if run.cluster is None or run.train.workers == 1:
            continue
        step = run.cluster.step_seconds + run.cluster.event_seconds * run.train.batch_size
        if (run.method, step) in found:
            continue
        workers = min(run.train.workers, most)
        steps = max(_STEPS, math.ceil(run.train.algorithm.steps_apart))
        epochs = min(max(math.ceil(_SECONDS / (steps * step)), _FEWEST), _MOST)
        changes = {**_PLAIN, "workers": workers, "epochs": epochs}
        train = TrainSettings.model_validate({**run.train.model_dump(), **changes})
        cluster = {"workers_per_host": workers, "pause_probability": 0.0, "slow_ranks": {}}
        size = num_parameters(run.subject.settings.open())
        rows = [train.batch_size * steps] * workers
        found[run.method, step] = Sleepers(train, run.cluster.model_copy(update=cluster), size, rows)
    return found


def _measured(chosen: dict[tuple[str, float], Sleepers], folder: Path) -> list[list[Any]]:
    pair = next(iter(chosen.values())).train.model_copy(update={"workers": 2})
    machine = fit_machine(measure_messages(pair, _SIZES))
    path, found = (folder / "sleepers.json").absolute(), []
    for workers in sorted({each.train.workers for each in chosen.values()}):
        some = {key: each for key, each in chosen.items() if each.train.workers == workers}
        path.write_text(json.dumps([each.to_json() for each in some.values()]), encoding="utf-8")
        like = next(iter(some.values())).train
        times = measured_by(like, ("training.studies.sleeping_ranks", str(path)), timeout=_TIMEOUT)
        for ((method, step), each), seconds in zip(some.items(), times, strict=True):
            here = each.cluster.model_copy(update=machine)
            simulated = simulate_times(each.rows, each.train, here, num_parameters=each.num_parameters)
            each_rank = [seconds_and_steps(records, each.train.epochs) for records in simulated.records]
            found.append([method, step, workers, seconds, fastest_epoch(np.sum(each_rank, axis=0))])
    return found
