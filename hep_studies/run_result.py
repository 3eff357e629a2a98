"""The result of one run of a study: what its best model predicts, and what its folder stores."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy.special import entr
from torch import nn

from hep_core.atomic_files import new_file
from training.loop.records import Record, drop_warmup_epochs
from training.loop.summary import (
    count_samples,
    summarize_rank,
    summarize_sums,
    utilisation,
)
from training.settings import TrainSettings
from training.workloads.workload import Workload

RESULT_FILE: Final = "result.json"
#: Kinds of work that count as training; validation and checkpoints do not.
_TRAINING: Final = ("read", "compute", "communicate", "wait")
#: Quantities of an epoch that the records of all workers hold with the same value.
_COMMON_QUANTITIES: Final = (
    "val_accuracy",
    "val_loss",
    "train_loss",
    "train_accuracy",
    "consensus_distance",
)
#: Quantities of pushes to a parameter server: the number of pushes by others since the worker's
#: pull, and the reduction of the push in percent. A record counts how often each value occurred.
_PUSH_QUANTITIES: Final = ("staleness", "scaling_percent")
#: Number of test events that the network predicts at once.
_TEST_BATCH: Final = 1024


@dataclass(frozen=True)
class Counts:
    """Which test events the best model of a run predicts correctly, and their weighted share."""

    num_events: int
    events: str
    """Which events, one bit for each, as base64."""
    weighted_accuracy: float
    """Correct share of the test split, with event and class weights."""

    @classmethod
    def from_mask(cls, is_correct: NDArray[np.bool_], weighted_accuracy: float) -> Self:
        """Return the counts of a mask (num_events,).

        Examples:
            >>> Counts.from_mask(np.array([True, False, True]), 0.6).is_correct
            array([ True, False,  True])
        """
        packed = base64.b64encode(np.packbits(is_correct).tobytes()).decode()
        return cls(len(is_correct), packed, weighted_accuracy)

    @property
    def is_correct(self) -> NDArray[np.bool_]:
        """Mask of the correctly predicted events, (num_events,), in the same order for all runs."""
        packed = np.frombuffer(base64.b64decode(self.events), dtype=np.uint8)
        return np.unpackbits(packed, count=self.num_events).astype(bool)


def encoded_test_weights(workload: Workload) -> str:
    """Return the weights of the test events, float32, as base64 for `StudyResult.test_weights`."""
    weights = workload.rows("test", TrainSettings()).rows.weights.numpy().astype(np.float32)
    return base64.b64encode(weights.tobytes()).decode()


def evaluate_on_test(
    workload: Workload, module: nn.Module, settings: TrainSettings
) -> tuple[Counts, float]:
    """Return the correct predictions of a trained network, and the loss of the best constant guess.

    The class of the highest probability is predicted, on the test split. The best constant guess
    predicts the weighted class fractions for every event; its cross-entropy is their entropy.
    The module is changed: it has the precision of the rows, and is in evaluation mode.
    """
    memory = workload.rows("test", settings)
    module = module.to(memory.rows.weights.dtype).eval()
    with torch.inference_mode():
        logits = [module(*batch.inputs) for batch in memory.batches(_TEST_BATCH)]
    probabilities = torch.softmax(torch.cat(logits).double(), dim=1).numpy()
    labels = memory.rows.labels.numpy()
    weights = memory.rows.weights.double().numpy()
    is_correct = np.asarray(probabilities.argmax(axis=1) == labels)
    weighted_accuracy = float(weights[is_correct].sum() / weights.sum())
    class_fractions = np.bincount(labels, weights) / weights.sum()
    return Counts.from_mask(is_correct, weighted_accuracy), float(entr(class_fractions).sum())


@dataclass(frozen=True)
class StoredResult:
    """The content of a run's `result.json`."""

    made_with: str
    """Version of the code of the run."""
    counts: Counts | None
    """None for a study of times, and for a run that diverged."""
    curves: dict[str, list[float]]
    """Quantities by epoch, see `hep_studies.measures.CURVES`."""
    numbers: dict[str, float]
    """Numbers of the whole run by name, see `numbers_of`."""
    wall_seconds: float | None = None
    """Time that the simulation of the run took on this machine; None for MPI and older runs."""


