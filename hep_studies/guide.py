"""Which methods are fastest in each situation of a study, and cannot be told apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from hep_studies.cells import Cell
from hep_studies.comparisons import compare_cells
from hep_studies.study import Claim
from hep_studies.study_result import StudyResult
from hep_studies.study_sections import SITUATION
from hep_studies.tuning import Tuning
from hep_studies.verdicts import Difference, holm_levels

#: The measure by which methods are fastest: the time to within a point of the best accuracy.
GOAL: Final = "seconds_to_best=0.01"


class Contender(NamedTuple):
    """A method in a situation."""

    cell: Cell
    title: str
    num_runs: int
    num_missed: int
    """Number of runs that do not reach the goal, those that diverged included."""
    num_diverged: int
    """Number of runs that diverged."""
    seconds: float
    """Geometric mean of the times to the goal of the other runs [s]; NaN without any."""
    error: float
    """Standard error of the mean over the seeds [s]; NaN below two runs."""
    accuracy: float
    """Mean test accuracy; NaN if all runs diverged."""
    accuracy_error: float
    """Standard error of the mean over the seeds; NaN below two runs."""
    bytes_sent: float
    """Mean bytes per worker and epoch; NaN if all runs diverged."""
    behind: Difference
    """Logarithm of its time over that of the fastest method, paired by seed; NaN if it misses the
    goal with a seed."""
    is_at_edge: bool
    """Whether it is fastest at the lowest or highest rate that was tried."""
    is_among_best: bool
    """Whether it cannot be told apart from the fastest method."""

    @property
    def factor(self) -> float:
        """Its time over that of the fastest method; NaN if it misses the goal with a seed."""
        return math.exp(self.behind.mean)

    @property
    def factor_error(self) -> float:
        """Standard error of the factor, from the spread over the seeds."""
        if not self.behind.num_seeds:
            return math.nan
        return self.factor * math.sqrt(self.behind.seed_variance / self.behind.num_seeds)


class Situation(NamedTuple):
    """A situation of a study with its methods, the fastest first."""

    names: tuple[str, ...]
    """The names that the situation is made of, such as a cluster, workers and data."""
    goal: float
    """The validation accuracy to reach."""
    contenders: list[Contender]

    @property
    def best(self) -> list[Contender]:
        """The methods that cannot be told apart from the fastest.

        None if even that one misses the goal with a seed.
        """
        return [contender for contender in self.contenders if contender.is_among_best]


def judge_situations(result: StudyResult) -> list[Situation]:
    """Return the situations of a study that have runs; none if the study varies no situation."""
    keys = [key for key in result.study.vary if key.startswith(SITUATION)]
    if not keys:
        return []
    names_by_key = [result.study.all_values_of(key) for key in keys]
    situations = []
    for names in itertools.product(*names_by_key):
        values = dict(zip(keys, names, strict=True))
        if result.cells(values=values):
            situations.append(_judge_situation(result, values))
    return situations


def _judge_situation(result: StudyResult, values: Mapping[str, str]) -> Situation:
    """Return a situation with the methods that have runs in it.

    The fastest method reaches the goal with the most seeds, and then in the shortest time. Another
    one differs from it if it misses the goal with a seed, or if the interval of its factor lies
    above 1. Intervals are of 95 % for all methods of the situation together (Holm).

    The same runs choose the fastest method. So the truly fastest one is missing among the best with
    a probability below 5 %, but one of several equals more often: 13 % of twelve, with 8 seeds.
    """
    # The situation of a cell that varies all keys; one worker alone varies none of them.
    goal = result.resolved(Cell.from_values("", values), GOAL)
    contenders = [_contender(result, cell, goal) for cell in result.cells(values=values)]
    contenders.sort(key=lambda contender: (contender.num_missed, _sortable(contender.seconds)))
    # A method that misses the goal differs from the fastest without an interval.
    reaching = [contender for contender in contenders if not contender.num_missed]
    missing = [contender for contender in contenders if contender.num_missed]
    judged = [*_judge_reaching(result, reaching, goal), *missing]
    return Situation(tuple(values.values()), float(goal.partition("=")[2]), judged)


def _judge_reaching(
    result: StudyResult, contenders: Sequence[Contender], goal: str
) -> list[Contender]:
    """Return methods that reach the goal with all seeds, compared with the fastest, the first."""
    if not contenders:
        return []
    # The fastest is not behind itself, without an error.
    fastest = contenders[0]._replace(behind=Difference(0.0, 0.0, 0), is_among_best=True)
    rivals = []
    for contender in contenders[1:]:
        behind = _time_behind(result, contender.cell, fastest.cell, goal)
        rivals.append(contender._replace(behind=behind))
    levels = holm_levels([partial(_is_slower, rival.behind) for rival in rivals])
    judged = [fastest]
    for rival, level in zip(rivals, levels, strict=True):
        is_among_best = not _is_slower(rival.behind, level)
        judged.append(rival._replace(is_among_best=is_among_best))
    return judged


def _contender(result: StudyResult, cell: Cell, goal: str) -> Contender:
    """Return a method in a situation, not yet compared with the fastest one.

    It stands at the settings at which it is fastest. `goal`: the measure of its time.
    """
    fastest = Tuning(best_in=goal)
    times = result.numbers(cell, goal, fastest)
    log_times = np.log(times[np.isfinite(times)])
    seconds = math.exp(log_times.mean())
    accuracies = result.numbers(cell, "test_accuracy", fastest)
    num_runs = len(result.runs_of(cell, fastest))
    situation_keys = [key for key in cell.plain_values if key.startswith(SITUATION)]
    return Contender(
        cell,
        result.title(cell.without(*situation_keys)),
        num_runs,
        num_runs - len(log_times),
        num_runs - len(times),
        seconds,
        seconds * float(log_times.sem()),
        float(accuracies.mean()),
        float(accuracies.sem()),
        float(result.numbers(cell, "bytes_sent", fastest).mean()),
        Difference(math.nan, math.nan, 0),
        is_at_edge=bool(result.edges(cell, goal)),
        is_among_best=False,
    )


def _sortable(seconds: float) -> float:
    """Return a time or factor to sort by: one that is not known comes last."""
    return math.inf if math.isnan(seconds) else seconds


def _time_behind(result: StudyResult, cell: Cell, fastest: Cell, goal: str) -> Difference:
    """Return the logarithm of a method's time over that of the fastest, with its errors."""
    claim = Claim(
        says="The fastest method is faster.",
        better={"method": fastest.method},
        control=[{"method": cell.method}],
        protocol="each at its best",
        measure=goal,
    )
    comparison = compare_cells(result, fastest, cell, claim)
    # The error of the simulated times counts where it is known; the page says where it is not.
    if not all(map(math.isfinite, comparison.time_errors.of_checks)):
        comparison = comparison.without_errors("of_checks")
    return comparison.difference


