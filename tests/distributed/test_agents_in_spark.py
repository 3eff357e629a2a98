"""Training with agents on the hosts of Spark's executors: without MPI, and with kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command_line import CLUSTER, pipeline
from feature_datasets import write_dataset
from minimal_configs import write_config
from published_by_hand import publish_features
from pyspark import SparkContext
from ranks import processes_of, wait_until
from training_runs import make_spec, records, summary

from features.dataset import FeatureDataset
from hep_studies.run_in_simulator import simulate_workload
from hep_studies.simulator.cluster import ClusterSettings
from pipeline.terminal.exit_codes import Exit
from training.errors import LaunchError
from training.launching.agents_on_spark import train_on_spark
from training.launching.launcher import launch
from training.loop.summary import count_actions, summarize_rank

pytestmark = [pytest.mark.spark, pytest.mark.distributed, pytest.mark.timeout(600)]

EPOCHS = 24
ROWS = {"train": [40] * 8, "val": [20, 20], "test": [30]}
MPCA: dict[str, Any] = {
    "algorithm": {"name": "mpca", "shards": 3},
    "launcher": "spark-agents",
    "workers": 2,
}
RUN_FOLDER_PAGE = Path(__file__).parents[2] / "docs" / "run-folder.md"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


def agents_of(run_dir: Path) -> list[psutil.Process]:
    """The processes of the agents of a run."""
    return [
        process
        for process in processes_of(run_dir)
        if "training.launching.agent_process" in process.info["cmdline"]
    ]


@pytest.mark.minutes
def test_scheduled_agents_and_ranks_in_turn_do_what_the_simulator_does(
    spark: SparkContext, dataset: FeatureDataset, tmp_path: Path
) -> None:
    cycles = {"name": "mpca", "cycle_steps": 4, "alpha_free": 1, "beta_ramp": 3, "gamma_ramp": 3}
    settings: dict[str, Any] = {"algorithm": cycles, "precision": "float64", "workers": 2}
    train_with_agents = partial(train_on_spark, spark)

    # Each continues the run of the one before.
    for epochs, launcher, train in (
        (2, "spark-agents", train_with_agents),
        (3, "mpirun", launch),
        (4, "spark-agents", train_with_agents),
    ):
        run = make_spec(dataset, tmp_path / "out", epochs=epochs, launcher=launcher, **settings)
        train(run, on_progress=lambda _: None)

    simulated = simulate_workload(run.workload.open(), run.train, ClusterSettings())
    for agent_records, expected_records in zip(
        records(run.out_dir), simulated.records, strict=True
    ):
        assert len(agent_records) == len(expected_records)
        for key in ("train_loss", "val_loss", "consensus_distance", "samples"):
            expected = [record[key] for record in expected_records]
            assert [record[key] for record in agent_records] == pytest.approx(
                expected, rel=1e-9, abs=1e-11
            )
        assert agent_records[-1]["worker_val_loss"] == pytest.approx(
            expected_records[-1]["worker_val_loss"], rel=1e-9, abs=1e-11
        )
    action_counts = summary(run.out_dir)["acted"]
    summaries = [summarize_rank(rank_records) for rank_records in simulated.records]
    assert action_counts == count_actions(run.train, summaries)
    assert min(action_counts.values()) > 0


@pytest.mark.minutes
def test_agents_learn_beside_the_sums_and_use_every_sample(
    spark: SparkContext, dataset: FeatureDataset, tmp_path: Path
) -> None:
    schedule = {"decay": "cosine"}
    run = make_spec(
        dataset, tmp_path / "out", epochs=12, learning_rate=0.01, schedule=schedule, **MPCA
    )
    steps: list[int] = []

    train_on_spark(spark, run, on_progress=lambda progress: steps.append(progress.step))

    assert steps
    totals = summary(run.out_dir)
    assert totals["samples"] == 12 * sum(ROWS["train"])
    assert totals["best_val_accuracy"] > 0.9
    assert min(totals["acted"].values()) > 0
    # Steps between the beginning of a sum and its end.
    assert max(agent["max_staleness"] for agent in totals["per_rank"]) > 1
    assert 0 < totals["utilisation"] <= 1
    assert spark.statusTracker().getActiveJobsIds() == []
    assert agents_of(run.out_dir) == []

    lines = (run.out_dir / "cycles.jsonl").read_text().splitlines()
    cycles = [json.loads(line) for line in lines]
    assert [cycle["number"] for cycle in cycles] == list(range(1, len(cycles) + 1))
    # The agents meet once more after the summary.
    assert 0 < len(cycles) - totals["cycles"] <= 2
    bytes_by_cycle = [cycle["bytes_reduced"] for cycle in cycles[: totals["cycles"]]]
    assert totals["bytes_reduced"] == sum(bytes_by_cycle) > 0

    documented_keys = re.findall(r"`(\w+)`", RUN_FOLDER_PAGE.read_text(encoding="utf-8"))
    assert records(run.out_dir)[0][-1].keys() <= set(documented_keys)


def test_the_run_ends_with_the_error_of_its_agent(spark: SparkContext, tmp_path: Path) -> None:
    damaged = write_dataset(tmp_path / "set", rows=ROWS)
    run = make_spec(damaged, tmp_path / "out", **MPCA)
    for path in damaged.files("val"):
        Path(path).write_bytes(b"PAR1 and no more")

    with pytest.raises(LaunchError, match=r"training failed on rank \d: "):
        train_on_spark(spark, run, on_progress=lambda _: None)

    assert agents_of(run.out_dir) == []


class Driver:
    """The command `train` with agents, in a process of its own."""

    def __init__(self, config: str, run_dir: Path, log: Path) -> None:
        self.run_dir = run_dir
        self.log = log
        command = [sys.executable, "-m", "pipeline", "train", "--config", config]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True
            )

    def wait_until(self, condition: Callable[[], bool], label: str) -> None:
        """Wait for a condition; an end of the command before that fails the test."""

        def is_reached() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text())
            return condition()

        wait_until(is_reached, label=label, seconds=300)

    def last_epoch(self) -> int:
        """The epoch of the last checkpoint, the only one that is kept; 0 without one."""
        checkpoints = self.run_dir.glob("train/*/hlf/checkpoints/epoch-*/complete.json")
        epochs = [int(path.parent.name.split("-")[1]) for path in checkpoints]
        return max(epochs, default=0)

    def wait_for_progress(self, label: str) -> None:
        """Wait for a checkpoint after the last one."""
        epoch = self.last_epoch()
        self.wait_until(lambda: self.last_epoch() > epoch, label)

    def wait_for_new_agents(self, lost_agents: list[psutil.Process]) -> None:
        lost_ids = {agent.pid for agent in lost_agents}

        def are_replaced() -> bool:
            ids = {agent.pid for agent in agents_of(self.run_dir)}
            return len(ids) == 2 and ids.isdisjoint(lost_ids)

        self.wait_until(are_replaced, "new agents start from the checkpoint")

    def wait_until_no_agent_is_left(self, label: str) -> None:
        wait_until(lambda: not agents_of(self.run_dir), label=f"no agent is left after {label}")


@pytest.mark.minutes
def test_training_survives_a_lost_agent_an_interrupt_and_a_killed_driver(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_dir = tmp_path / "run"
    publish_features(run_dir, rows=ROWS)
    train = MPCA | {"epochs": EPOCHS, "batch_size": 8, "learning_rate": 0.01, "reader": "arrow"}
    config = write_config(tmp_path, run_dir=str(run_dir), train=train, spark=CLUSTER)

    driver = Driver(config, run_dir, tmp_path / "log")
    request.addfinalizer(driver.process.kill)
    driver.wait_for_progress("the first epoch")
    agents = agents_of(run_dir)
    assert len(agents) == 2
    # They belong to no executor, and to no terminal; no secret is in their arguments.
    assert [psutil.Process(agent.pid).terminal() for agent in agents] == [None, None]
    assert len({len(agent.cmdline()) for agent in agents}) == 1

    agents[1].kill()
    driver.wait_until(lambda: any(run_dir.glob("train/*/hlf/lost_ranks.jsonl")), "a noted loss")
    driver.wait_for_new_agents(agents)
    driver.wait_for_progress("training after the loss")

    os.killpg(driver.process.pid, signal.SIGINT)
    assert driver.process.wait(120) == Exit.INTERRUPTED, driver.log.read_text()
    driver.wait_until_no_agent_is_left("Ctrl-C")

    driver = Driver(config, run_dir, tmp_path / "log")
    request.addfinalizer(driver.process.kill)
    driver.wait_for_progress("training after the interrupt")
    driver.process.send_signal(signal.SIGKILL)
    driver.process.wait()
    driver.wait_until_no_agent_is_left("a kill of the driver")

    completed = pipeline("train", "--config", config)
    assert completed.returncode == 0, completed.stderr
    assert "training continues from the checkpoint" in completed.stdout + completed.stderr
    (out_dir,) = run_dir.glob("train/*/hlf")
    totals = summary(out_dir)
    assert totals["samples"] == EPOCHS * sum(ROWS["train"])
    assert totals["best_val_accuracy"] > 0.9
    assert np.isfinite(totals["mean_cycle_seconds"])
    for agent_records in records(out_dir):
        assert [record["epoch"] for record in agent_records] == list(range(EPOCHS))
    assert not agents_of(run_dir)
