"""Results of a search: scores of trials, their ranking, paired differences, the Pareto front."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from training.gridsearch.search import Curves
from training.gridsearch.settings import Trial

#: Probability that noise alone puts a setting ahead of another.
_SIGNIFICANCE: Final = 0.05


class Cost(NamedTuple):
    """The size or the time of a network, with its standard error."""

    value: float
    error: float = 0.0


class Lead(NamedTuple):
    """How far one score is ahead of another: the mean difference over the same folds."""

    value: float
    error: float
    """Standard error, corrected for the events that the trainings of the folds share."""
    num_folds: int

    @classmethod
    def from_differences(cls, differences: Sequence[float]) -> Lead:
        """Compute the lead from the difference in each fold.

        Trainings share most of their events, so folds vary less than independent samples do.
        Therefore the variance of the folds is multiplied not by 1 / num_folds alone, but by that
        plus the ratio of validation to training events (Nadeau and Bengio 2003).

        Examples:
            >>> lead = Lead.from_differences([0.02, 0.04])
            >>> round(lead.value, 3), round(lead.error, 4)
            (0.03, 0.0173)
        """
        num_folds = len(differences)
        test_to_train_ratio = 1 / (num_folds - 1)
        variance = float(np.var(differences, ddof=1)) * (1 / num_folds + test_to_train_ratio)
        return cls(float(np.mean(differences)), math.sqrt(variance), num_folds)

    @property
    def is_beyond_noise(self) -> bool:
        """Return whether the first score is higher by more than noise explains.

        This is a one-sided t-test at 5 %: the lead must be positive, and at least as many standard
        errors as the critical value of Student's distribution.
        """
        # Spark's driver and tasks load this module, and have no use for 10 MB of functions.
        from scipy.special import stdtrit  # noqa: PLC0415

        critical_value = -stdtrit(self.num_folds - 1, _SIGNIFICANCE)
        return self.value > 0 and self.value >= critical_value * self.error


class Score(NamedTuple):
    """Score of one trial over its folds."""

    trial: Trial
    num_parameters: int
    accuracies: list[float]
    """Weighted validation accuracy of each fold at the best epoch."""
    loss: float
    """Validation loss at the best epoch: mean over the folds."""
    best_epoch: int
    """Epoch of the lowest validation loss, averaged over the folds; from 1, one for all folds."""
    latency: Cost = Cost(math.nan, math.nan)
    """Time of one event in onnxruntime [us]; NaN before its measurement."""

    @property
    def accuracy(self) -> float:
        """Mean validation accuracy over the folds."""
        return float(np.mean(self.accuracies))

    def lead_over(self, rival: Score) -> Lead:
        """Return how far this score's accuracy is ahead of another's, compared fold by fold."""
        pairs = zip(self.accuracies, rival.accuracies, strict=True)
        return Lead.from_differences(
            [accuracy - rival_accuracy for accuracy, rival_accuracy in pairs]
        )

    def to_json(self, best: Score) -> dict[str, Any]:
        """Return the content for the result's JSON, with the distance to the best score."""
        behind = best.lead_over(self)
        return {
            **self._asdict(),
            "trial": self.trial._asdict(),
            "latency": self.latency._asdict(),
            "accuracy": self.accuracy,
            "behind": behind.value,
            "behind_error": behind.error,
        }


def score_trial(trial: Trial, num_parameters: int, folds: Sequence[Curves]) -> Score | None:
    """Score a trial at the epoch of the lowest validation loss, averaged over the folds.

    All folds are scored at this epoch. The curves may be longer than the trial's epochs; only its
    own count.

    Returns:
        The score; None if no epoch has finite losses in all folds.
    """
    losses = np.mean([curves.val_loss[: trial.epochs] for curves in folds], axis=0)
    is_finite = np.isfinite(losses)
    if not is_finite.any():
        return None
    best = int(np.argmin(np.where(is_finite, losses, np.inf)))
    accuracies = [curves.val_accuracy[best] for curves in folds]
    return Score(trial, num_parameters, accuracies, float(losses[best]), best + 1)


