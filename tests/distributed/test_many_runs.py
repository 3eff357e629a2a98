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
from training.launching.rank import RunSpec

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

ROWS = {"train": [20] * 6, "val": [15, 15], "test": [10]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


def specs(dataset: FeatureDataset, folder: Path, *settings: dict[str, Any]) -> list[RunSpec]:
    folder.mkdir(exist_ok=True)
    return [
        make_spec(dataset, folder / f"run-{index}", **keys) for index, keys in enumerate(settings)
    ]


def test_runs_do_what_the_first_did_whatever_ran_before(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    settings = {"algorithm": "ar-sgd", "seed": 3}
    remaining: list[dict[str, Any]] = [
        {"algorithm": "ad-psgd"},
        {"algorithm": "swarm-sgd", "slowmo": {"tau": 4, "exact_average": True}},
        {"algorithm": "d-psgd", "seed": 2},
    ]
    runs = specs(dataset, tmp_path / "many", settings, *remaining, settings)
    seen: list[tuple[int, Any]] = []
    launch_all(runs, tmp_path / "job", on_progress=lambda *progress: seen.append(progress))
    assert {index for index, _ in seen} == {0, 1, 2, 3, 4}
    assert [index for index, _ in seen] == sorted(index for index, _ in seen)
    assert seen[-1][1].epoch == runs[4].train.epochs
    assert seen[-1][1].step == seen[-1][1].num_steps
    assert [summary(run.out_dir)["algorithm"] for run in runs] == [
        "ar-sgd",
        "ad-psgd",
        "swarm-sgd",
        "d-psgd",
        "ar-sgd",
    ]
    np.testing.assert_array_equal(flat_weights(runs[4].out_dir), flat_weights(runs[0].out_dir))


def test_an_error_names_its_run_and_what_is_done_stays_done(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    diverging = {"algorithm": "local-sgd", "optimizer": "sgd", "learning_rate": 1e30}
    runs = specs(dataset, tmp_path / "many", {}, diverging, {"algorithm": "d-psgd"})
    with pytest.raises(
        DivergedError, match=r"in the run .*run-1: .*training failed on rank"
    ) as caught:
        launch_all(runs, tmp_path / "job", on_progress=lambda *_: None)
    assert "training diverged" in str(caught.value)
    assert [(run.out_dir / "summary.json").exists() for run in runs] == [True, False, False]
    st_mtime_ns_before = (runs[0].out_dir / "summary.json").stat().st_mtime_ns
    repaired = [runs[0], runs[1]._replace(train=runs[2].train), runs[2]]
    seen: set[int] = set()
    launch_all(repaired, tmp_path / "job", on_progress=lambda index, _: seen.add(index))
    assert seen == {1, 2}
    assert (runs[0].out_dir / "summary.json").stat().st_mtime_ns == st_mtime_ns_before
    # Nothing is left to do: no rank is started.
    launch_all(
        repaired, tmp_path / "job", on_progress=lambda *_: pytest.fail("a run was done again")
    )


def test_a_run_of_a_study_that_diverged_stopped_all_others_at_each_repetition(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    diverging = {"algorithm": "local-sgd", "optimizer": "sgd", "learning_rate": 1e30}
    selected: list[dict[str, Any]] = [{}, diverging, {"algorithm": "d-psgd"}]
    runs = [
        PlannedRun(
            str(index),
            str(index),
            {},
            Subject(spec.workload),
            spec.train,
            None,
            None,
            "",
            tmp_path / str(index),
        )
        for index, spec in enumerate(specs(dataset, tmp_path / "specs", *selected))
    ]
    reports: list[tuple[int, int, str]] = []
    train_on_ranks(
        runs,
        tmp_path / "job",
        code="commit 1",
        on_progress=lambda *message: reports.append(message),
        on_loss=pytest.fail,
    )
    results = [run.result for run in runs]
    assert [result and result.numbers["diverged"] for result in results] == [0.0, 1.0, 0.0]
    assert [result and result.has_diverged for result in results] == [False, True, False]
    assert not (runs[1].folder / "checkpoints").exists()
    completed = [report[0] for report in reports]
    assert completed == sorted(completed)
    last = in_random_order(runs)[-1]
    assert last is not runs[1]
    assert reports[-1] == (reports[-1][1], reports[-1][1], f"{last.method}, seed 1")
