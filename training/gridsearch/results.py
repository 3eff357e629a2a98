"""Results of a search: scores of the trials, their ranking and paired differences, and the Pareto front."""

from __future__ import annotations

import heapq
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.special import stdtrit
from scipy.stats import sem

from features.columns import hlf_names
from features.dataset import FeatureDataset
from models.export.latency import measure_latency
from models.export.onnx_classifier import OnnxClassifier
from models.export.onnx_export import export_onnx
from models.networks.hlf_settings import HlfSettings
from models.saved_model import build, model_spec
from training.gridsearch.settings import Trial
from training.gridsearch.trainings import Curves

#: Probability that noise alone puts a setting ahead of another.
_LEVEL: Final = 0.05


class Cost(NamedTuple):
    """What a network takes, with its standard error."""

    value: float
    error: float = 0.0


class Lead(NamedTuple):
    """Mean difference of two scores over the same folds."""

    value: float
    error: float
    """Standard error. Trainings share most of their events, so that folds vary less than other samples would."""
    num_folds: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> Lead:
        """From the difference in each fold; the error is corrected for the common events (Nadeau and Bengio 2003).

        Examples:
            >>> found = Lead.of([0.02, 0.04])
            >>> round(found.value, 3), round(found.error, 4)
            (0.03, 0.0173)
        """
        folds = len(differences)
        variance = float(np.var(differences, ddof=1)) * (1 / folds + 1 / (folds - 1))
        return cls(float(np.mean(differences)), math.sqrt(variance), folds)

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the first score is higher by more than noise explains, at 5 %."""
        return self.value > 0 and self.value >= -stdtrit(self.num_folds - 1, _LEVEL) * self.error


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
    rung: int = 0
    """Last round of successive halving that the trial entered, from 0."""

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the folds."""
        return float(np.mean(self.accuracies))

    def ahead_of(self, other: Score) -> Lead:
        """Difference of the accuracies to another score, fold by fold."""
        return Lead.of([a - b for a, b in zip(self.accuracies, other.accuracies, strict=True)])

    def to_json(self, best: Score) -> dict[str, Any]:
        """Content for the result's JSON, with the paired difference to the best score."""
        behind = best.ahead_of(self)
        return {
            **self._asdict(),
            "trial": self.trial._asdict(),
            "latency": self.latency._asdict(),
            "accuracy": self.accuracy,
            "behind": behind.value,
            "behind_error": behind.error,
        }


def score(
    trial: Trial, num_parameters: int, folds: Sequence[Curves], *, rung: int = 0
) -> Score | None:
    """The score of a trial from the curves of its folds, which may be longer than the trial's epochs.

    The epoch of the lowest mean loss counts for all folds.

    Returns:
        The score; None if there is no epoch at which the losses of all folds are finite.
    """
    losses = np.mean([curves.val_loss[: trial.epochs] for curves in folds], axis=0)
    if not np.isfinite(losses).any():
        return None
    best = int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))
    accuracies = [curves.val_accuracy[best] for curves in folds]
    return Score(trial, num_parameters, accuracies, float(losses[best]), best + 1, rung=rung)


def ranked(scores: Sequence[Score]) -> list[Score]:
    """Scores by round of halving and accuracy, the highest first; then the lower loss, then the smaller network."""
    return sorted(
        scores,
        key=lambda each: (-each.rung, -each.accuracy, each.loss, each.num_parameters, each.trial),
    )


def chosen(scores: Sequence[Score], *, one_standard_error: bool = False) -> Score:
    """The score to use: the first in rank, or the smallest network within one standard error of it."""
    order = ranked(scores)
    if not one_standard_error:
        return order[0]
    gaps = [(each, order[0].ahead_of(each)) for each in order if each.rung == order[0].rung]
    return min(
        (each for each, gap in gaps if gap.value <= gap.error), key=lambda each: each.num_parameters
    )