def _is_slower(behind: Difference, level: float) -> bool:
    """Tell whether the interval of a method's factor lies above 1 at a level."""
    low, _ = behind.interval(level)
    return low > 0


class Record(NamedTuple):
    """How a method does in all situations of a study."""

    title: str
    num_best: int
    """Number of situations in which it is among the best."""
    num_missed: int
    """Number of situations in which it misses the goal with a seed."""
    worst_factor: float
    """Its largest factor behind the fastest in the other situations; NaN without any."""


def method_records(situations: Sequence[Situation]) -> list[Record]:
    """Return the record of each method; first the one that disappoints least.

    It misses the goal in the fewest situations, and then has the smallest worst factor.
    """
    contenders_by_title: dict[str, list[Contender]] = {}
    for situation in situations:
        for contender in situation.contenders:
            contenders_by_title.setdefault(contender.title, []).append(contender)
    records = []
    for title, contenders in contenders_by_title.items():
        factors = [contender.factor for contender in contenders if not contender.num_missed]
        finite_factors = [factor for factor in factors if math.isfinite(factor)]
        record = Record(
            title,
            sum(contender.is_among_best for contender in contenders),
            sum(contender.num_missed > 0 for contender in contenders),
            max(finite_factors, default=math.nan),
        )
        records.append(record)
    return sorted(records, key=lambda record: (record.num_missed, _sortable(record.worst_factor)))