def rank_scores(scores: Iterable[Score]) -> list[Score]:
    """Sort scores by accuracy, the highest first; then by lower loss, then by smaller network."""
    return sorted(
        scores,
        key=lambda score: (-score.accuracy, score.loss, score.num_parameters, score.trial),
    )


def select_score(scores: Iterable[Score], *, one_standard_error: bool = False) -> Score:
    """Return the best score, or the smallest network within one standard error of it.

    A score is within it if the best one is ahead by no more than the standard error of this lead.
    """
    ranking = rank_scores(scores)
    best = ranking[0]
    if not one_standard_error:
        return best
    candidates: list[Score] = []
    for score in ranking:
        lead = best.lead_over(score)
        if lead.value <= lead.error:
            candidates.append(score)
    return min(candidates, key=lambda score: score.num_parameters)


def parameter_cost(score: Score) -> Cost:
    """Return the number of parameters of a score, as its cost in memory."""
    return Cost(score.num_parameters)


def latency_cost(score: Score) -> Cost:
    """Return the latency of a score, as its cost in time [us]."""
    return score.latency


def pareto_front(
    scores: Iterable[Score], cost: Callable[[Score], Cost] = parameter_cost
) -> list[Score]:
    """Return the scores that are worth their cost, the cheapest first.

    From the cheapest on, a score joins the front if it is ahead of the last one in the front by
    more than noise. Scores that cost at most two standard errors more than the cheapest remaining
    one are a tie, for which the first in rank stands.

    Examples:
        >>> trial = Trial((4,), 16, 0.1, 1)
        >>> tried = [(9, [0.8, 0.8]), (5, [0.8, 0.8]), (20, [0.9, 0.91]), (30, [0.8, 1.03])]
        >>> scores = [Score(trial, size, accuracies, 0.0, 1) for size, accuracies in tried]
        >>> [score.num_parameters for score in pareto_front(scores)]
        [5, 20]
    """
    front: list[Score] = []
    # Each round takes the cheapest remaining scores that are tied, and leaves the dearer ones.
    remaining = sorted(scores, key=lambda score: cost(score).value)
    while remaining:
        cheapest = cost(remaining[0])
        tied: list[Score] = []
        dearer: list[Score] = []
        for score in remaining:
            value, error = cost(score)
            is_tied = value - cheapest.value <= 2 * math.hypot(error, cheapest.error)
            (tied if is_tied else dearer).append(score)
        best = rank_scores(tied)[0]
        if not front or best.lead_over(front[-1]).is_beyond_noise:
            front.append(best)
        remaining = dearer
    return front


def makespan(seconds: Iterable[float], num_slots: int) -> float:
    """Return the time from the first start to the last end of trainings on some slots [s].

    Each free slot takes the longest remaining training (Graham 1969).

    `seconds`: time of each training [s]. `num_slots`: trainings that run at the same time.

    Examples:
        >>> makespan([3.0, 2.0, 2.0, 1.0], 2)
        4.0
        >>> makespan([3.0, 2.0, 2.0, 1.0], 9)
        3.0
    """
    # A heap of the times at which the slots become free; the first item is the earliest.
    busy_until = [0.0] * num_slots
    for training_seconds in sorted(seconds, reverse=True):
        heapq.heapreplace(busy_until, busy_until[0] + training_seconds)
    return max(busy_until)


def speed_ups(seconds: Sequence[float], max_slots: int) -> dict[int, float]:
    """Return the speed-up of the trainings on 1, 2, 4 ... slots over one slot, by slots.

    It is the ideal one of `makespan`, without the start of tasks. `seconds`: time of each training.

    Examples:
        >>> speed_ups([1.0, 1.0, 1.0], 4)
        {1: 1.0, 2: 1.5, 4: 3.0}
    """
    speed_up_by_slots: dict[int, float] = {}
    num_slots = 1
    while num_slots <= max_slots:
        speed_up_by_slots[num_slots] = sum(seconds) / makespan(seconds, num_slots)
        num_slots *= 2
    return speed_up_by_slots
