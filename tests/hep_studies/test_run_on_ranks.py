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
    dataset = folder / "a"
    write_dataset(dataset, rows={"train": [20] * 4, "val": [20], "test": [30]})
    network = HlfSettings(hidden=[4])
    workload = HepSettings(folder=dataset, network=network)
    subject = Subject(workload, "a")
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

    folders = [run.folder for run in runs]
    seeds = [run.train.seed for run in runs]
    assert sorted(run.folder for run in order) == sorted(folders)
    assert [run.train.seed for run in order] == seeds
    # Each seed runs the three methods one after the other.
    first_methods = {run.method for run in order[::3]}
    assert len(first_methods) > 1
    assert in_random_order(runs) == order


@pytest.mark.distributed
def test_ranks_warm_up_with_every_method_before_the_first_run(tmp_path: Path) -> None:
    """The first epoch once took 0.7 to 1.4 s instead of 0.03 s."""
    runs = measured_plan(tmp_path, seeds=1)
    jobs = tmp_path / "jobs"
    finished_steps: list[int] = []

    def record_steps(steps: int, *_: object) -> None:
        finished_steps.append(steps)

    train_on_ranks(runs, jobs, code="", on_progress=record_steps, on_loss=pytest.fail)

    run_times = {}
    for run in runs:
        model = run.folder / "model"
        run_times[run.method] = model.stat().st_mtime_ns
    warm_up_times = {}
    for model in (jobs / "warm-up").glob("*/model"):
        warm_up_times[model.parent.name] = model.stat().st_mtime_ns
    assert warm_up_times.keys() == run_times.keys()
    assert max(warm_up_times.values()) < min(run_times.values())
    assert finished_steps == sorted(finished_steps)
    assert all(run.result is not None for run in runs)
