"""The result of one run of a study: what its best model predicts, and what is stored in its folder."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from operator import itemgetter
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
from training.loop.summary import count_samples, summarize_rank, utilisation
from training.settings import TrainSettings
from training.workloads.workload import Workload

FILE: Final = "result.json"
#: Kinds of work that count as training; validation and checkpoints do not.
_TRAINING: Final = ("read", "compute", "communicate", "wait")
#: What the records say about all workers, by epoch.
_OF_ALL: Final = ("val_accuracy", "val_loss", "train_loss", "train_accuracy", "consensus_distance")
#: What the records count of pushes, by epoch: how often each value came.
_COUNTED: Final = ("staleness", "scaling_percent")
_AT_ONCE: Final = 1024


@dataclass(frozen=True)
class Counts:
    """What the best model of a run predicts correctly of the test split."""

    num_events: int
    events: str
    """Which events, one bit each, as base64."""
    weighted_accuracy: float
    """Share of the weight of the test split, with event and class weights."""

    @classmethod
    def of(cls, is_correct: NDArray[np.bool_], weighted_accuracy: float) -> Self:
        """From a mask (num_events,).

        Examples:
            >>> Counts.of(np.array([True, False, True]), 0.6).is_correct
            array([ True, False,  True])
        """
        packed = base64.b64encode(np.packbits(is_correct).tobytes()).decode()
        return cls(len(is_correct), packed, weighted_accuracy)

    @property
    def is_correct(self) -> NDArray[np.bool_]:
        """Mask of the correctly predicted events, (num_events,); the order is the same for all runs."""
        packed = np.frombuffer(base64.b64decode(self.events), dtype=np.uint8)
        return np.unpackbits(packed, count=self.num_events).astype(bool)


def weights_of_test(workload: Workload) -> str:
    """Weights of the test events, for `hep_studies.study_result.StudyResult`."""
    weights = workload.rows("test", TrainSettings()).rows.weights.numpy().astype(np.float32)
    return base64.b64encode(weights.tobytes()).decode()


def scores_of(
    workload: Workload, module: nn.Module, settings: TrainSettings
) -> tuple[Counts, float]:
    """What a trained network predicts correctly of the test split, and the loss of the best constant guess.

    The class of the highest probability is right; the loss is the entropy of the weighted shares of the classes.
    """
    memory = workload.rows("test", settings)
    module = module.to(memory.rows.weights.dtype).eval()
    with torch.inference_mode():
        logits = [module(*batch.inputs) for batch in memory.batches(_AT_ONCE)]
    probabilities = torch.softmax(torch.cat(logits).double(), dim=1).numpy()
    labels, weights = memory.rows.labels.numpy(), memory.rows.weights.double().numpy()
    is_correct = np.asarray(probabilities.argmax(axis=1) == labels)
    counts = Counts.of(is_correct, float(weights[is_correct].sum() / weights.sum()))
    return counts, float(entr(np.bincount(labels, weights) / weights.sum()).sum())


@dataclass(frozen=True)
class RunResult:
    """The result of one run."""

    method: str
    values: dict[str, Any]
    """Values of the varied keys."""
    seed: int
    made_with: str
    """Version of the code of the run."""
    counts: Counts | None
    """None for a study of times, and for a run that diverged."""
    curves: dict[str, list[float]]
    """Quantities by epoch, see `hep_studies.measures.CURVES`."""
    numbers: dict[str, float]
    """Numbers of the whole run."""

    @property
    def has_diverged(self) -> bool:
        """Whether it ended without a result."""
        return not self.curves


_READ: Final = TypeAdapter(RunResult)


def write_result(
    folder: Path,
    ranks: Sequence[Sequence[Record]],
    scores: tuple[Counts, float] | None,
    *,
    code: str,
) -> None:
    """Write the result of a run: the records of its workers, and its `scores_of`, None if nothing is learnt."""
    counts, numbers = None, numbers_of(ranks)
    if scores is not None:
        counts, numbers["guess_loss"] = scores
    _write(
        folder,
        {"made_with": code, "counts": counts, "curves": curves_of(ranks), "numbers": numbers},
    )


def write_diverged(folder: Path, *, code: str) -> None:
    """Write the result of a run that diverged: it predicts nothing."""
    _write(folder, {"made_with": code, "counts": None, "curves": {}, "numbers": {"diverged": 1.0}})


def _write(folder: Path, content: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(folder / FILE) as unfinished:
        unfinished.write_text(json.dumps(content, default=asdict), encoding="utf-8")


def read_result(folder: Path, method: str, values: dict[str, Any], seed: int) -> RunResult | None:
    """The result that is in the folder of a run; None if there is none, or a damaged one: the run is made again."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        own = {"method": method, "values": values, "seed": seed}
        return _READ.validate_python(content | own)
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None


