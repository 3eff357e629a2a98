"""The jobs of a training on Spark alone."""

from __future__ import annotations

import threading
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_datasets import write_dataset
from py4j.protocol import Py4JError
from pyspark import SparkContext
from training_runs import make_spec

from training.errors import LaunchError
from training.launching import agents_on_spark, rank_reports
from training.launching.agents_on_spark import _VECTORS_PER_TASK, _tree_sum, train_on_spark


def sum_in_groups(vectors: list[np.ndarray]) -> np.ndarray:
    """The sum of vectors: those of each group first, then the sums of the groups, and so on."""
    sums = vectors
    while len(sums) > 1:
        starts = range(0, len(sums), _VECTORS_PER_TASK)
        groups = [sums[start : start + _VECTORS_PER_TASK] for start in starts]
        sums = [reduce(np.add, group) for group in groups]
    return sums[0]


@pytest.mark.spark
@pytest.mark.parametrize(
    "num_agents", [1, _VECTORS_PER_TASK, _VECTORS_PER_TASK + 1, 4 * _VECTORS_PER_TASK + 3]
)
def test_a_sum_over_agents_has_one_order_whoever_comes_first(
    spark: SparkContext, num_agents: int
) -> None:
    # Numbers of very different size: another order rounds otherwise.
    rng = np.random.default_rng(1)
    scales = 10.0 ** rng.integers(-8, 8, (num_agents, 1))
    vectors = list(rng.normal(size=(num_agents, 5)) * scales)
    vectors_by_rank = list(enumerate(vectors))

    for _ in range(2):
        rng.shuffle(vectors_by_rank)
        partitions = spark.parallelize(vectors_by_rank, min(num_agents, 5))
        np.testing.assert_array_equal(_tree_sum(partitions, num_agents), sum_in_groups(vectors))


class BusySpark:
    """A Spark whose jobs get no slots: they wait until their group is cancelled."""

    def __init__(self) -> None:
        self._groups: dict[int, str] = {}
        """Job group of each thread."""
        self._is_cancelled = threading.Event()

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"spark.driver.host": "127.0.0.1"}

    def setJobGroup(self, group: str, _: str) -> None:  # noqa: N802
        self._groups[threading.get_ident()] = group

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        if group in self._groups.values():
            self._is_cancelled.set()

    def parallelize(self, *_: Any) -> BusySpark:
        return self

    def barrier(self) -> BusySpark:
        return self

    def mapPartitions(self, _: Any) -> BusySpark:  # noqa: N802
        return self

    def collect(self) -> list[str]:
        """Wait for the cancellation of this thread's group; other threads wait for ten seconds."""
        if threading.get_ident() in self._groups:
            self._is_cancelled.wait()
            raise Py4JError("the job is cancelled")
        self._is_cancelled.wait(10)
        raise AssertionError("nothing has ended the job")


def test_the_limit_of_a_start_ends_agents_that_get_no_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [40], "val": [10], "test": [10]})
    run = make_spec(
        dataset, tmp_path / "out", algorithm="mpca", launcher="spark-agents", stall_seconds=1.0
    )
    monkeypatch.setattr(rank_reports, "_LEAST_SECONDS", 0.1)
    monkeypatch.setattr(agents_on_spark, "require_slots", lambda *_: None)
    spark: Any = BusySpark()

    with pytest.raises(LaunchError, match="the ranks did not start within 1 s"):
        train_on_spark(spark, run, on_progress=lambda _: None)


def test_every_start_of_agents_looks_for_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [40], "val": [10], "test": [10]})
    run = make_spec(dataset, tmp_path / "out", algorithm="mpca", launcher="spark-agents")
    num_checks = 0

    def find_slots_once(*_: Any) -> None:
        nonlocal num_checks
        num_checks += 1
        if num_checks > 1:
            raise LaunchError("Use at most 1 workers")

    def lose_agent(agents: Any) -> str:
        agents._job.files.mark_started()
        return "rank 1 on host2 is gone"

    monkeypatch.setattr(agents_on_spark, "require_slots", find_slots_once)
    monkeypatch.setattr(agents_on_spark._Agents, "start", lambda _: None)
    monkeypatch.setattr(agents_on_spark._Agents, "follow", lose_agent)
    spark: Any = BusySpark()

    with pytest.raises(LaunchError, match="Use at most 1 workers"):
        train_on_spark(spark, run, on_progress=lambda _: None)
