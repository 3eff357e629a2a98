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

TRAIN = {"workers": 1, "batch_size": 8, "epochs": 1, "optimizer": "sgd"}
METHODS: dict[str, Any] = {
    "sgd": {"train": {"algorithm": "sgd"}},
    "momentum": {"train": {"algorithm": "sgd", "momentum": 0.5}},
    "decay": {"train": {"algorithm": "sgd", "momentum": 0.5, "weight_decay": 0.1}},
}


def measured_plan(folder: Path, seeds: int) -> list[PlannedRun]:
    write_dataset(folder / "a", rows={"train": [20] * 4, "val": [20], "test": [30]})
    subject = Subject(HepSettings(folder=folder / "a", network=HlfSettings(hidden=[4])), "a")
    return example_plan(
        subject,
        folder / "study",
        train=TRAIN,
        methods=METHODS,
        reference="sgd",
        execution="mpi",
        seeds=seeds,
    )


def test_no_method_is_always_the_first_to_run(tmp_path: Path) -> None:
    runs = measured_plan(tmp_path, seeds=6)

    order = in_random_order(runs)

    assert sorted(run.folder for run in order) == sorted(run.folder for run in runs)
    assert [run.train.seed for run in order] == [run.train.seed for run in runs]
    assert len({run.method for run in order[::3]}) > 1
    assert in_random_order(runs) == order


@pytest.mark.distributed
def test_ranks_warm_up_with_every_method_before_the_first_run(tmp_path: Path) -> None:
    """The first epoch once took 0.7 to 1.4 s instead of 0.03 s."""
    runs = measured_plan(tmp_path, seeds=1)
    finished_steps: list[int] = []

    train_on_ranks(
        runs,
        tmp_path / "jobs",
        code="",
        on_progress=lambda steps, *_: finished_steps.append(steps),
        on_loss=pytest.fail,
    )

    run_times = {run.method: (run.folder / "model").stat().st_mtime_ns for run in runs}
    warm_up_times = {
        path.parent.name: path.stat().st_mtime_ns
        for path in (tmp_path / "jobs" / "warm-up").glob("*/model")
    }
    assert warm_up_times.keys() == run_times.keys()
    assert max(warm_up_times.values()) < min(run_times.values())
    assert finished_steps == sorted(finished_steps)
    assert all(run.result is not None for run in runs)
