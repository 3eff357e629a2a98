"""Ranks that die, stop or compute nonsense, on real MPI."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from feature_datasets import write_dataset
from rank_programs import GIVEN_UP
from ranks import processes_of, wait_until
from training_runs import flat_weights, make_spec, records, summary

from features.dataset import FeatureDataset
from training.errors import LaunchError, StalledError
from training.launching.launcher import launch, launch_all, rank_command, rank_environment
from training.launching.rank import RunSpec
from training.settings import TrainSettings

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

ROWS = {"train": [40] * 8, "val": [20, 20], "test": [10]}
SLOW = {"epochs": 60, "batch_size": 4, "checkpoint_steps": 20}
#: Methods of which a rank is killed, one of every kind at least, and those whose survivors continue.
KILLED = ("ar-sgd", "d-psgd", "ad-psgd", "swarm-sgd", "agn", "mpca")
SHRUNK = ("ar-sgd", "local-sgd", "d-psgd")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


#: Methods whose result does not depend on who was faster.
FIXED: dict[str, dict[str, Any]] = {
    "ar-sgd": {"algorithm": "ar-sgd"},
    "d-psgd": {"algorithm": "d-psgd"},
    "local-sgd": {"algorithm": "local-sgd", "slowmo": {"tau": 5}},
}


@pytest.fixture(scope="module")
def calm(dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """Their undisturbed runs, in ranks that are started once."""
    folder = tmp_path_factory.mktemp("calm")
    runs = {name: make_spec(dataset, folder / name, **SLOW, **each) for name, each in FIXED.items()}
    launch_all(list(runs.values()), folder / "job", on_progress=lambda *_: None)
    return runs


def rank_processes(run: RunSpec) -> list[psutil.Process]:
    """The Python processes of the ranks, in no particular order."""
    return [
        process
        for process in processes_of(run.out_dir)
        if "training.launching.rank_process" in " ".join(process.cmdline()[:4])
    ]


@contextmanager
def signal_to_a_rank(run: RunSpec, number: signal.Signals) -> Iterator[list[int]]:
    """Once a first checkpoint is there, send a signal to one rank; yields its process id in a list."""
    hit: list[int] = []

    def send() -> None:
        wait_until(lambda: list((run.out_dir / "checkpoints").glob("*/complete.json")), what="a checkpoint")
        victim = rank_processes(run)[-1]
        os.kill(victim.pid, number)
        hit.append(victim.pid)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield hit
    finally:
        thread.join()


@pytest.mark.parametrize("algorithm", KILLED)
def test_a_killed_rank_is_noticed_and_all_continue_from_the_last_checkpoint(
    dataset: FeatureDataset, calm: dict[str, RunSpec], tmp_path: Path, algorithm: str
) -> None:
    run = make_spec(dataset, tmp_path / "out", **SLOW, algorithm=algorithm)
    losses: list[str] = []
    with signal_to_a_rank(run, signal.SIGKILL) as hit:
        launch(run, on_progress=lambda _: None, on_loss=losses.append)
    assert len(hit) == len(losses) == 1
    assert re.match(r"a rank was lost \(rank \d on \S+ ended by signal 9 \(Killed\)\); all start again", losses[0])
    for rank in records(run.out_dir):
        assert [record["epoch"] for record in rank] == list(range(60))
    assert summary(run.out_dir)["samples"] == 60 * sum(ROWS["train"])
    if algorithm in FIXED:
        np.testing.assert_array_equal(flat_weights(run.out_dir), flat_weights(calm[algorithm].out_dir))


@pytest.mark.parametrize("algorithm", SHRUNK)
def test_survivors_continue_without_the_killed_rank(dataset: FeatureDataset, tmp_path: Path, algorithm: str) -> None:
    for attempt in range(3):
        run = make_spec(
            dataset,
            tmp_path / f"{attempt}",
            workers=4,
            on_rank_loss="shrink",
            algorithm=algorithm,
            stall_seconds=60,
            **SLOW,
        )
        again: list[str] = []
        with signal_to_a_rank(run, signal.SIGKILL), suppress(StalledError):
            launch(run, on_progress=lambda _: None, on_loss=again.append)
        if GIVEN_UP not in "".join([(run.out_dir / "ranks.log").read_text(), *again]):
            break
    assert not again, f"all started again: {again}"
    told = summary(run.out_dir)
    assert told["workers"] == 3
    history = records(run.out_dir)
    assert len(history) == 3
    assert {record["workers"] for record in history[0]} == {3, 4}
    assert [record["epoch"] for record in history[0]] == list(range(60))
    assert told["best_val_loss"] < 0.7 * history[0][0]["val_loss"]


def test_a_rank_that_is_lost_again_and_again_ends_the_run(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = make_spec(dataset, tmp_path / "out", max_restarts=0, **SLOW)
    with signal_to_a_rank(run, signal.SIGKILL), pytest.raises(LaunchError, match=r"a rank was lost.*max_restarts"):
        launch(run, on_progress=lambda _: None)


def test_a_stopped_rank_is_reported_with_what_the_others_were_doing(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = make_spec(dataset, tmp_path / "out", stall_seconds=4.0, **SLOW)
    with signal_to_a_rank(run, signal.SIGSTOP), pytest.raises(StalledError) as caught:
        launch(run, on_progress=lambda _: None)
    message = str(caught.value)
    # mpirun continues a stopped rank before it ends it, so the rank may still print a line.
    assert "rank 0: " in message
    assert "rank 1: " in message
    assert any(
        what in message for what in ("in an all-reduce, for", "in a barrier, for", "waiting for the others, for")
    )
    assert list((run.out_dir / "stalls").glob("rank-*.json"))
    wait_until(lambda: not processes_of(run.out_dir), what="all ranks are gone")


def test_a_host_that_does_not_see_the_run_folder_says_so(tmp_path: Path) -> None:
    command = rank_command(TrainSettings(workers=2, algorithm="ar-sgd"), tmp_path / "nowhere" / "run.json")
    done = subprocess.run(
        [word for word in command if word != "--launched"],
        env=rank_environment(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"{socket.gethostname()} does not see {tmp_path}/nowhere/run.json: the run folder must be on" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_by_hand_is_not_ended_by_the_report_of_an_earlier_standstill(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", epochs=1)
    run.save(run.out_dir / "run.json")
    (run.out_dir / "stalls").mkdir()
    command = [word for word in rank_command(run.train, run.out_dir / "run.json") if word != "--launched"]
    subprocess.run(command, env=rank_environment(), check=True, stdin=subprocess.DEVNULL, timeout=120)
    assert summary(run.out_dir)["epochs"] == 1
    # A rank that sees one reports too, and ends some seconds later.
    assert not (run.out_dir / "stalls").exists()


def test_a_second_launch_continues_an_interrupted_one(
    dataset: FeatureDataset, calm: dict[str, RunSpec], tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", **SLOW, **FIXED["local-sgd"])

    def interrupt(progress: Any) -> None:
        if progress.epoch > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(run, on_progress=interrupt)
    started = time.monotonic()
    seen: list[int] = []
    launch(run, on_progress=lambda progress: seen.append(progress.epoch))
    assert seen[0] > 1, f"it started from scratch after {time.monotonic() - started:.0f} s"
    np.testing.assert_array_equal(flat_weights(run.out_dir), flat_weights(calm["local-sgd"].out_dir))
