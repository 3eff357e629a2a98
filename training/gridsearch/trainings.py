"""Runs the jobs of a search, each with its own result file; finished jobs are not repeated."""

from __future__ import annotations

import json
import os
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import torch

from features.columns import INPUT_COLUMNS
from features.dataset import FeatureDataset
from features.mixing import class_weights
from features.scaling import ColumnStatistics, scaler_json
from models.networks.hlf import HlfClassifier
from models.networks.hlf_settings import HlfSettings
from models.networks.scaling_layer import Scaler
from training.determinism import be_deterministic
from training.errors import TrainingError
from training.gridsearch.folds import Curves, Fold, make_folds, steps_per_epoch, train_on_fold
from training.gridsearch.settings import GridSearchSettings
from training.gridsearch.trials import SearchJob, Trial
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.settings import TrainSettings
from training.threads import use_threads

_INPUTS: Final = ("hlf",)


class Search(NamedTuple):
    """Data and settings common to all jobs of a search."""

    dataset: Path
    """Folder of the features; every task must reach it."""
    settings: GridSearchSettings
    train: TrainSettings
    """Settings of optimiser, schedule, weight decay and seed."""

    def job_of(self, trial: Trial) -> SearchJob:
        """The training of a trial; if its rate falls until the last epoch, it is no beginning of a longer one."""
        job = SearchJob.of(trial)
        return job._replace(epochs=trial.epochs) if self.train.schedule.decay == "cosine" else job


class JobResult(NamedTuple):
    """The result of a job."""

    job: SearchJob
    epochs: int
    num_parameters: int
    folds: list[Curves]
    """Curves of each fold; empty if the job failed."""
    seconds: float
    error: str
    """The error if the job failed, else empty."""

    def to_json(self) -> dict[str, Any]:
        """Content for the result file."""
        return {**self._asdict(), "job": self.job._asdict(), "folds": [curves._asdict() for curves in self.folds]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From the content of a result file."""
        job = SearchJob(**{**content["job"], "hidden": tuple(content["job"]["hidden"])})
        return cls(**{**content, "job": job, "folds": [Curves(**curves) for curves in content["folds"]]})


def finished(folder: Path, job: SearchJob, epochs: int) -> JobResult | None:
    """The result of a job that succeeded before with at least this number of epochs, else None."""
    try:
        found = JobResult.from_json(json.loads((folder / f"{job.key}.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        # A file that a power cut left empty is made again.
        return None
    return found if found.epochs >= epochs and not found.error else None


def run_job(search: Search, job: SearchJob, epochs: int, folder: Path) -> JobResult:
    """Train the networks of a job on all folds unless this is done, and write the result to `folder`.

    The failure of a job is a result too, so that other jobs continue.

    Args:
        search: Data and settings common to all jobs.
        job: The job.
        epochs: Highest number of epochs.
        folder: Folder of the results; every task must reach it.
    """
    found = finished(folder, job, epochs)
    if found is not None:
        return found
    started = time.perf_counter()
    num_parameters, folds, error = 0, list[Curves](), ""
    try:
        _load(search.dataset, search.train.seed)
        # Load once per process and before the clock starts, so that the first training does not seem slow.
        started = time.perf_counter()
        num_parameters, folds = _train(search, job, epochs)
    except Exception as problem:  # noqa: BLE001 - the table shows any error, and the other jobs continue
        error = f"{type(problem).__name__}: {problem}"
    result = JobResult(job, epochs, num_parameters, folds, time.perf_counter() - started, error)
    # Two attempts of a task may run at once.
    unfinished = folder / f".{job.key}.{os.getpid()}.json"
    try:
        unfinished.write_text(json.dumps(result.to_json()), encoding="utf-8")
        unfinished.replace(folder / f"{job.key}.json")
    finally:
        # Half a file on a full disk would look like work that can be continued.
        unfinished.unlink(missing_ok=True)
    return result


def _train(search: Search, job: SearchJob, epochs: int) -> tuple[int, list[Curves]]:
    """Number of parameters, and the curves of each fold."""
    settings = search.settings
    # The rate was chosen for a step, however many workers take it together later.
    train = search.train.model_copy(update={"workers": 1, "learning_rate": job.learning_rate, "epochs": epochs})
    use_threads(train.threads)
    be_deterministic()
    rows, classes = _load(search.dataset, train.seed)
    folds = make_folds(rows.labels.numpy(), settings.folds, seed=train.seed)
    curves: list[Curves] = []
    num_parameters = 0
    network = HlfSettings(hidden=list(job.hidden))
    for place, fold in enumerate(folds):
        make_network = partial(HlfClassifier, network, {"hlf": fitted_scaler(rows, fold)}, len(classes))
        num_parameters = sum(parameter.numel() for parameter in make_network().parameters())
        curve = train_on_fold(
            make_network,
            train,
            balanced(rows, fold, classes),
            fold,
            # Every fold has a seed of its own, the same for all settings.
            seed=train.seed + place,
            num_steps=steps_per_epoch(folds, job.batch_size),
        )
        curves.append(curve)
    return num_parameters, curves


def fitted_scaler(rows: Rows, fold: Fold) -> Scaler:
    """Means and standard deviations of the high-level features over the fold's rows for training."""
    column = INPUT_COLUMNS["hlf"]
    fitted = ColumnStatistics.of(rows.inputs[0].numpy()[fold.train], column.log_above)
    return Scaler.of(scaler_json(fitted, column))


def balanced(rows: Rows, fold: Fold, classes: list[str]) -> Rows:
    """Rows in which all classes have the same sum of weights over the fold's rows for training."""
    labels = rows.labels.numpy()
    factors = class_weights(labels[fold.train], rows.weights.numpy()[fold.train], classes)
    return rows._replace(weights=rows.weights * torch.from_numpy(factors[labels]).to(rows.weights.dtype))


@lru_cache(maxsize=1)
def _load(dataset: Path, seed: int) -> tuple[Rows, list[str]]:
    """The high-level features of the training split, and the names of the classes; loaded once per process."""
    features = FeatureDataset.load(dataset)
    return MemoryRows.load(features, "train", _INPUTS, seed=seed).rows, features.classes


class GridSearchError(TrainingError):
    """All trainings of a search failed."""
