"""The Spark job of a search: rounds of trainings, distributed over a few tasks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from pyspark import Accumulator, SparkContext

from hep_core.plugins import load_from_environment
from training.errors import TrainingError
from training.gridsearch.results import Score, score
from training.gridsearch.settings import Trial, first_trials, promoted, rungs
from training.gridsearch.trainings import JobResult, Search, finished, run_job

_NO_FINITE_LOSS: Final = "the validation loss of a fold was never finite; lower the learning rate"


class SearchOutcome(NamedTuple):
    """The outcome of a search."""

    scores: list[Score]
    failed: dict[Trial, str]
    """Why the others have none."""
    training_seconds: list[float]
    """Time of each training, those of an interrupted search included [s]."""
    num_taken_over: int
    """Number of trainings that were reused from an interrupted search."""


def search(
    spark: SparkContext,
    common: Search,
    folder: Path,
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
    on_round: Callable[[str], None] = lambda _: None,
) -> SearchOutcome:
    """Run a search; trainings of an interrupted search in `folder` are not repeated.

    `folder`: one small file per training; every task must reach it. `done`: counts trainings as they end. `num_tasks`:
    Spark tasks for a number of trainings. `on_round`: called with a sentence when a round of halving begins.
    """
    settings = common.settings
    trials = first_trials(settings, seed=common.train.seed)
    scores: dict[Trial, Score] = {}
    failed: dict[Trial, str] = {}
    results: dict[Trial, JobResult] = {}
    taken_over = 0
    rounds = (
        rungs(len(trials), settings.epochs[0], settings.halving_factor)
        if settings.search == "halving"
        else [0]
    )
    for place, epochs in enumerate(rounds):
        if place:
            before = [(trial, scores[trial].accuracy) for trial in trials if trial in scores]
            trials = promoted(before, epochs, settings.halving_factor)
            # A promoted setting has its score of the later round only.
            again = {trial._replace(epochs=rounds[place - 1]) for trial in trials}
            scores = {trial: each for trial, each in scores.items() if trial not in again}
        if len(rounds) > 1:
            on_round(
                f"round {place + 1} of {len(rounds)}: {len(trials)} settings, {trials[0].epochs} epochs"
            )
        training_of = common.training_of(trials)
        taken_over += _run_round(
            spark, common, folder, set(training_of.values()), results, done, num_tasks
        )
        for trial in trials:
            result = results[training_of[trial]]
            found = (
                None
                if result.error
                else score(trial, result.num_parameters, result.folds, rung=place)
            )
            if found is None:
                failed[trial] = result.error or _NO_FINITE_LOSS
            else:
                scores[trial] = found
        if not any(trial in scores for trial in trials):
            raise TrainingError(
                f"all {len(trials)} settings of the grid search failed; the first, {trials[0].key}: {failed[trials[0]]}"
            )
    return SearchOutcome(
        list(scores.values()), failed, [each.seconds for each in results.values()], taken_over
    )


def num_trainings(common: Search) -> int:
    """Highest number of trainings of a search."""
    settings = common.settings
    trials = first_trials(settings, seed=common.train.seed)
    if settings.search != "halving":
        return len(set(common.training_of(trials).values()))
    rounds = rungs(len(trials), settings.epochs[0], settings.halving_factor)
    return sum(
        max(1, len(trials) // settings.halving_factor**place) for place, _ in enumerate(rounds)
    )


def _run_round(
    spark: SparkContext,
    common: Search,
    folder: Path,
    trials: set[Trial],
    results: dict[Trial, JobResult],
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> int:
    """Run the missing trainings of a round, and add all results to `results`; returns the number of reused ones."""
    there = {trial: result for trial in trials if (result := finished(folder, trial)) is not None}
    done.add(len(there))
    # The longest come first and are spread over the tasks, so that no core waits for one of them at the end.
    missing = sorted(trials - there.keys(), key=_cost, reverse=True)
    path = str(folder)

    def run(trial: Trial) -> JobResult:
        result = run_job(common, trial, Path(path))
        done.add(1)
        return result

    new: list[JobResult] = []
    if missing:
        packs = [
            missing[place :: num_tasks(len(missing))] for place in range(num_tasks(len(missing)))
        ]
        new = (
            spark.parallelize(packs, len(packs))
            .flatMap(lambda pack: [run(trial) for trial in pack])
            .collect()
        )
    results.update(there | {result.trial: result for result in new})
    return len(there)


def _cost(trial: Trial) -> tuple[float, Trial]:
    """Approximate relative time of a training, from its number of weights and its steps per event."""
    weights = sum(first * second for first, second in pairwise(trial.hidden))
    return (1000 + weights) / trial.batch_size, trial


# In Spark's workers, which begin with this module.
load_from_environment()
