"""Runs the unfinished runs of a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from models.evaluation.metrics import accuracy
from models.prediction import predict
from models.saved_model import load_model
from training.launching.launcher import launch_all
from training.loop.trainer import Progress
from training.studies.plan import PlannedRun, StudyJob
from training.studies.variants import REFERENCE

_COUNTS: Final = "test.json"

Tell = Callable[[int, int, str], None]
"""Called with the finished part, the total, and a note."""


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
        runs: Finished runs of one network, with all seeds and variants.
        files: Files of the test split.
        on_progress: Called with the number of finished runs.

    Raises:
        SavedModelError: A model is damaged.
    """
    references: dict[int, NDArray[np.bool_]] = {}
    for done, run in enumerate(runs):
        on_progress(done, len(runs), run.model)
        if (run.spec.out_dir / _COUNTS).exists():
            continue
        is_correct, content = correct_events(run, files)
        if run.variant == REFERENCE:
            references[run.seed] = is_correct
        elif run.seed not in references:
            same = next(each for each in runs if (each.variant, each.seed) == (REFERENCE, run.seed))
            references[run.seed] = correct_events(same, files)[0]
        reference = references[run.seed]
        content["only_this"] = int((is_correct & ~reference).sum())
        content["only_reference"] = int((reference & ~is_correct).sum())
        _write(run.spec.out_dir / _COUNTS, content)


def correct_events(run: PlannedRun, files: Sequence[Path]) -> tuple[NDArray[np.bool_], dict[str, Any]]:
    """Mask of the events that a run's model predicts correctly, (num_events,), and the counts."""
    model, spec = load_model(run.spec.out_dir / "model")
    predictions = predict(model, files)
    truth = np.asarray(predictions["label"].to_numpy())
    scores = np.stack(predictions["probability"].to_numpy()).astype(np.float64)
    weights = np.asarray(predictions["weight"].to_numpy(), dtype=np.float64)
    chosen = scores.argmax(axis=1)
    confusion = np.zeros((len(spec.classes), len(spec.classes)), dtype=np.int64)
    np.add.at(confusion, (truth, chosen), 1)
    weighted = accuracy(truth, scores, weights)
    content = {
        "num_events": len(truth),
        "correct": int((chosen == truth).sum()),
        "confusion": confusion.tolist(),
        "weighted_accuracy": weighted.value,
        "weighted_error": weighted.error,
    }
    return chosen == truth, content


def read_counts(run: PlannedRun) -> dict[str, Any]:
    """The counts of a run that `count_all` wrote."""
    content: dict[str, Any] = json.loads((run.spec.out_dir / _COUNTS).read_text(encoding="utf-8"))
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)
