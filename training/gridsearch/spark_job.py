"""The Spark job of a search: its trainings, distributed over a few tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from pyspark import Accumulator, SparkContext

from hep_core.plugins import load_from_environment
from training.errors import TrainingError
from training.gridsearch.results import Score, score_trial
from training.gridsearch.search import JobResult, Search, load_result
from training.gridsearch.settings import Trial, draw_trials

_NO_FINITE_LOSS: Final = "the validation loss of a fold was never finite; lower the learning rate"


class SearchOutcome(NamedTuple):
    """The outcome of a search."""

    scores: list[Score]
    failed: dict[Trial, str]
    """Trials without a score, with the reason."""
    training_seconds: list[float]
    """Time of each training, including those of an interrupted search [s]."""
    num_reused: int
    """Number of trainings that were reused from an interrupted search."""


def run_search(
    spark: SparkContext,
    search: Search,
    folder: Path,
    *,
    num_done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> SearchOutcome:
    """Run a search; trainings of an interrupted search in `folder` are not repeated.

    A trial is one setting to score. Several trials may share a training. Spark tasks train what is
    missing; then each trial is scored from the curves of its training.

    `folder`: one small file per training; every task must reach it. `num_done`: counts trainings as
    they end. `num_tasks`: Spark tasks for a number of trainings.

    Raises:
        TrainingError: All trials failed.
    """
    trials = draw_trials(search.settings, seed=search.train.seed)
    training_of_trial = search.plan_trainings(trials)
    trainings = set(training_of_trial.values())

    results = _load_results(folder, trainings)
    num_reused = len(results)
    num_done.add(num_reused)
    # Only trainings without a result are run.
    results |= _train_in_tasks(
        spark, search, folder, trainings - results.keys(), num_done, num_tasks
    )

    scores: list[Score] = []
    failed: dict[Trial, str] = {}
    for trial in trials:
        result = results[training_of_trial[trial]]
        if result.error:
            failed[trial] = result.error
            continue
        score = score_trial(trial, result.num_parameters, result.folds)
        if score is None:
            failed[trial] = _NO_FINITE_LOSS
        else:
            scores.append(score)
    if not scores:
        raise TrainingError(
            f"all {len(trials)} settings of the grid search failed; "
            f"the first, {trials[0].key}: {failed[trials[0]]}"
        )
    seconds = [result.seconds for result in results.values()]
    return SearchOutcome(scores, failed, seconds, num_reused)


def count_trainings(search: Search) -> int:
    """Return the number of trainings of a search."""
    trials = draw_trials(search.settings, seed=search.train.seed)
    return len(set(search.plan_trainings(trials).values()))


def _load_results(folder: Path, trainings: Iterable[Trial]) -> dict[Trial, JobResult]:
    """Read the results of those trainings that an interrupted search finished."""
    results: dict[Trial, JobResult] = {}
    for training in trainings:
        result = load_result(folder, training)
        if result is not None:
            results[training] = result
    return results


def _train_in_tasks(
    spark: SparkContext,
    search: Search,
    folder: Path,
    trainings: Iterable[Trial],
    num_done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> dict[Trial, JobResult]:
    """Run trainings in Spark tasks; returns their results."""
    # The longest come first, and the tasks take them in turn, so that no core waits at the end.
    by_cost = sorted(trainings, key=_estimate_cost, reverse=True)
    if not by_cost:
        return {}
    count = num_tasks(len(by_cost))
    trainings_per_task = [by_cost[task::count] for task in range(count)]
    # Spark pickles the task with this text, and workers make a path of it.
    task = partial(_train_all, search, str(folder), num_done)
    results = spark.parallelize(trainings_per_task, count).flatMap(task).collect()
    return {result.trial: result for result in results}


def _train_all(
    search: Search, folder: str, num_done: Accumulator[int], trainings: Iterable[Trial]
) -> list[JobResult]:
    """Run the trainings of a task, in that task."""
    # The driver has no use for torch, which takes 140 MB.
    from training.gridsearch.trainings import run_job  # noqa: PLC0415

    results: list[JobResult] = []
    for training in trainings:
        results.append(run_job(search, training, Path(folder)))
        num_done.add(1)
    return results


def _estimate_cost(trial: Trial) -> tuple[float, Trial]:
    """Return the approximate relative time of a training, and the trial, which orders equal times.

    The time of a step grows with the number of weights; 1000 stands for the rest of a step. The
    number of steps is inverse to the batch size.
    """
    num_weights = sum(width_in * width_out for width_in, width_out in pairwise(trial.hidden))
    return (1000 + num_weights) / trial.batch_size, trial


# Spark's workers import this module first, so it loads the user's plugins for them.
load_from_environment()
