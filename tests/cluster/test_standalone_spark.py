"""A standalone Spark: the master and the driver on one host, two workers on others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cluster_runs import LONG, AddRow, HostRuns, LocalResults, finished_output
from clusters import SPARK_PAGE, Standalone
from finished_run import assert_same_version
from network_hosts import Network
from ranks import wait_until
from training_runs import flat_weights

from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

CLUSTER = "standalone Spark, 2 workers"


@pytest.fixture(scope="module")
def spark(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Standalone:
    return Standalone(hosts, tmp_path_factory.mktemp("spark") / "files", workers=2)


def on_cluster(hosts: Network, folder: Path, spark: Standalone, **train: object) -> HostRuns:
    """Runs whose driver is on the host of the master."""
    conf = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
    return HostRuns(
        hosts,
        folder,
        spark={"master": spark.master, "driver_memory": "512m", "conf": conf},
        train=train,
    )


def test_stages_on_a_cluster_give_the_local_results(
    hosts: Network, spark: Standalone, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path, spark)
    runs.run_as_written(SPARK_PAGE)
    for stage, message in (
        ("ingest", "the same events"),
        ("features", "the same rows"),
        ("gridsearch", "same scores"),
    ):
        assert_same_version(runs.version(stage), local.version(stage), stage, tests=[])
        add_row(CLUSTER, stage, message)


def test_features_survive_the_loss_of_a_worker(
    hosts: Network, spark: Standalone, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path, spark)
    local.lend(runs.run_dir, "ingest")
    process = runs.start("features")
    kernels = runs.run_dir / "features" / "kernels"
    wait_until(lambda: bool(list(kernels.glob("*/*.arrow"))), label="a first part", seconds=400)
    assert process.poll() is None
    for each in hosts.processes(2, "org.apache.spark"):
        each.kill()
    finished_output(process)
    spark.start_worker(2)
    assert_same_version(runs.version("features"), local.version("features"), "features", tests=[])
    add_row(CLUSTER, "features; kill -9 of a worker and its executor", "the same rows")


def test_ranks_train_in_executors(
    hosts: Network, spark: Standalone, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path, spark, launcher="spark")
    local.lend(runs.run_dir, "ingest", "features")
    process = runs.start("train", sets=LONG)
    runs.await_checkpoint()
    # The command line of mpirun on the first host names the ranks' program too.
    names = [
        {each.name() for each in hosts.processes(index, "rank_process")} for index in (0, 1, 2)
    ]
    assert ["python" in each for each in names] == [False, True, True]
    executor = next(
        each for each in hosts.processes(1, "CoarseGrainedExecutorBackend") if each.name() == "java"
    )
    executor.kill()
    output = " ".join(finished_output(process).split())
    assert re.search(r"a rank was lost \(the executor on host2 .* is lost", output), output
    assert "all start again from the last checkpoint" in output
    current = runs.version("train") / "hlf"
    np.testing.assert_array_equal(flat_weights(current), flat_weights(local.trained(*LONG)))
    add_row(
        CLUSTER,
        "train, launcher: spark, ar-sgd; kill -9 of an executor",
        "continued; the same weights",
    )


def test_more_ranks_than_slots_are_refused(
    hosts: Network, spark: Standalone, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path, spark, launcher="spark", workers=4)
    local.lend(runs.run_dir, "ingest", "features")
    message = " ".join(runs.run("train", fails=True).split())
    assert "has 2 slots, and all workers start together. Use at most 2 workers" in message
    add_row(CLUSTER, "train, launcher: spark, 4 workers", "refused: 2 slots")


def test_a_run_folder_that_an_executor_does_not_see_is_refused(
    hosts: Network, spark: Standalone, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path, spark)
    runs.run_dir.mkdir()
    hosts.run_on_host(2, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path))
    try:
        message = " ".join(runs.run("ingest", fails=True).split())
    finally:
        hosts.run_on_host(2, "umount", str(tmp_path))
    assert (
        f"do not share the storage of the driver, host1: host3 does not see {runs.run_dir}/ingest/"
        in message
    )
    assert "memory" not in message
    add_row(
        CLUSTER, "ingest; run_dir is not on shared storage", "refused at the start; names the host"
    )


def test_a_missing_master_and_too_small_workers_are_said(
    hosts: Network, spark: Standalone, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path, spark)
    port = f"spark.master=spark://{hosts.names[0]}:7999"
    process = runs.start("ingest", sets=[port])
    message = finished_output(process, fails=True)
    assert process.returncode == Exit.MAY_PASS
    assert "no Spark master answers at spark://host1:7999" in message
    add_row(CLUSTER, "ingest; the master is down", "refused at the start with exit code 75")
    with runs.start("ingest", sets=["spark.conf={spark.executor.memory: 64g}"]) as waiting:
        output = waiting.stdout
        assert output is not None
        assert any("waiting for an executor of spark://host1:7077" in line for line in output)
        command = next(
            each for each in hosts.processes(0, str(runs.config)) if "python" in each.name()
        )
        command.terminate()
        assert waiting.wait(120) == Exit.INTERRUPTED
    add_row(CLUSTER, "ingest; no worker is large enough", "says that it waits for an executor")
