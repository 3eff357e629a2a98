"""Which methods are fastest in each situation of a study, and cannot be told apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Self

import numpy as np
import pandas as pd

from hep_studies.cells import SITUATION, Cell
from hep_studies.measures import measure_of, number_of_run
from hep_studies.run_result import RunResult
from hep_studies.shares import share_interval
from hep_studies.study import Claim
from hep_studies.study_result import StudyResult
from hep_studies.time_errors import TimeErrors, time_errors
from hep_studies.tuning import Tuning, edges_of_sweep
from hep_studies.verdicts import LEVEL, Difference, holm_levels

#: The measure by which methods are fastest: the time to within a point of the best accuracy.
GOAL: Final = "seconds_to_best=0.01"
#: Share of its runs with which a method must reach the goal.
REQUIRED_SHARE: Final = 0.8
#: Setting that gives workers other data than their neighbours.
_SKEW: Final = "train.skew"


class GoalTimes(NamedTuple):
    """How many runs of a method reach the goal, and when.

    A run that misses it counts with its whole time, the least that it would need.
    """

    num_runs: int
    num_reached: int
    log_seconds: pd.Series
    """Logarithm of the time of each run that did not diverge [s], indexed by seed."""
    log_resolution: float
    """Mean logarithm of the times over those of the validations before, by which they may be
    shorter."""

    @classmethod
    def of_runs(cls, runs: Sequence[RunResult], goal: str) -> Self:
        """Return the times of runs to a goal. `goal`: the measure of the time."""
        lower_bound = measure_of(goal).lower_bound
        seconds = {}
        seconds_before = {}
        for run in runs:
            if run.has_diverged:
                continue
            time = number_of_run(goal, run, run)
            if lower_bound is not None and math.isfinite(time):
                seconds[run.seed] = time
                seconds_before[run.seed] = lower_bound(run)
            else:
                seconds[run.seed] = number_of_run("seconds", run, run)
        log_seconds = np.log(pd.Series(seconds, dtype=np.float64))
        log_seconds_before = np.log(pd.Series(seconds_before, dtype=np.float64))
        # A run that misses the goal needs no less than its whole time.
        log_resolutions = (log_seconds - log_seconds_before).fillna(0.0)
        return cls(len(runs), len(seconds_before), log_seconds, float(log_resolutions.mean()))

    @property
    def seconds(self) -> float:
        """Geometric mean of the times [s]; NaN without any."""
        return math.exp(self.log_seconds.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean over the seeds [s]; NaN below two runs."""
        return self.seconds * float(self.log_seconds.sem())

    @property
    def is_reached(self) -> bool:
        """Whether the required share of the runs reaches the goal."""
        return self.num_reached >= REQUIRED_SHARE * self.num_runs

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sorts the fastest first that reach the goal; others follow by their share."""
        missed_share = 0.0 if self.is_reached else 1 - self.num_reached / self.num_runs
        return not self.is_reached, missed_share, _sortable(self.seconds)

    def is_share_too_low(self, level: float) -> bool:
        """Tell whether the interval of the share that reaches the goal lies below the required one.

        The interval is exact (Clopper and Pearson 1934), for any number of runs.
        """
        return share_interval(self.num_reached, self.num_runs, level).high < REQUIRED_SHARE


def largest_count_left_out(num_runs: int, num_rivals: int) -> int | None:
    """Return how many of the runs may reach the goal at most for a share that is too low.

    None if no share of so few runs is known to be too low. The level is the strictest of Holm.
    """
    level = LEVEL / max(num_rivals, 1)
    counts = [
        count
        for count in range(num_runs)
        if share_interval(count, num_runs, level).high < REQUIRED_SHARE
    ]
    return max(counts, default=None)


class Contender(NamedTuple):
    """A method in a situation."""

    cell: Cell
    title: str
    times: GoalTimes
    num_diverged: int
    """Number of runs that diverged."""
    accuracy: float
    """Mean test accuracy; NaN if all runs diverged."""
    accuracy_error: float
    """Standard error of the mean over the seeds; NaN below two runs."""
    bytes_sent: float
    """Mean bytes per worker and epoch; NaN if all runs diverged."""
    behind: Difference
    """Logarithm of its time over that of the fastest method, paired by seed."""
    is_at_edge: bool
    """Whether it is fastest at the lowest or highest rate that was tried."""
    is_among_best: bool
    """Whether it cannot be told apart from the fastest method."""

    @property
    def factor(self) -> float:
        """Its time over that of the fastest method; NaN if no run reaches the goal."""
        return math.exp(self.behind.mean) if self.times.num_reached else math.nan

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

        None if no method reaches the goal with the required share of its runs.
        """
        return [contender for contender in self.contenders if contender.is_among_best]