@dataclass(frozen=True)
class RunResult:
    """The result of one run, and which run of its study it is."""

    method: str
    values: dict[str, Any]
    """Values of the varied keys."""
    seed: int
    made_with: str
    """Version of the code of the run. This and the following are those of its `StoredResult`."""
    counts: Counts | None
    curves: dict[str, list[float]]
    numbers: dict[str, float]
    wall_seconds: float | None = None

    @property
    def has_diverged(self) -> bool:
        """Whether the run ended without a result: training stopped at a loss that is not finite."""
        return not self.curves


_STORED: Final = TypeAdapter(StoredResult)


def write_result(
    folder: Path,
    ranks: Sequence[Sequence[Record]],
    scores: tuple[Counts, float] | None,
    *,
    code: str,
    wall_seconds: float | None = None,
) -> None:
    """Write the result of a run into its folder.

    The result has the curves by epoch and the numbers of the whole run, both from the records.
    `ranks`: the records of each worker, one per epoch. `scores`: from `evaluate_on_test`; None if
    nothing is learnt. `code`: version of the code. `wall_seconds`: time that its simulation took.
    """
    counts = None
    numbers = numbers_of(ranks)
    if scores is not None:
        counts, numbers["guess_loss"] = scores
    _write(folder, StoredResult(code, counts, curves_of(ranks), numbers, wall_seconds))


def write_diverged(folder: Path, *, code: str, wall_seconds: float | None = None) -> None:
    """Write the result of a run that diverged: no predictions, no curves, and a mark."""
    mark = {"diverged": 1.0}
    _write(folder, StoredResult(code, None, curves={}, numbers=mark, wall_seconds=wall_seconds))


def _write(folder: Path, stored: StoredResult) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(folder / RESULT_FILE) as unfinished:
        unfinished.write_text(json.dumps(asdict(stored)), encoding="utf-8")


def read_result(folder: Path, method: str, values: dict[str, Any], seed: int) -> RunResult | None:
    """Return the result in the folder of a run; None if it is missing or damaged.

    `method`, `values` and `seed` say which run of the study it is, which the file does not.
    """
    try:
        text = (folder / RESULT_FILE).read_text(encoding="utf-8")
        stored = _STORED.validate_python(json.loads(text))
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None
    return RunResult(
        method,
        values,
        seed,
        stored.made_with,
        stored.counts,
        stored.curves,
        stored.numbers,
        stored.wall_seconds,
    )


def curves_of(ranks: Sequence[Sequence[Record]]) -> dict[str, list[float]]:
    """Return each quantity of an epoch as a list over the epochs, with six significant digits.

    Losses and accuracies are those of the average model of all workers. Times are means over the
    workers, quantities of pushes are means over all pushes. `ranks`: the records of each worker,
    one per epoch.
    """
    curves: defaultdict[str, list[float]] = defaultdict(list)
    for records in _by_epoch(ranks):
        # Of these quantities, the records of all workers have the same value.
        quantities = {name: records[0][name] for name in _COMMON_QUANTITIES}
        quantities["seconds"] = np.mean([record["seconds"] for record in records])
        quantities["communicate"] = np.mean([communication_seconds(record) for record in records])
        for name in _PUSH_QUANTITIES:
            quantities[name] = _mean_over_pushes(records, name)
        for name, value in quantities.items():
            curves[name].append(float(f"{value:.6g}"))
    return dict(curves)


def numbers_of(ranks: Sequence[Sequence[Record]]) -> dict[str, float]:
    """Return the numbers of the whole run by name, from the records of each worker.

    Counters of actions, such as averages, are sums over workers and epochs. Bytes are means per
    worker and epoch. Rates and utilisation leave out the first and the last epoch.
    """
    # The first worker's records also hold what is common to all workers.
    history = ranks[0]
    trained_ranks = [list(records) for records in ranks if records]
    summaries = [summarize_rank(records) for records in trained_ranks]
    # Workers may count different actions: a missing counter is 0.
    counters = {name for summary in summaries for name in summary["counted"]}
    bytes_sent = sum(summary["bytes_sent"] for summary in summaries)

    numbers: dict[str, Any] = {
        name: sum(summary.get(name, 0) for summary in summaries) for name in counters
    }
    numbers["diverged"] = 0.0
    numbers |= count_samples(history)
    numbers["best_epoch"] = history[-1]["best_epoch"]
    numbers["bytes_sent"] = bytes_sent / len(summaries) / len(history)
    numbers["utilisation"] = _utilisation(ranks)
    numbers["worker_val_accuracy"] = _worker_accuracy(trained_ranks)
    numbers |= rates(ranks)
    numbers |= summarize_sums(summaries)
    return {name: float(value) for name, value in numbers.items()}


