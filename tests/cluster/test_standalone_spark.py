"""A standalone Spark: the master and the driver on one host, two workers on others."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cluster_runs import LONG, AddRow, HostRuns, LocalResults, finished_output
from clusters import Standalone
from finished_run import assert_same_version
from network_hosts import Network
from page_commands import SITE_PAGE, block_with
from ranks import wait_until
from small_cgroup import cgroup_with
from training_runs import flat_weights

from hep_core.allocation import MIB
from pipeline.configuration.yaml_text import read_yaml
from pipeline.terminal.exit_codes import Exit

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("spark"),
]

CLUSTER = "standalone Spark, 2 workers"


@pytest.fixture(scope="module")
def spark(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Standalone:
    return Standalone(hosts, tmp_path_factory.mktemp("spark") / "files", workers=2)


def on_cluster(hosts: Network, folder: Path, **train: object) -> HostRuns:
    """Runs by the config of the page, whose driver is on the host of the master."""
    page_config = read_yaml("\n".join(block_with(SITE_PAGE, "master: spark://host1:7077")))
    return HostRuns(hosts, folder, spark=page_config["spark"], train=train)


def test_stages_on_a_cluster_give_the_local_results(
    hosts: Network, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path)
    runs.use_as_checkout("my.yaml")
    comparisons = {
        "ingest": "the same events",
        "features": "the same rows",
        "gridsearch": "same scores",
    }

    commands = block_with(SITE_PAGE, "pipeline gridsearch --config my.yaml")
    for command in commands:
        runs.run_line(command)

    assert len(commands) == len(comparisons)
    for stage, comparison in comparisons.items():
        assert_same_version(runs.version(stage), local.version(stage), stage, tests=[])
        add_row(CLUSTER, stage, comparison)


def test_features_survive_the_loss_of_a_worker(
    hosts: Network, spark: Standalone, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path)
    local.lend(runs.run_dir, "ingest")
    process = runs.start("features")
    kernels = runs.run_dir / "features" / "kernels"
    wait_until(lambda: bool(list(kernels.glob("*/*.arrow"))), label="a first part", seconds=400)
    assert process.poll() is None
    worker = hosts.processes(2, "org.apache.spark.deploy.worker.Worker")
    executors = hosts.processes(2, "CoarseGrainedExecutorBackend")
    assert worker
    assert executors

    # The worker first, since it would start another executor.
    for lost_process in worker + executors:
        lost_process.kill()
    finished_output(process)

    spark.start_worker(2)
    assert_same_version(runs.version("features"), local.version("features"), "features", tests=[])
    add_row(CLUSTER, "features; kill -9 of a worker and its executor", "the same rows")


def test_the_memory_of_a_host_limits_the_tasks_on_it(
    hosts: Network, spark: Standalone, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path)
    hosts.show_cgroups(3)
    # Java leaves 1 GiB of the cgroup to the system. The remainder holds one task.
    with cgroup_with(memory_bytes=2400 * MIB) as entry:
        registration = spark.start_worker(3, shares="", entry=entry)
        try:
            runs.run("ingest")
        finally:
            for process in hosts.processes(3, "org.apache.spark"):
                process.kill()

    assert re.search(r"with [2-9] cores, (1376\.0 MiB|1\.3 GiB) RAM", registration), registration
    assert spark.num_executors_launched(3) == 1
    assert_same_version(runs.version("ingest"), local.version("ingest"), "ingest", tests=[])
    add_row(
        CLUSTER,
        "ingest; a third worker in a cgroup of 2400 MiB, without --cores and --memory",
        "one task at a time there, in spite of two cores; the same events",
    )


def test_agents_train_beside_the_executors(
    hosts: Network, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    method = ("train.algorithm.name=mpca", "train.algorithm.cycle_steps=4")
    runs = on_cluster(hosts, tmp_path, launcher="spark-agents", algorithm="mpca")
    local.lend(runs.run_dir, "ingest", "features")

    process = runs.start("train", sets=method)
    for index in (1, 2):
        has_agent = partial(hosts.processes, index, "agent_process")
        wait_until(has_agent, label=f"an agent is on {hosts.names[index]}", seconds=200)
    finished_output(process)

    weights = flat_weights(runs.version("train") / "hlf")
    np.testing.assert_array_equal(weights, flat_weights(local.trained(*method)))
    add_row(
        CLUSTER,
        "train, launcher: spark-agents, mpca with cycle_steps",
        "the same weights as with mpirun",
    )


def test_ranks_train_in_executors(
    hosts: Network, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path, launcher="spark")
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
    hosts: Network, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path, launcher="spark", workers=4)
    local.lend(runs.run_dir, "ingest", "features")
    message = " ".join(runs.run("train", fails=True).split())
    assert "has 2 slots, and all workers start together. Use at most 2 workers" in message
    add_row(CLUSTER, "train, launcher: spark, 4 workers", "refused: 2 slots")


def test_a_run_folder_that_an_executor_does_not_see_is_refused(
    hosts: Network, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path)
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
    # While it waited for executors, it named their memory as one of the possible causes.
    _, _, error = message.partition("error:")
    assert "memory" not in error
    add_row(
        CLUSTER, "ingest; run_dir is not on shared storage", "refused at the start; names the host"
    )


def test_a_missing_master_and_too_small_workers_are_said(
    hosts: Network, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_cluster(hosts, tmp_path)
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
