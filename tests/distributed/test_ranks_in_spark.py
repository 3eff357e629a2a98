"""Ranks in the slots of a barrier job of Spark, without ssh."""

from __future__ import annotations

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


def rank_processes(out_dir: Path) -> list[psutil.Process]:
    return [
        process
        for process in processes_of(out_dir)
        if "training.launching.rank_process" in process.info["cmdline"][:5]
    ]


@pytest.mark.minutes
def test_ranks_in_slots_of_spark_survive_a_lost_slot_and_do_what_ranks_of_mpirun_do(
    spark: SparkContext, dataset: FeatureDataset, tmp_path: Path
) -> None:
    settings = {"epochs": 40, "batch_size": 8, "checkpoint_steps": 20}
    in_spark = make_spec(dataset, tmp_path / "in-spark", launcher="spark", **settings)
    by_mpirun = make_spec(dataset, tmp_path / "mpirun", launcher="mpirun", **settings)
    checkpoints = in_spark.out_dir / "checkpoints"
    parent_names: list[list[str]] = []
    losses: list[str] = []

    def kill_daemon_of_one_slot() -> None:
        wait_until(lambda: any(checkpoints.glob("*/complete.json")), label="a checkpoint")
        parents_of_ranks = [rank.parents() for rank in rank_processes(in_spark.out_dir)]
        parent_names.extend([parent.name() for parent in parents] for parents in parents_of_ranks)
        daemon = next(parent for parent in parents_of_ranks[0] if parent.name() == "prted")
        daemon.send_signal(signal.SIGKILL)

    thread = threading.Thread(target=kill_daemon_of_one_slot)
    thread.start()
    hosts = partial(spark_hosts, spark)
    launch(in_spark, on_progress=lambda _: None, on_loss=losses.append, hosts=hosts)
    thread.join()
    launch(by_mpirun, on_progress=lambda _: None)

    assert len(losses) == 1
    assert len(parent_names) == 2
    for names in parent_names:
        assert "java" in names
        assert "prterun" not in names
    wait_until(lambda: not rank_processes(in_spark.out_dir), label="all ranks are gone")
    assert spark.statusTracker().getActiveJobsIds() == []
    np.testing.assert_array_equal(flat_weights(in_spark.out_dir), flat_weights(by_mpirun.out_dir))
    assert [record["epoch"] for record in records(in_spark.out_dir)[0]] == list(range(40))


def test_more_workers_than_slots_are_refused_at_once(spark: SparkContext) -> None:
    with (
        pytest.raises(LaunchError, match=r"has 2 slots.*Use at most 2 workers"),
        spark_hosts(spark, 3),
    ):
        pass


def test_a_cluster_that_grows_and_shrinks_is_refused(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamic = spark.getConf().set("spark.dynamicAllocation.enabled", "true")
    monkeypatch.setattr(spark, "getConf", lambda: dynamic)

    with pytest.raises(LaunchError, match="dynamicAllocation"), spark_hosts(spark, 2):
        pass
