"""Ranks in the slots of a barrier job of Spark, without ssh."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from feature_datasets import write_dataset
from pyspark import SparkContext
from ranks import processes_of, wait_until
from training_runs import flat_weights, make_spec, records

from features.dataset import FeatureDataset
from training.errors import LaunchError
from training.launching.launcher import launch
from training.launching.spark_job import spark_hosts

pytestmark = [pytest.mark.spark, pytest.mark.distributed, pytest.mark.timeout(300)]

ROWS = {"train": [40] * 8, "val": [20, 20], "test": [10]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


def rank_processes(out: Path) -> list[psutil.Process]:
    return [
        process
        for process in processes_of(out)
        if "training.launching.rank_process" in process.info["cmdline"][:5]
    ]


@pytest.mark.minutes
def test_a_run_in_the_slots_of_spark_survives_the_loss_of_a_slot_and_equals_one_by_mpirun(
    spark: SparkContext, dataset: FeatureDataset, tmp_path: Path
) -> None:
    settings = {"epochs": 40, "batch_size": 8, "checkpoint_steps": 20, "launcher": "spark"}
    run = make_spec(dataset, tmp_path / "in-spark", **settings)
    parents: list[list[str]] = []

    def kill() -> None:
        wait_until(
            lambda: list((run.out_dir / "checkpoints").glob("*/complete.json")),
            label="a checkpoint",
        )
        ranks = rank_processes(run.out_dir)
        parents.extend([parent.name() for parent in rank.parents()] for rank in ranks)
        daemon = next(parent for parent in ranks[0].parents() if parent.name() == "prted")
        os.kill(daemon.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    losses: list[str] = []
    launch(
        run, on_progress=lambda _: None, on_loss=losses.append, hosts=partial(spark_hosts, spark)
    )
    thread.join()
    assert len(losses) == 1
    # The ranks were below a task of Spark, and not below mpirun.
    assert len(parents) == 2
    assert all("prterun" not in names and "java" in names for names in parents), parents
    wait_until(lambda: not rank_processes(run.out_dir), label="all ranks are gone")
    assert spark.statusTracker().getActiveJobsIds() == []
    alone = make_spec(dataset, tmp_path / "mpirun", **settings | {"launcher": "mpirun"})
    launch(alone, on_progress=lambda _: None)
    np.testing.assert_array_equal(flat_weights(run.out_dir), flat_weights(alone.out_dir))
    assert [record["epoch"] for record in records(run.out_dir)[0]] == list(range(40))


def test_more_workers_than_slots_are_refused_at_once(spark: SparkContext) -> None:
    with (
        pytest.raises(LaunchError, match=r"has 2 slots.*Use at most 2 workers"),
        spark_hosts(spark, 3),
    ):
        pass


def test_a_cluster_that_grows_and_shrinks_is_refused(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows = spark.getConf().set("spark.dynamicAllocation.enabled", "true")
    monkeypatch.setattr(spark, "getConf", lambda: grows)
    with pytest.raises(LaunchError, match="dynamicAllocation"), spark_hosts(spark, 2):
        pass
