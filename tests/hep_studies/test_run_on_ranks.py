"""Measured runs of a study: warm ranks, in an order that favours no method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from example_study import example_plan
from feature_datasets import write_dataset

from hep_studies.plan import PlannedRun, Subject
from hep_studies.run_on_ranks import in_random_order, train_on_ranks
from models.networks.hlf_settings import HlfSettings
from training.workloads.hep_settings import HepSettings


def runs_of(folder: Path, **changes: Any) -> list[PlannedRun]:
    write_dataset(folder / "a", rows={"train": [20] * 4, "val": [20], "test": [30]})
    subject = Subject(HepSettings(folder=folder / "a", network=HlfSettings(hidden=[4])), "a")
    train = {
        "workers": 1,
        "batch_size": 8,
        "epochs": 4,
        "optimizer": "sgd",
        "schedule": {"decay": "cosine"},
    }
    methods = {
        "sgd": {"train": {"algorithm": "sgd"}},
        "momentum": {"train": {"algorithm": "sgd", "momentum": 0.5}},
        "decay": {"train": {"algorithm": "sgd", "momentum": 0.5, "weight_decay": 0.1}},
    }
    document = {
        "train": train,
        "methods": methods,
        "reference": "sgd",
        "execution": "mpi",
        "seeds": 6,
        **changes,
    }
    return example_plan(subject, folder / "study", **document)


def test_the_first_method_of_the_file_was_always_the_first_to_run(tmp_path: Path) -> None:
    runs = runs_of(tmp_path)
    order = in_random_order(runs)
    assert sorted(run.folder for run in order) == sorted(run.folder for run in runs)
    assert [run.train.seed for run in order] == [run.train.seed for run in runs]
    assert len({run.method for run in order[::3]}) > 1
    assert in_random_order(runs) == order


@pytest.mark.distributed
def test_the_first_run_carried_a_warm_up_of_its_ranks(tmp_path: Path) -> None:
    """Its first epoch took 0.7 to 1.4 s instead of 0.03 s, and hit the method that stood first in the file."""
    runs = runs_of(
        tmp_path, seeds=1, train={"workers": 1, "batch_size": 8, "epochs": 1, "optimizer": "sgd"}
    )
    reports: list[Any] = []
    train_on_ranks(
        runs,
        tmp_path / "jobs",
        code="",
        on_progress=lambda *message: reports.append(message),
        on_loss=reports.append,
    )
    written = {run.method: (run.folder / "model").stat().st_mtime_ns for run in runs}
    warmed = {
        path.parent.name: path.stat().st_mtime_ns
        for path in (tmp_path / "jobs" / "warm-up").glob("*/model")
    }
    assert warmed.keys() == written.keys()
    assert max(warmed.values()) < min(written.values())
    assert [done for done, *_ in reports] == sorted(done for done, *_ in reports)
    assert all(run.result is not None for run in runs)
