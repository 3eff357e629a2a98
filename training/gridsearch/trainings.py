"""Runs the jobs of a search, each with a result file of its own: what is there already is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from features.dataset import FeatureDataset
from models.networks.hlf import HlfClassifier
from models.networks.hlf_settings import HlfSettings
from models.saved_model import ModelSpec, model_spec
from training.determinism import be_deterministic
from training.errors import TrainingError
from training.gridsearch.settings import GridSearchSettings
from training.gridsearch.stacked_training import Curves, Member, make_folds, steps_per_epoch, train_stacked
from training.gridsearch.trials import SearchJob
from training.readers.memory_rows import MemoryRows
from training.settings import OptimizerName, TrainSettings

_INPUTS: Final = ("hlf",)


class Search(NamedTuple):
    """What all jobs of a search have in common."""

    dataset: Path
    """Folder of the features, within reach of every task."""
    settings: GridSearchSettings
    train: TrainSettings
    """For optimiser, weight decay and seed."""


class JobResult(NamedTuple):
    """What came of a job."""

    job: SearchJob
    epochs: int
    """At most so many were asked for."""
    num_parameters: int
    folds: list[Curves]
    """Empty if it failed."""
    seconds: float
    error: str
    """Why it failed; else empty."""

    def to_json(self) -> dict[str, Any]:
        """For its file."""
        return {**self._asdict(), "job": self.job._asdict(), "folds": [curves._asdict() for curves in self.folds]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From its file."""
        job = SearchJob(**{**content["job"], "hidden": tuple(content["job"]["hidden"])})
        return cls(**{**content, "job": job, "folds": [Curves(**curves) for curves in content["folds"]]})


def finished(folder: Path, job: SearchJob, epochs: int) -> JobResult | None:
    """The result of a job that was done before, for as many epochs or more; failed ones are tried again."""
    path = folder / f"{job.key}.json"
    if not path.exists():
        return None
    found = JobResult.from_json(json.loads(path.read_text(encoding="utf-8")))
    return found if found.epochs >= epochs and not found.error else None


def run_job(search: Search, job: SearchJob, epochs: int, folder: Path) -> JobResult:
    """Train the networks of a job on all folds, unless that is done; the result is in `folder` when this returns.

    A job that fails is a result too: others go on.

    Args:
        search: What all jobs have in common.
        job: Which networks.
        epochs: At most so many.
        folder: Where results are, within reach of every task.
    """
    found = finished(folder, job, epochs)
    if found is not None:
        return found
    started = time.perf_counter()
    num_parameters, folds, error = 0, list[Curves](), ""
    try:
        _load(search.dataset, search.train.seed)
        # Once for all trainings of a process: it would make the first look slow.
        started = time.perf_counter()
        num_parameters, folds = _train(search, job, epochs)
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is told in the table, and the other jobs go on
        error = f"{type(problem).__name__}: {problem}"
    result = JobResult(job, epochs, num_parameters, folds, time.perf_counter() - started, error)
    unfinished = folder / f".{job.key}.json"
    unfinished.write_text(json.dumps(result.to_json()), encoding="utf-8")
    unfinished.replace(folder / f"{job.key}.json")
    return result


def _train(search: Search, job: SearchJob, epochs: int) -> tuple[int, list[Curves]]:
    """Number of parameters, and the curves of each fold."""
    torch.set_num_threads(1)
    be_deterministic()
    train, settings = search.train, search.settings
    rows, spec = _load(search.dataset, train.seed)
    folds = make_folds(rows.labels.numpy(), settings.folds, seed=train.seed)

    def make_network() -> HlfClassifier:
        return HlfClassifier(job.hidden, spec.scalers, len(spec.classes))

    curves = train_stacked(
        make_network,
        _optimizer(train, job.learning_rate),
        rows.rows,
        [Member(fold, train.seed) for fold in folds],
        num_steps=steps_per_epoch(folds, job.batch_size),
        epochs=epochs,
        patience=settings.patience,
    )
    return sum(parameter.numel() for parameter in make_network().parameters()), curves


@lru_cache(maxsize=1)
def _load(dataset: Path, seed: int) -> tuple[MemoryRows, ModelSpec]:
    """The high-level features of the training split, and the scaling; once for all jobs of a process."""
    features = FeatureDataset.load(dataset)
    return MemoryRows.load(features, "train", _INPUTS, seed=seed), model_spec(HlfSettings(), features)


def _optimizer(train: TrainSettings, learning_rate: float) -> Callable[[list[nn.Parameter]], Optimizer]:
    def make(parameters: list[nn.Parameter]) -> Optimizer:
        if train.optimizer is OptimizerName.ADAM:
            return Adam(parameters, lr=learning_rate, weight_decay=train.weight_decay)
        return SGD(
            parameters,
            lr=learning_rate,
            momentum=train.momentum,
            nesterov=train.nesterov,
            weight_decay=train.weight_decay,
        )

    return make


class GridSearchError(TrainingError):
    """A search that found nothing."""


def refuse_all_failed(results: Sequence[JobResult]) -> None:
    """Raise if there is no job that came to an end.

    Raises:
        GridSearchError: All failed.
    """
    if results and all(result.error for result in results):
        raise GridSearchError(
            f"all {len(results)} trainings of the grid search failed; the first, {results[0].job.key}: "
            f"{results[0].error}"
        )