def _utilisation(ranks: Sequence[Sequence[Record]]) -> float:
    """Return the share of the workers' training time in which they compute or read, 0 to 1."""
    times = []
    for records in ranks:
        times += [
            {"seconds_by_kind": _training_times(record)} for record in drop_warmup_epochs(records)
        ]
    return utilisation(times)


def _worker_accuracy(ranks: Sequence[Sequence[Record]]) -> float:
    """Return the mean validation accuracy of single models at the end of a run.

    The simulator validates single models of the first workers only. Without any, all workers have
    the same model.
    """
    last_records = [records[-1] for records in ranks]
    accuracies = [
        record["worker_val_accuracy"] for record in last_records if "worker_val_accuracy" in record
    ]
    return float(np.mean(accuracies)) if accuracies else float(last_records[0]["val_accuracy"])


def _training_times(record: Record) -> dict[str, float]:
    """Return the times of an epoch that count as training, by kind of work [s]."""
    times = record["seconds_by_kind"]
    return {activity: times.get(activity, 0.0) for activity in _TRAINING}


def training_seconds(record: Record) -> float:
    """Return the time of an epoch without validation and checkpoints [s]."""
    return float(sum(_training_times(record).values()))


def rates(ranks: Sequence[Sequence[Record]]) -> dict[str, float]:
    """Return the time per batch [s] and the events per second of all workers together.

    Validation and checkpoints do not count. Both are medians over the epochs without the first and
    last. The median is robust: a second of other work on the machine can make a short epoch five
    times longer. `ranks`: the records of each worker.

    Examples:
        >>> times = {"compute": 2.0, "validate": 9.0}
        >>> record = {"epoch": 0, "steps": 4, "samples": 64, "seconds_by_kind": times}
        >>> rates([[record], [record]])
        {'seconds_per_batch': 0.5, 'samples_per_second': 64.0}
    """
    seconds_per_batch = []
    samples_per_second = []
    for records in _by_epoch([drop_warmup_epochs(records) for records in ranks]):
        seconds = np.mean([training_seconds(record) for record in records])
        num_steps = np.mean([record["steps"] for record in records])
        num_samples = sum(record["samples"] for record in records)
        seconds_per_batch.append(seconds / num_steps)
        samples_per_second.append(num_samples / seconds)
    return {
        "seconds_per_batch": float(np.median(seconds_per_batch)),
        "samples_per_second": float(np.median(samples_per_second)),
    }


def communication_seconds(record: Mapping[str, Any]) -> float:
    """Return the communication time of a worker in an epoch [s], waiting for others included.

    As in the thesis, communication in the background (`hidden_seconds`) counts too, although the
    worker computes meanwhile.
    """
    times = record["seconds_by_kind"]
    seconds: float = times.get("communicate", 0.0) + times.get("wait", 0.0)
    return seconds + float(record.get("hidden_seconds", 0.0))


def _by_epoch(ranks: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """Return a list for each epoch, in order, with the records of all workers that have it."""
    epochs: defaultdict[int, list[Record]] = defaultdict(list)
    for records in ranks:
        for record in records:
            epochs[record["epoch"]].append(record)
    return [records for _, records in sorted(epochs.items())]


def _mean_over_pushes(records: Sequence[Record], name: str) -> float:
    """Return the mean of a quantity over the pushes of all workers; 0 without any."""
    total = 0
    num_pushes = 0
    for record in records:
        # The record counts how often each value occurred.
        for value, count in record.get(name, {}).items():
            total += int(value) * count
            num_pushes += count
    return total / num_pushes if num_pushes else 0.0
