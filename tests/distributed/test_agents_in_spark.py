"""Training with agents on the hosts of Spark's executors: without MPI, and with kills."""

from __future__ import annotations

import json
import os
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
def test_with_a_schedule_agents_on_spark_do_what_the_simulator_does_also_around_ranks_of_mpi(
    spark: SparkContext, dataset: FeatureDataset, tmp_path: Path
) -> None:
    keys = {"cycle_steps": 4, "alpha_free": 1, "beta_ramp": 3, "gamma_ramp": 3}
    settings: dict[str, Any] = MPCA | {
        "algorithm": {"name": "mpca", **keys},
        "precision": "float64",
    }
    for index, launcher in enumerate(("agents", "ranks", "agents"), 1):
        # Each continues the run of the one before.
        settings |= {
            "epochs": 1 + index,
            "launcher": "spark-agents" if launcher == "agents" else "mpirun",
        }
        run = make_spec(dataset, tmp_path / "out", **settings)
        train = partial(train_on_spark, spark) if launcher == "agents" else launch
        train(run, on_progress=lambda _: None)
    expected = simulate_workload(run.workload.open(), run.train, ClusterSettings())
    for results, reference in zip(records(run.out_dir), expected.records, strict=True):
        assert len(results) == len(reference)
        for key in ("train_loss", "val_loss", "consensus_distance", "samples"):
            assert [result[key] for result in results] == pytest.approx(
                [result[key] for result in reference], rel=1e-9, abs=1e-11
            )
        assert results[-1]["worker_val_loss"] == pytest.approx(
            reference[-1]["worker_val_loss"], rel=1e-9, abs=1e-11
        )
    totals = summary(run.out_dir)["acted"]
    assert totals == count_actions(
        run.train, [summarize_rank(record) for record in expected.records]
    )
    assert min(totals.values()) > 0


@pytest.mark.minutes
def test_agents_train_beside_the_sums_learn_and_use_every_sample(
    spark: SparkContext, dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(
        dataset,
        tmp_path / "out",
        epochs=12,
        learning_rate=0.01,
        schedule={"decay": "cosine"},
        **MPCA,
    )
    steps: list[int] = []
    train_on_spark(spark, run, on_progress=lambda progress: steps.append(progress.step))
    assert steps
    totals = summary(run.out_dir)
    assert totals["samples"] == 12 * sum(ROWS["train"])
    assert totals["best_val_accuracy"] > 0.9
    assert min(totals["acted"].values()) > 0
    # Steps between the beginning of a sum and its end.
    assert max(rank["max_staleness"] for rank in totals["per_rank"]) > 1
    log = [json.loads(line) for line in (run.out_dir / "cycles.jsonl").read_text().splitlines()]
    assert [cycle["number"] for cycle in log] == list(range(1, len(log) + 1))
    # The agents meet once more after the summary.
    assert 0 < len(log) - totals["cycles"] <= 2
    assert (
        totals["bytes_reduced"]
        == sum(cycle["bytes_reduced"] for cycle in log[: totals["cycles"]])
        > 0
    )
    assert 0 < totals["utilisation"] <= 1
    text = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")
    assert {key for key in records(run.out_dir)[0][-1] if f"`{key}`" not in text} == set()
    assert spark.statusTracker().getActiveJobsIds() == []
    assert agents_of(run.out_dir) == []


def test_the_error_of_an_agent_is_that_of_the_run(spark: SparkContext, tmp_path: Path) -> None:
    damaged = write_dataset(tmp_path / "set", rows=ROWS)
    run = make_spec(damaged, tmp_path / "out", **MPCA)
    for path in damaged.files("val"):
        Path(path).write_bytes(b"PAR1 and no more")
    with pytest.raises(LaunchError, match=r"training failed on rank \d: "):
        train_on_spark(spark, run, on_progress=lambda _: None)
    assert agents_of(run.out_dir) == []


@pytest.mark.minutes
def test_a_lost_agent_is_replaced_no_end_of_the_driver_leaves_one_and_the_run_continues(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_dir = tmp_path / "run"
    publish_features(run_dir, rows=ROWS)
    train = MPCA | {"epochs": EPOCHS, "batch_size": 8, "learning_rate": 0.01, "reader": "arrow"}
    config = write_config(tmp_path, run_dir=str(run_dir), train=train, spark=CLUSTER)
    message = tmp_path / "words"

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pipeline", "train", "--config", str(config)]
        with message.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        request.addfinalizer(process.kill)
        return process

    def wait_for(
        process: subprocess.Popen[bytes], condition: Callable[[], bool], label: str
    ) -> None:
        def is_so() -> bool:
            if process.poll() is not None:
                raise AssertionError(message.read_text())
            return condition()

        wait_until(is_so, label=label, seconds=300)

    def epoch() -> int:
        """The epoch of the latest checkpoint.

        Agents may be several further at any look, and only the last is kept.
        """
        document = run_dir.glob("train/*/hlf/checkpoints/epoch-*/complete.json")
        return max((int(path.parent.name.split("-")[1]) for path in document), default=0)

    process = start()
    wait_for(process, lambda: epoch() >= 1, "the first epoch")
    agents_of_before = agents_of(run_dir)
    assert len(agents_of_before) == 2
    # They belong to no executor, and to no terminal; no secret is in their arguments.
    assert all(psutil.Process(agent.pid).terminal() is None for agent in agents_of_before)
    assert all(
        len(agent.cmdline()) == len(agents_of_before[0].cmdline()) for agent in agents_of_before
    )
    agents_of_before[1].kill()
    wait_for(process, lambda: any(run_dir.glob("train/*/hlf/lost_ranks.jsonl")), "the loss is seen")
    lost_at = epoch()
    wait_until(lambda: {agent.pid for agent in agents_of(run_dir)}.isdisjoint({agent.pid for agent in agents_of_before})
               and len(agents_of(run_dir)) == 2, label="others start from the checkpoint")  # fmt: skip
    wait_for(process, lambda: epoch() > lost_at, "they train")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(120) == Exit.INTERRUPTED, message.read_text()
    wait_until(lambda: not agents_of(run_dir), label="no agent is left after Ctrl-C")
    stopped_at = epoch()
    process = start()
    wait_for(process, lambda: epoch() > stopped_at, "the same command continues")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not agents_of(run_dir), label="no agent is left after a kill of the driver")
    result = pipeline("train", "--config", config)
    assert result.returncode == 0, result.stderr
    assert "training continues from the checkpoint" in result.stdout + result.stderr
    (out,) = run_dir.glob("train/*/hlf")
    document = json.loads((out / "summary.json").read_text())
    assert document["samples"] == EPOCHS * sum(ROWS["train"])
    assert document["best_val_accuracy"] > 0.9
    assert [[record["epoch"] for record in history] for history in records(out)] == [
        [*range(EPOCHS)]
    ] * 2
    assert np.isfinite(document["mean_cycle_seconds"])
    assert not agents_of(run_dir)
