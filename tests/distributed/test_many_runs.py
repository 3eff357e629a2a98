"""Several runs, one after the other, in ranks that are started once.

Lost ranks: `test_faults.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_datasets import write_dataset
from training_runs import flat_weights, make_spec, summary

from features.dataset import FeatureDataset
from hep_studies.plan import PlannedRun, Subject
from hep_studies.run_on_ranks import in_random_order, train_on_ranks
from training.errors import DivergedError
from training.launching.launcher import launch_all
from training.launching.run_spec import RunSpec

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

ROWS = {"train": [20] * 6, "val": [15, 15], "test": [10]}
DIVERGING = {"algorithm": "local-sgd", "optimizer": "sgd", "learning_rate": 1e30}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


def make_specs(dataset: FeatureDataset, folder: Path, *settings: dict[str, Any]) -> list[RunSpec]:
    """Runs in the folders `run-0`, `run-1` and so on, one for each of the settings."""
    return [
        make_spec(dataset, folder / f"run-{index}", **run_settings)
        for index, run_settings in enumerate(settings)
    ]


def test_runs_in_the_same_ranks_do_not_change_each_other(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    repeated = {"algorithm": "ar-sgd", "seed": 3}
    runs = make_specs(
        dataset,
        tmp_path,
        repeated,
        {"algorithm": "ad-psgd"},
        {"algorithm": "swarm-sgd", "slowmo": {"tau": 4, "exact_average": True}},
        {"algorithm": "d-psgd", "seed": 2},
        repeated,
    )
    indices: list[int] = []
    progress_reports: list[Any] = []

    def note_progress(index: int, progress: Any) -> None:
        indices.append(index)
        progress_reports.append(progress)

    launch_all(runs, tmp_path / "job", on_progress=note_progress)

    assert set(indices) == {0, 1, 2, 3, 4}
    assert indices == sorted(indices)
    last_report = progress_reports[-1]
    assert last_report.epoch == runs[-1].train.epochs
    assert last_report.step == last_report.num_steps
    methods = [summary(run.out_dir)["algorithm"] for run in runs]
    assert methods == ["ar-sgd", "ad-psgd", "swarm-sgd", "d-psgd", "ar-sgd"]
    np.testing.assert_array_equal(flat_weights(runs[-1].out_dir), flat_weights(runs[0].out_dir))


def test_an_error_names_its_run_and_finished_runs_are_not_repeated(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    runs = make_specs(dataset, tmp_path, {}, DIVERGING, {"algorithm": "d-psgd"})
    summaries = [run.out_dir / "summary.json" for run in runs]
    message = r"in the run .*run-1: .*training failed on rank(.|\n)*training diverged"

    with pytest.raises(DivergedError, match=message):
        launch_all(runs, tmp_path / "job", on_progress=lambda *_: None)

    assert [path.exists() for path in summaries] == [True, False, False]

    time_of_first = summaries[0].stat().st_mtime_ns
    repaired = [runs[0], runs[1]._replace(train=runs[2].train), runs[2]]
    repeated: set[int] = set()
    launch_all(repaired, tmp_path / "job", on_progress=lambda index, _: repeated.add(index))

    assert repeated == {1, 2}
    assert summaries[0].stat().st_mtime_ns == time_of_first
    # Nothing is left to do, so no rank starts.
    launch_all(repaired, tmp_path / "job", on_progress=lambda *_: pytest.fail("a run is repeated"))


def planned_run(name: str, spec: RunSpec, folder: Path) -> PlannedRun:
    return PlannedRun(
        name, name, {}, Subject(spec.workload), spec.train, None, None, "", folder / name
    )


def test_a_study_continues_after_a_run_that_diverges(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    specs = make_specs(dataset, tmp_path, {}, DIVERGING, {"algorithm": "d-psgd"})
    runs = [planned_run(str(index), spec, tmp_path) for index, spec in enumerate(specs)]
    reports: list[tuple[int, int, str]] = []

    train_on_ranks(
        runs,
        tmp_path / "job",
        code="commit 1",
        on_progress=lambda *report: reports.append(report),
        on_loss=pytest.fail,
    )

    results = []
    for run in runs:
        assert run.result is not None
        results.append(run.result)
    assert [result.numbers["diverged"] for result in results] == [0.0, 1.0, 0.0]
    assert [result.has_diverged for result in results] == [False, True, False]
    assert not (runs[1].folder / "checkpoints").exists()
    num_finished_runs = [report[0] for report in reports]
    assert num_finished_runs == sorted(num_finished_runs)
    last_run = in_random_order(runs)[-1]
    assert last_run is not runs[1]
    num_finished, num_runs, label = reports[-1]
    assert num_finished == num_runs
    assert label == f"{last_run.method}, seed 1"
