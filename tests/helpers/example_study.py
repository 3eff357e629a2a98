"""An example of a study with invented numbers, without any training."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hep_studies.plan import PlannedRun, Subject, planned_runs
from hep_studies.run_result import Counts, RunResult
from hep_studies.study import StudySettings
from hep_studies.study_result import (
    EventsDescription,
    Machine,
    StudyProvenance,
    StudyResult,
    TimeCheck,
)
from training.settings import TrainSettings

NUM_EVENTS = 1000
EPOCHS = 6
STUDY: dict[str, Any] = {
    "title": "A study",
    "source": "Somebody 2020",
    "minutes": 1,
    "train": {"workers": 4},
    "cluster": {"step_seconds": 1e-3, "event_seconds": 0.0},
    "methods": {
        "ar-sgd": {"title": "AR-SGD", "train": {"algorithm": {"name": "ar-sgd"}}},
        "sgd": {"title": "SGD", "train": {"algorithm": {"name": "sgd"}, "workers": 1}},
        "ad-psgd": {"title": "AD-PSGD", "train": {"algorithm": {"name": "ad-psgd"}}},
    },
    "reference": "ar-sgd",
    "seeds": 2,
}

#: A study with as little as its file may have.
SMALL_STUDY: dict[str, Any] = {
    "title": "A",
    "source": "B 2020",
    "minutes": 1,
    "reference": "sgd",
    "methods": {"sgd": {"train": {"algorithm": "sgd"}}},
}

#: Protocol and measure of an example claim, which have no default.
EQUAL_ACCURACY = {"protocol": "equal settings", "measure": "test_accuracy"}


def example_study(**changes: Any) -> StudySettings:
    return StudySettings.model_validate({**STUDY, **changes})


def write_study(folder: Path, keys: Mapping[str, Any]) -> str:
    """Write a file with a small study, of which some keys differ; return its path."""
    path = folder / "mine.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({**SMALL_STUDY, **keys}))
    return str(path)


def example_plan(
    subject: Subject, folder: Path, *, base: Any = None, code: str = "1", **study: Any
) -> list[PlannedRun]:
    """The planned runs of a study; `base`: the section `train` of the config."""
    train = TrainSettings.model_validate(base or {})
    settings = example_study(**study)
    return planned_runs(settings, subject, train, folder, code_digest=lambda *_: code)


def example_check(
    method: str, measured: float, simulated: float, *, step_seconds: float = 1e-3
) -> TimeCheck:
    """A check of the times of two workers [s], whose repeats all took as long on a quiet machine."""
    return TimeCheck(
        method,
        step_seconds,
        2,
        measured,
        simulated,
        spread=0.0,
        repeats=5,
        load=0.0,
        slept=step_seconds,
        steps_per_cycle=0.0,
        simulated_steps_per_cycle=0.0,
        overhead=0.0,
    )


def example_run(
    method: str,
    seed: int,
    *,
    correct: int = 900,
    values: Mapping[str, Any] | None = None,
    seconds: float = 0.2,
) -> RunResult:
    """A run that predicts the first `correct` of the 1000 test events correctly.

    `seconds`: time of an epoch, which grows by 1 % with each seed.
    """
    epochs = np.arange(EPOCHS)
    accuracy = (0.9 - 0.4 * np.exp(-epochs) + 1e-3 * seed).tolist()
    loss = (1.2 - np.array(accuracy) - 1e-4 * correct).tolist()
    # All-reduces keep the models of all workers equal.
    distance = (0.01 * (epochs + 1)).tolist() if method == "ad-psgd" else [0.0] * EPOCHS
    curves = {
        "val_accuracy": accuracy,
        "val_loss": loss,
        "train_loss": loss,
        "train_accuracy": accuracy,
        "consensus_distance": distance,
        "seconds": [seconds * (1 + 0.01 * seed)] * EPOCHS,
        "communicate": [0.05] * EPOCHS,
        "staleness": [0.0] * EPOCHS,
    }
    numbers = {
        "diverged": 0.0,
        "best_epoch": EPOCHS - 1,
        "seconds_per_batch": seconds / 10,
        "bytes_sent": 8000.0,
        "samples_per_second": 100 / seconds,
        "worker_val_accuracy": 0.8,
        "averages_begun": 8.0,
    }
    counts = Counts.from_mask(np.arange(NUM_EVENTS) < correct, correct / NUM_EVENTS)
    return RunResult(method, dict(values or {}), seed, "commit 1", counts, curves, numbers)


def example_result(
    study: StudySettings, runs: Sequence[RunResult], *, checks: Sequence[TimeCheck] = ()
) -> StudyResult:
    return StudyResult(
        name="example",
        form="small",
        digest="0123",
        study=study,
        provenance=StudyProvenance(
            command="python -m pipeline compare --study example",
            created="2026-01-01T00:00:00+00:00",
            machine=Machine(cpu="Some Processor", cores=2, load=0.0),
            packages={"python": "3.11.7"},
        ),
        events=EventsDescription(
            version="0001-abcdef01",
            classes=["QCD", "ttbar"],
            sample_note="technical sample",
            counts={"train": [400, 400, 800], "val": [100, 100, 200], "test": [500, 500, 1000]},
        ),
        checks=list(checks),
        runs=list(runs),
        test_weights=base64.b64encode(np.ones(NUM_EVENTS, np.float32).tobytes()).decode(),
    )