def num_parameters(each: Score) -> Cost:
    """Number of parameters of a score, as its cost in memory."""
    return Cost(each.num_parameters)


def latency(each: Score) -> Cost:
    """Latency of a score, as its cost in time."""
    return each.latency


def pareto_front(
    scores: Sequence[Score], cost: Callable[[Score], Cost] = num_parameters
) -> list[Score]:
    """Scores of higher accuracy than any cheaper one by more than noise, the cheapest first.

    Of scores whose costs differ by less than two standard errors, the first in rank stands for all.

    Examples:
        >>> trial = Trial((4,), 16, 0.1, 1)
        >>> tried = [(9, [0.8, 0.8]), (5, [0.8, 0.8]), (20, [0.9, 0.91]), (30, [0.8, 1.03])]
        >>> found = [Score(trial, size, accuracies, 0.0, 1) for size, accuracies in tried]
        >>> [each.num_parameters for each in pareto_front(found)]
        [5, 20]
    """
    front: list[Score] = []
    left = sorted(scores, key=lambda each: cost(each).value)
    while left:
        cheapest = cost(left[0])
        noise = [2 * math.hypot(cost(each).error, cheapest.error) for each in left]
        tied = [
            each
            for each, most in zip(left, noise, strict=True)
            if cost(each).value - cheapest.value <= most
        ]
        best = ranked(tied)[0]
        if not front or best.ahead_of(front[-1]).is_beyond_noise:
            front.append(best)
        left = [each for each in left if each not in tied]
    return front


def makespan(seconds: Sequence[float], slots: int) -> float:
    """Time from the first start to the last end if each free slot takes the longest remaining training (Graham 1969).

    `seconds`: time of each training [s].

    Examples:
        >>> makespan([3.0, 2.0, 2.0, 1.0], 2)
        4.0
        >>> makespan([3.0, 2.0, 2.0, 1.0], 9)
        3.0
    """
    busy = [0.0] * slots
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy)


def speed_ups(seconds: Sequence[float], most_slots: int) -> dict[int, float]:
    """Speed-up of the trainings on 1, 2, 4 ... slots over one slot, without the start-up of the tasks.

    Examples:
        >>> speed_ups([1.0, 1.0, 1.0], 4)
        {1: 1.0, 2: 1.5, 4: 3.0}
    """
    numbers = (1 << power for power in range(most_slots.bit_length()))
    return {slots: sum(seconds) / makespan(seconds, slots) for slots in numbers}


#: Rounds over all networks, and calls of each network in a round.
_ROUNDS: Final = 5
_CALLS: Final = 200
_EVENTS: Final = 64


def latencies(
    architectures: Iterable[tuple[int, ...]],
    dataset: FeatureDataset,
    *,
    generator: np.random.Generator,
) -> dict[tuple[int, ...], Cost]:
    """Time [us] of one event through each network in onnxruntime, on one core: median of a few rounds, and its error.

    The networks are untrained, since the latency does not depend on the weights. They take turns, so that other work on
    the machine delays all of them and shows in the error.

    `architectures`: widths of the hidden layers of each network.
    """
    columns = {"hlf": generator.normal(size=(_EVENTS, len(hlf_names()))).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        networks = {
            hidden: _exported(hidden, dataset, Path(folder))
            for hidden in sorted(set(architectures))
        }
    times: dict[tuple[int, ...], list[float]] = {hidden: [] for hidden in networks}
    for _ in range(_ROUNDS):
        for hidden, network in networks.items():
            times[hidden].append(measure_latency(network, columns, calls=_CALLS).p50)
    return {
        hidden: Cost(float(np.median(found)), float(sem(found))) for hidden, found in times.items()
    }


def _exported(hidden: tuple[int, ...], dataset: FeatureDataset, folder: Path) -> OnnxClassifier:
    spec = model_spec(HlfSettings(hidden=list(hidden)), dataset)
    path = folder / "candidate.onnx"
    export_onnx(build(spec), spec, path)
    return OnnxClassifier.load(path)
