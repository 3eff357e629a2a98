"""Training with agents in the executors of a cluster of processes: without MPI, and with kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import CLUSTER, pipeline
from features_stage import config_of, made_features
from ranks import wait_until
from training_runs import records

pytestmark = [pytest.mark.spark, pytest.mark.distributed, pytest.mark.timeout(600)]

ROWS = {"train": [40] * 8, "val": [20, 20], "test": [30]}
EPOCHS = 14
TRAIN: dict[str, Any] = {
    "algorithm": {"name": "mpca", "shards": 3},
    "launcher": "spark-agents",
    "workers": 2,
    "epochs": EPOCHS,
    "batch_size": 8,
    "learning_rate": 0.01,
    "reader": "arrow",
}


def agents_of(run_dir: Path) -> dict[int, psutil.Process]:
    """The processes of the agents of a run, by partition."""
    found = {}
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if "training.agents.agent_process" not in words or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        path = Path(words[-1])
        if path.exists() and json.loads(path.read_text())["start"][2].startswith(str(run_dir)):
            found[int(path.stem.partition("-")[0])] = process
    return found


def test_a_lost_agent_is_replaced_a_lost_driver_leaves_none_and_the_run_continues(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_dir = tmp_path / "run"
    made_features(run_dir, rows=ROWS)
    config = config_of(tmp_path, run_dir, train=TRAIN, spark=CLUSTER)
    words = tmp_path / "words"
    with words.open("w") as file:
        command = [sys.executable, "-m", "pipeline", "train", "--config", str(config)]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    request.addfinalizer(process.kill)

    def has(pattern: str) -> bool:
        if process.poll() is not None:
            raise AssertionError(words.read_text())
        return bool(list(run_dir.glob(f"train/*/hlf/{pattern}")))

    wait_until(lambda: has("checkpoints/epoch-00001*/complete.json"), what="the first epoch", seconds=300)
    before = agents_of(run_dir)
    assert sorted(before) == [0, 1]
    # They belong to no executor, and to no terminal.
    assert all(psutil.Process(each.pid).terminal() is None for each in before.values())
    home = Path(before[0].cmdline()[-1]).parent
    before[1].kill()
    wait_until(lambda: has("losses.jsonl"), what="the loss is seen")
    wait_until(lambda: len(agents_of(run_dir)) == 2, what="another agent starts")
    now = agents_of(run_dir)
    assert now[0].pid == before[0].pid
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(agent.is_running() and agent.status() != "zombie" for agent in now.values()),
               what="no agent is left")  # fmt: skip
    wait_until(lambda: not home.exists(), what="their folder is removed")
    done = pipeline("train", "--config", config)
    assert done.returncode == 0, done.stderr
    assert "training continues from the checkpoint" in done.stdout + done.stderr
    (out,) = run_dir.glob("train/*/hlf")
    found = json.loads((out / "summary.json").read_text())
    assert found["samples"] == EPOCHS * sum(ROWS["train"])
    assert found["best_val_accuracy"] > 0.9
    first, second = records(out)
    assert [record["epoch"] for record in first] == list(range(EPOCHS))
    assert all(record["all_cycles"] > 0 and record["cycle_bytes_broadcast"] > 0 for record in first)
    assert sum(record["cycles"] for record in second) > 0
    assert not agents_of(run_dir)