def judge_situations(result: StudyResult) -> list[Situation]:
    """Return the situations of a study that have runs; none if the study varies no situation."""
    keys = situation_keys(result)
    if not keys:
        return []
    goal = result.resolved(Cell(""), GOAL)
    names_by_key = [result.study.all_values_of(key) for key in keys]
    situations = []
    for names in itertools.product(*names_by_key):
        values = dict(zip(keys, names, strict=True))
        cells = [cell for cell in result.cells(values=values) if _is_in(result, cell, values)]
        if cells:
            contenders = _judge_contenders(result, cells, goal)
            situations.append(Situation(names, float(goal.partition("=")[2]), contenders))
    return situations


def situation_keys(result: StudyResult) -> list[str]:
    """Return the varied keys of which the situations of a study are made."""
    return [key for key in result.study.vary if key.startswith(SITUATION)]


def _is_in(result: StudyResult, cell: Cell, values: Mapping[str, str]) -> bool:
    """Tell whether a method is in a situation: one worker has all data, none of it skewed."""
    is_skewed = any(
        _SKEW in result.study.situations[key.removeprefix(SITUATION)][name]
        for key, name in values.items()
    )
    return not (is_skewed and result.settings(cell).workers == 1)


def _judge_contenders(result: StudyResult, cells: Sequence[Cell], goal: str) -> list[Contender]:
    """Return the methods of a situation, the fastest first, with those that are among the best.

    The fastest method reaches the goal with the required share of its runs, in the shortest time.
    Another one is behind it if the interval of its share lies below the required one, or that of
    its factor above 1. Any method is wrongly left out with at most 5 % together (Holm).

    The same runs choose the fastest method. So the truly fastest one is missing among the best with
    a probability below 5 %, but one of several equals more often: 13 % of twelve, with 8 seeds.
    """
    contenders = [_contender(result, cell, goal) for cell in cells]
    contenders.sort(key=lambda contender: contender.times.rank)
    first = contenders[0]
    if not first.times.is_reached:
        return contenders
    # The fastest is not behind itself, without an error.
    fastest = first._replace(behind=Difference(0.0, 0.0, 0), is_among_best=True)

    rivals = []
    for contender in contenders[1:]:
        behind = _time_behind(result, contender, fastest, goal)
        rivals.append(contender._replace(behind=behind))
    levels = holm_levels([partial(_is_behind, rival) for rival in rivals])

    judged = [fastest]
    for rival, level in zip(rivals, levels, strict=True):
        is_behind = _is_behind(rival, level)
        judged.append(rival._replace(is_among_best=not is_behind))
    return judged