def curves_of(ranks: Sequence[Sequence[Record]]) -> dict[str, list[float]]:
    """Quantities by epoch, averaged over the workers [s]; those of the average model as recorded."""
    epochs = _by_epoch(ranks)
    found = {name: [epoch[0][name] for epoch in epochs] for name in _OF_ALL}
    found["seconds"] = [np.mean([record["seconds"] for record in epoch]) for epoch in epochs]
    found["communicate"] = [
        np.mean([communicating(record) for record in epoch]) for epoch in epochs
    ]
    found |= {name: [_mean_of_counts(epoch, name) for epoch in epochs] for name in _COUNTED}
    return {name: [float(f"{value:.6g}") for value in values] for name, values in found.items()}


def numbers_of(ranks: Sequence[Sequence[Record]]) -> dict[str, float]:
    """Numbers of the whole run."""
    history, trained = ranks[0], [list(records) for records in ranks if records]
    summaries = [summarize_rank(records) for records in trained]
    # The simulator validates single models of the first workers only; without any, the model is that of one worker.
    alone = [
        records[-1]["worker_val_accuracy"]
        for records in trained
        if "worker_val_accuracy" in records[-1]
    ]
    counted = {name for each in summaries for name in each["counted"]}
    found = {
        **{name: sum(each.get(name, 0) for each in summaries) for name in counted},
        "diverged": 0.0,
        **count_samples(history),
        "best_epoch": history[-1]["best_epoch"],
        "bytes_sent": sum(each["bytes_sent"] for each in summaries) / len(summaries) / len(history),
        "utilisation": utilisation(
            {"seconds_by_kind": _trained(each)}
            for records in ranks
            for each in drop_warmup_epochs(records)
        ),
        "worker_val_accuracy": float(np.mean(alone or [history[-1]["val_accuracy"]])),
        **rates(ranks),
    }
    if "mean_steps_per_cycle" in summaries[0]:
        found["steps_per_cycle"] = float(
            np.mean([each["mean_steps_per_cycle"] for each in summaries])
        )
    return {name: float(value) for name, value in found.items()}


def _trained(record: Record) -> dict[str, float]:
    return {kind: record["seconds_by_kind"].get(kind, 0.0) for kind in _TRAINING}


def training_seconds(record: Record) -> float:
    """Time of an epoch without validation and checkpoints [s]."""
    return float(sum(_trained(record).values()))


def rates(ranks: Sequence[Sequence[Record]]) -> dict[str, float]:
    """Speed of a run without validation and checkpoints: the median over its epochs, without the first and last.

    The median is robust: other work on the machine for one second can make a short epoch five times longer.

    Examples:
        >>> record = {"epoch": 0, "steps": 4, "samples": 64, "seconds_by_kind": {"compute": 2.0, "validate": 9.0}}
        >>> rates([[record], [record]])
        {'seconds_per_batch': 0.5, 'samples_per_second': 64.0}
    """
    per_batch, per_second = [], []
    for epoch in _by_epoch([drop_warmup_epochs(records) for records in ranks]):
        seconds = np.mean([training_seconds(record) for record in epoch])
        per_batch.append(seconds / np.mean([record["steps"] for record in epoch]))
        per_second.append(sum(record["samples"] for record in epoch) / seconds)
    return {
        "seconds_per_batch": float(np.median(per_batch)),
        "samples_per_second": float(np.median(per_second)),
    }


def communicating(record: Mapping[str, Any]) -> float:
    """Communication time of an epoch [s], with waiting and, as in the thesis, what is in the background."""
    seconds: float = sum(
        record["seconds_by_kind"].get(kind, 0.0) for kind in ("communicate", "wait")
    )
    return seconds + float(record.get("hidden_seconds", 0.0))


def _by_epoch(ranks: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """The records of all workers, epoch by epoch."""
    epoch = itemgetter("epoch")
    return [
        list(found) for _, found in groupby(sorted(chain.from_iterable(ranks), key=epoch), epoch)
    ]


def _mean_of_counts(records: Sequence[Record], name: str) -> float:
    """The mean of a number over the pushes of all workers, which count how often they had each value."""
    times = [
        (int(number), count) for record in records for number, count in record.get(name, {}).items()
    ]
    pushes = sum(count for _, count in times)
    return sum(number * count for number, count in times) / pushes if pushes else 0.0
