"""Runs the unfinished runs of a comparison."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from models.evaluation.metrics import accuracy, within_classes
from models.prediction import predict
from models.saved_model import load_model
from training.launching.launcher import launch_all
from training.loop.trainer import Progress
from training.studies.plan import PlannedRun, StudyJob

_COUNTS: Final = "test_events.json"

Tell = Callable[[int, int, str], None]
"""Called with the finished part, the total, and a note."""


class Counts(NamedTuple):
    """What the best model of a run predicts correctly of the test split."""

    num_events: int
    correct: int
    events: str
    """Which events, one bit each, as base64."""
    weighted_accuracy: float
    """Accuracy with event weights."""

    @classmethod
    def of(cls, is_correct: NDArray[np.bool_], weighted_accuracy: float) -> Self:
        """From a mask (num_events,).

        Examples:
            >>> Counts.of(np.array([True, False, True]), 0.6).is_correct
            array([ True, False,  True])
        """
        packed = base64.b64encode(np.packbits(is_correct).tobytes()).decode()
        return cls(len(is_correct), int(is_correct.sum()), packed, weighted_accuracy)

    @property
    def is_correct(self) -> NDArray[np.bool_]:
        """Mask of the correctly predicted events, (num_events,); the order is the same for all runs."""
        packed = np.frombuffer(base64.b64decode(self.events), dtype=np.uint8)
        return np.unpackbits(packed, count=self.num_events).astype(bool)

    @property
    def accuracy(self) -> float:
        """Share of correctly predicted events."""
        return self.correct / self.num_events


def run_job(
    job: StudyJob, dataset: FeatureDataset, *, code: str, on_progress: Tell, on_loss: Callable[[str], None]
) -> None:
    """Train the unfinished runs of a job, one after the other in the same ranks.

    Args:
        job: The runs.
        dataset: The features that they read.
        code: Version of the code, stored with each run.
        on_progress: Called with the steps of all runs that were unfinished.
        on_loss: Called with a sentence when a rank is lost and all restart.

    Raises:
        TrainingError: A run failed; the message names it.
    """
    for run in job.runs:
        if run.is_done:
            run.forget_checkpoints()
    left = [run for run in job.runs if not run.is_done]
    if not left:
        return
    for run in left:
        run.prepare(code)
    steps = [run.num_steps(dataset) for run in left]

    def tell(number: int, progress: Progress) -> None:
        run = left[number]
        share = (progress.epoch - 1 + progress.step / progress.num_steps) / progress.num_epochs
        done = sum(steps[:number]) + round(steps[number] * share)
        note = f"run {number + 1}/{len(left)}: {run.variant.title}, seed {run.seed}"
        on_progress(done, sum(steps), note)

    launch_all([run.spec for run in left], job.folder, on_progress=tell, on_loss=on_loss)
    for run in left:
        run.forget_checkpoints()


def count_all(runs: Sequence[PlannedRun], files: Sequence[Path], on_progress: Tell) -> None:
    """Predict the test split with the model of every run, and write the counts to the run's folder.

    Args:
        runs: Finished runs.
        files: Files of the test split.
        on_progress: Called with the number of finished runs.

    Raises:
        SavedModelError: A model is damaged.
    """
    for done, run in enumerate(runs):
        on_progress(done, len(runs), run.model)
        if not (run.spec.out_dir / _COUNTS).exists():
            _write(run.spec.out_dir / _COUNTS, count(run, files)._asdict())


def count(run: PlannedRun, files: Sequence[Path]) -> Counts:
    """Which events of the test split a run's model predicts correctly."""
    model, _ = load_model(run.spec.out_dir / "model")
    predictions = predict(model, files)
    truth = np.asarray(predictions["label"].to_numpy())
    scores = np.stack(predictions["probability"].to_numpy()).astype(np.float64)
    weights = within_classes(truth, predictions["weight"].to_numpy())
    return Counts.of(scores.argmax(axis=1) == truth, accuracy(truth, scores, weights))


def read_counts(run: PlannedRun) -> Counts:
    """The counts of a run that `count_all` wrote."""
    return Counts(**json.loads((run.spec.out_dir / _COUNTS).read_text(encoding="utf-8")))


def _write(path: Path, content: dict[str, object]) -> None:
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)
