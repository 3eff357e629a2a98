"""The runs of a comparison, their folders and their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from feature_datasets import write_dataset

from features.dataset import FeatureDataset
from models.networks.hlf_settings import HlfSettings
from models.networks.registry import NetworksSettings
from training.errors import ShardError, StudyError
from training.settings import TrainSettings
from training.studies.plan import StudyPlan, make_plan
from training.studies.settings import CompareSettings

ROWS = {"train": [20] * 4, "val": [10], "test": [10]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


def planned(
    dataset: FeatureDataset, folder: Path, *, base: dict[str, Any] | None = None, cores: int = 2, **chosen: Any
) -> StudyPlan:
    settings = CompareSettings(**({"workers": 2, "seeds": {"hlf": 2, "particles": 1}} | chosen))
    return make_plan(
        "thesis",
        settings,
        base=TrainSettings(**(base or {})),
        networks=NetworksSettings(hlf=HlfSettings(hidden=[7])),
        dataset=dataset,
        folder=folder,
        cores=cores,
    )


def test_there_is_a_job_for_each_network_and_number_of_workers(dataset: FeatureDataset, tmp_path: Path) -> None:
    plan = planned(dataset, tmp_path, cores=3)
    # Eight methods on two workers and sequential SGD, each with three learning rates; two seeds, then one.
    assert [len(job.runs) for job in plan.converging] == [48, 6, 24, 3]
    assert [{run.spec.train.workers for run in job.runs} for job in plan.converging] == [{2}, {1}, {2}, {1}]
    assert [{run.spec.train.workers for run in job.runs} for job in plan.timing] == [{1}, {1}, {2}, {3}, {2}, {3}]
    folders = [run.spec.out_dir for job in plan.jobs for run in job.runs]
    assert len(folders) == len(set(folders))
    assert [run.seed for run in plan.converging[0].runs] == [1] * 24 + [2] * 24
    assert {tuple(run.spec.workload.network.hidden) for run in plan.runs() if run.model == "hlf"} == {(7,)}


def test_no_more_workers_are_timed_than_there_are_row_groups(dataset: FeatureDataset, tmp_path: Path) -> None:
    timed = {run.spec.train.workers for run in planned(dataset, tmp_path, cores=64).timing_runs("hlf")}
    assert timed == {1, 2, 4}


def test_a_run_is_done_when_its_summary_is_of_the_same_settings(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = planned(dataset, tmp_path).runs()[0]
    assert not run.is_done
    run.prepare("commit 1")
    assert not run.is_done
    (run.spec.out_dir / "summary.json").write_text("{}")
    assert run.is_done
    assert run.made_with == "commit 1"
    other = planned(dataset, tmp_path, base={"learning_rate": 0.5}).runs()[0]
    assert other.spec.out_dir == run.spec.out_dir
    assert not other.is_done


def test_what_other_settings_left_is_removed_and_what_the_same_left_is_kept(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = planned(dataset, tmp_path).runs()[0]
    run.prepare("commit 1")
    left = run.spec.out_dir / "checkpoints"
    left.mkdir()
    run.prepare("commit 2")
    assert left.exists()
    planned(dataset, tmp_path, tau=3, batch_size=4).runs()[0].prepare("commit 2")
    assert not left.exists()


def test_a_folder_of_others_at_the_place_of_a_run_is_refused(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = planned(dataset, tmp_path).runs()[0]
    notes = run.spec.out_dir / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    with pytest.raises(StudyError, match=r"seed-1 holds files .*made-by-hep-pipeline.*Move"):
        run.prepare("commit 1")
    assert notes.read_text() == "mine"


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"base": {"stall_seconds": 7.0, "launcher_args": ["--verbose"]}}, True),
        ({"base": {"algorithm": "d-psgd", "workers": 7}}, True),
        ({"base": {"learning_rate": 0.5}}, False),
        ({"base": {"seed": 9}}, False),
        ({"tau": 3}, False),
        ({"simulated_workers": 4}, False),
        ({"seeds": {"hlf": 3}}, False),
        ({"rate_factors": [1.0]}, False),
    ],
)
def test_the_digest_depends_on_settings_that_change_the_result_only(
    dataset: FeatureDataset, tmp_path: Path, changes: dict[str, Any], is_same: bool
) -> None:
    before = planned(dataset, tmp_path)
    assert (planned(dataset, tmp_path / "elsewhere", **changes).digest == before.digest) == is_same


def test_slow_momentum_makes_only_its_own_columns_stale(dataset: FeatureDataset, tmp_path: Path) -> None:
    before, after = (planned(dataset, tmp_path, tau=tau).converging[0].runs for tau in (12, 3))
    changed = {one.variant.key for one, other in zip(before, after, strict=True) if one.digest != other.digest}
    assert changed == {
        "ar-sgd-slowmo",
        "ad-psgd-slowmo",
        "ad-psgd-slowmo-no-avg",
        "swarm-sgd-slowmo",
        "swarm-sgd-slowmo-no-avg",
    }


def test_other_events_make_all_runs_anew(dataset: FeatureDataset, tmp_path: Path) -> None:
    other = write_dataset(tmp_path / "other", rows=ROWS, seed=2)
    assert planned(dataset, tmp_path).runs()[0].digest != planned(other, tmp_path).runs()[0].digest


def test_too_few_row_groups_are_refused_with_the_fix(dataset: FeatureDataset, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"set features\.feed_workers: 8"):
        planned(dataset, tmp_path, workers=8)


def test_steps_are_those_of_all_epochs(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = planned(dataset, tmp_path, epochs={"hlf": 3}, batch_size=16).runs()[0]
    # 2 row groups of 20 events for each of 2 workers: 3 steps of at most 16.
    assert run.num_steps(dataset) == 9
