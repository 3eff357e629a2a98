"""Tuning: which values of the keys of `best_of`, such as the learning rate, a method stands at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hep_studies.cells import Cell
from hep_studies.measures import distance_to_best, measure_of, number_of_run
from hep_studies.run_result import RunResult


class Tuning(NamedTuple):
    """How the values of the keys of `best_of` are chosen."""

    at: Mapping[str, Any] = {}
    """The values; empty: the best ones of each cell."""
    best_in: str = "val_loss"
    """The measure in which the best ones are best."""


#: The accuracy of a method that the best one is best in.
_FINAL_ACCURACY: Final = "final_val_accuracy"
#: Tables and figures show each method at the values of its lowest validation loss.
LOWEST_LOSS: Final = Tuning()


def grouped_runs(
    runs: Sequence[RunResult], best_of: Sequence[str]
) -> dict[Cell, dict[Cell, list[RunResult]]]:
    """Return runs in the order of their seeds, by cell and by values of the keys of `best_of`.

    `grouped[cell][combination]` are the runs of a cell at these values. A combination is itself a
    `Cell`, without a method; it is empty in a study without `best_of`.
    """
    groups: dict[Cell, dict[Cell, list[RunResult]]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        # The run's values are divided: keys of `best_of` name the combination, others the cell.
        values = {key: value for key, value in run.values.items() if key not in best_of}
        best_of_values = {key: value for key, value in run.values.items() if key in best_of}
        cell = Cell.from_values(run.method, values)
        combination = Cell.from_values("", best_of_values)

        combinations = groups.setdefault(cell, {})
        combinations.setdefault(combination, []).append(run)
    return groups


def best_combination(combinations: Mapping[Cell, Sequence[RunResult]], best_in: str) -> Cell:
    """Return the values of the keys of `best_of` whose runs are best in a measure.

    Values come first for which all seeds have a number. A run that diverged has none, nor has the
    time to a goal that is not reached. Then the mean over the seeds decides, for times and rates
    that of the logarithms.

    Args:
        combinations: The runs of a cell by the values of the keys of `best_of`.
        best_in: The measure.
    """
    return min(combinations, key=lambda combination: _rank(combinations[combination], best_in))


def _rank(runs: Sequence[RunResult], best_in: str) -> tuple[int, float]:
    """Return by what runs are sorted, the best first: runs without a number, then the mean."""
    measure = measure_of(best_in)
    numbers = np.array([number_of_run(best_in, run, run) for run in runs], dtype=np.float64)
    if measure.is_ratio:
        # A logarithm that is not finite counts as no number.
        with np.errstate(all="ignore"):
            numbers = np.log(numbers)
    finite_numbers = numbers[np.isfinite(numbers)]
    num_missing = len(runs) - len(finite_numbers)
    mean = math.inf
    if len(finite_numbers):
        mean = float(finite_numbers.mean())
    if not measure.lower_is_better:
        mean = -mean
    return num_missing, mean


def resolved_measure(
    groups: Mapping[Cell, Mapping[Cell, Sequence[RunResult]]], cell: Cell, name: str
) -> str:
    """Return a measure of a cell; the time to the best accuracy becomes that to hold a number.

    The best accuracy is the highest mean over the seeds of the validation accuracy of the last
    three epochs. It is that of any method, each at its best, in any situation. So times in several
    situations are to one accuracy. Methods that vary other keys have the cell's values of them.

    Args:
        groups: All runs of the study, from `grouped_runs`.
        cell: The cell.
        name: The measure, such as `seconds_to_best=0.01`.
    """
    distance = distance_to_best(name)
    if distance is None:
        return name
    values = cell.in_any_situation.plain_values
    accuracies = []
    for rival, combinations in groups.items():
        if not rival.matches(values):
            continue
        runs = combinations[best_combination(combinations, _FINAL_ACCURACY)]
        accuracies_of_runs = [number_of_run(_FINAL_ACCURACY, run, run) for run in runs]
        finite = [accuracy for accuracy in accuracies_of_runs if math.isfinite(accuracy)]
        if finite:
            accuracies.append(float(np.mean(finite)))
    # Where all runs diverged, no run reaches any goal.
    best_accuracy = max(accuracies, default=1.0)
    return f"seconds_to_hold={max(best_accuracy - distance, 0.0):.6f}"


def edges_of_sweep(combinations: Mapping[Cell, Sequence[RunResult]], best: Cell) -> dict[str, str]:
    """Return the keys of `best_of` whose best value is at an edge of those tried, and which edge.

    The edge is the "lowest" or the "highest" value, or the "only one". Keys of values that are no
    numbers have no edge.

    Examples:
        >>> rates = {Cell("", (("train.learning_rate", rate),)): [] for rate in ("0.1", "0.3")}
        >>> edges_of_sweep(rates, next(iter(rates)))
        {'train.learning_rate': 'lowest'}
    """
    edges = {}
    for key, best_value in best.plain_values.items():
        values = [combination.plain_values[key] for combination in combinations]
        if not all(is_number(value) for value in values):
            continue
        lowest, highest = min(values), max(values)
        if lowest == highest:
            edges[key] = "only one"
        elif best_value == lowest:
            edges[key] = "lowest"
        elif best_value == highest:
            edges[key] = "highest"
    return edges


def is_number(value: Any) -> bool:
    """Return whether a value of a varied key is a number, which truth values are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