def _contender(result: StudyResult, cell: Cell, goal: str) -> Contender:
    """Return a method in a situation, not yet compared with the fastest one.

    It stands at the settings at which it is fastest. `goal`: the measure of its time.
    """
    combinations = result.groups[cell]
    times = {
        combination: GoalTimes.of_runs(runs, goal) for combination, runs in combinations.items()
    }
    fastest = min(combinations, key=lambda combination: times[combination].rank)
    tuning = Tuning(at=fastest.plain_values)
    accuracies = result.numbers(cell, "test_accuracy", tuning)
    return Contender(
        cell,
        result.title(cell.without(*cell.situation_keys)),
        times[fastest],
        sum(run.has_diverged for run in combinations[fastest]),
        float(accuracies.mean()),
        float(accuracies.sem()),
        float(result.numbers(cell, "bytes_sent", tuning).mean()),
        Difference(math.nan, math.nan, 0),
        is_at_edge=bool(edges_of_sweep(combinations, fastest)),
        is_among_best=False,
    )


def _sortable(seconds: float) -> float:
    """Return a time or factor to sort by: one that is not known comes last."""
    return math.inf if math.isnan(seconds) else seconds


def _time_behind(
    result: StudyResult, rival: Contender, fastest: Contender, goal: str
) -> Difference:
    """Return the logarithm of a method's time over that of the fastest, with its errors."""
    log_seconds = [fastest.times.log_seconds, rival.times.log_seconds]
    columns = pd.concat(log_seconds, axis=1, join="inner")
    claim = Claim(
        says="The fastest method is faster.",
        better={"method": fastest.cell.method},
        control=[{"method": rival.cell.method}],
        protocol="each at its best",
        measure=goal,
    )
    of_checks = time_errors(result, [fastest.cell, rival.cell], claim, columns).of_checks
    # The error of the simulated times counts where it is known; the page says where it is not.
    if not all(map(math.isfinite, of_checks)):
        of_checks = (0.0, 0.0)
    of_validations = (-rival.times.log_resolution, fastest.times.log_resolution)
    errors = TimeErrors(of_checks, of_validations)
    return Difference.from_seeds(columns[1] - columns[0], shifts=errors.shifts)


def _is_behind(rival: Contender, level: float) -> bool:
    """Tell whether a method is behind the fastest at a level: too few runs, or too slow."""
    low, _ = rival.behind.interval(level)
    return rival.times.is_share_too_low(level) or low > 0


class Record(NamedTuple):
    """How a method does in several situations of a study."""

    title: str
    num_situations: int
    """Number of situations that it is in."""
    num_best: int
    """Number of those in which it is among the best."""
    num_missed: int
    """Number in which less than the required share of its runs reaches the goal."""
    worst_factor: float
    """Its largest factor behind the fastest in the others; NaN without any."""

    @property
    def num_reached(self) -> int:
        """Number of situations in which the required share of its runs reaches the goal."""
        return self.num_situations - self.num_missed


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
        factors = [contender.factor for contender in contenders if contender.times.is_reached]
        finite_factors = [factor for factor in factors if math.isfinite(factor)]
        record = Record(
            title,
            len(contenders),
            sum(contender.is_among_best for contender in contenders),
            sum(not contender.times.is_reached for contender in contenders),
            max(finite_factors, default=math.nan),
        )
        records.append(record)
    return sorted(records, key=lambda record: (record.num_missed, _sortable(record.worst_factor)))


class DataGroup(NamedTuple):
    """The situations of a study that have the same data of workers."""

    name: str
    """Name of the data, such as "skewed"; empty in a study that does not vary them."""
    situations: list[Situation]
    records: list[Record]


def data_groups(result: StudyResult) -> list[DataGroup]:
    """Return the judged situations of a study by their data; none if it varies no situation."""
    situations_by_name: dict[str, list[Situation]] = {}
    for situation in judge_situations(result):
        situations_by_name.setdefault(_data_name(result, situation), []).append(situation)
    return [
        DataGroup(name, situations, method_records(situations))
        for name, situations in situations_by_name.items()
    ]


def _data_name(result: StudyResult, situation: Situation) -> str:
    """Return the name of a situation's data: that of the key of which a value skews them."""
    for key, name in zip(situation_keys(result), situation.names, strict=True):
        named_values = result.study.situations[key.removeprefix(SITUATION)]
        if any(_SKEW in values for values in named_values.values()):
            return name
    return ""
