"""Ranks that die, stop or compute nonsense, on real MPI."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from feature_datasets import write_dataset
from ranks import processes_of, wait_until
from training_runs import flat_weights, make_spec, records, summary

from features.dataset import FeatureDataset
from hep_core.environment import MODULE_COMMAND
from training.errors import LaunchError, StalledError
from training.launching.launcher import launch, launch_all
from training.launching.mpirun import rank_command, rank_environment
from training.launching.rank import RunSpec
from training.settings import TrainSettings

pytestmark = [pytest.mark.minutes, pytest.mark.distributed, pytest.mark.timeout(900)]

ROWS = {"train": [40] * 8, "val": [20, 20], "test": [10]}
EPOCHS = 24
RANK = (*MODULE_COMMAND, "training.launching.rank_process")
SLOW = {"epochs": EPOCHS, "batch_size": 4, "checkpoint_steps": 20}
MPCA = {"algorithm": "mpca", "cycle_steps": 4}
#: Runs of which a rank is killed, one of every kind of method.
KILLED: dict[str, dict[str, Any]] = {
    name: {"algorithm": name} for name in ("ar-sgd", "d-psgd", "ad-psgd", "agn", "mpca")
} | {
    "mpca in cycles": MPCA,
    "easgd together": {"algorithm": "easgd", "local_steps": 3, "synchronous": True},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


#: Methods whose result does not depend on who was faster.
FIXED: dict[str, dict[str, Any]] = {
    "ar-sgd": {"algorithm": "ar-sgd"},
    "d-psgd": {"algorithm": "d-psgd"},
    "local-sgd": {"algorithm": "local-sgd", "slowmo": {"tau": 5}},
    "mpca in cycles": MPCA,
}


@pytest.fixture(scope="module")
def calm(dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """Their undisturbed runs, in ranks that are started once."""
    folder = tmp_path_factory.mktemp("calm")
    runs = {name: make_spec(dataset, folder / name, **SLOW, **keys) for name, keys in FIXED.items()}
    launch_all(list(runs.values()), folder / "job", on_progress=lambda *_: None)
    return runs


def has_checkpoint(run: RunSpec) -> bool:
    """Whether there is a complete one."""
    return any((run.out_dir / "checkpoints").glob("*/complete.json"))


def rank_processes(folder: Path) -> list[psutil.Process]:
    """The Python processes of the ranks of a job, in no particular order."""
    return [
        process
        for process in processes_of(folder)
        if "training.launching.rank_process" in " ".join(process.info["cmdline"][:5])
    ]


@contextmanager
def signal_to_a_rank(run: RunSpec, signal_number: signal.Signals) -> Iterator[list[int]]:
    """Once a first checkpoint is there, send a signal to one rank.

    Yields its process id in a list.
    """
    hit: list[int] = []
    is_over = threading.Event()

    def send() -> None:
        wait_until(
            lambda: has_checkpoint(run) or is_over.is_set(), label="a checkpoint", seconds=600
        )
        if is_over.is_set():
            return
        victim = rank_processes(run.out_dir)[-1]
        os.kill(victim.pid, signal_number)
        hit.append(victim.pid)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield hit
    finally:
        is_over.set()
        thread.join()


class Killed(NamedTuple):
    """Runs of one job, in each of which a rank was killed after its first checkpoint."""

    runs: dict[str, RunSpec]
    left: list[list[int]]
    """Numbers of the runs that ranks were given at the start before each kill, and at the last
    start."""
    unfinished: list[bool]
    """Whether the run had no result then."""
    losses: list[str]


@pytest.fixture(scope="module")
def killed(dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """One run of each method, in ranks that are started once and again after each kill."""
    folder = tmp_path_factory.mktemp("killed")
    restarts = {"max_restarts": len(KILLED)}
    runs = {
        name: make_spec(dataset, folder / name, **SLOW, **restarts, **keys)
        for name, keys in KILLED.items()
    }
    created = Killed(runs, [], [], [])
    job, is_over = folder / "job", threading.Event()

    def note_list() -> None:
        created.left.append(
            [load["number"] for load in json.loads((job / "runs.json").read_text())]
        )

    def kill() -> None:
        for run in runs.values():
            wait_until(
                lambda run=run: has_checkpoint(run) or is_over.is_set(),
                label="a checkpoint",
                seconds=600,
            )  # type: ignore[misc]
            if is_over.is_set():
                return
            note_list()
            rank_processes(job)[-1].kill()
            created.unfinished.append(not (run.out_dir / "summary.json").exists())

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        launch_all(
            list(runs.values()), job, on_progress=lambda *_: None, on_loss=created.losses.append
        )
    finally:
        is_over.set()
        thread.join()
    note_list()
    return created


@pytest.mark.parametrize("algorithm", KILLED)
def test_a_killed_rank_is_noticed_and_all_continue_from_the_last_checkpoint(
    killed: Killed, calm: dict[str, RunSpec], algorithm: str
) -> None:
    run, number = killed.runs[algorithm], list(KILLED).index(algorithm)
    assert killed.unfinished[number]
    message = (
        r"a rank was lost \(.*process rank \d with .* signal 9 \(Killed\).*\); all start again"
    )
    assert re.match(message, killed.losses[number])
    for rank in records(run.out_dir):
        assert [record["epoch"] for record in rank] == list(range(EPOCHS))
    assert summary(run.out_dir)["samples"] == EPOCHS * sum(ROWS["train"])
    if algorithm in FIXED:
        np.testing.assert_array_equal(
            flat_weights(run.out_dir), flat_weights(calm[algorithm].out_dir)
        )


def test_a_killed_rank_costs_only_the_run_it_was_in(killed: Killed) -> None:
    numbers = list(range(len(KILLED)))
    assert killed.left == [numbers, *(numbers[index:] for index in numbers)]
    assert len(killed.losses) == len(KILLED)


def test_a_rank_that_is_lost_again_and_again_ends_the_run(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", max_restarts=0, **SLOW)
    with (
        signal_to_a_rank(run, signal.SIGKILL),
        pytest.raises(LaunchError, match=r"a rank was lost.*max_restarts"),
    ):
        launch(run, on_progress=lambda _: None)


def test_a_stopped_rank_is_reported_with_what_the_others_were_doing(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", stall_seconds=15.0, **SLOW)
    with signal_to_a_rank(run, signal.SIGSTOP) as stopped, pytest.raises(StalledError) as caught:
        launch(run, on_progress=lambda _: None)
    assert stopped
    message = str(caught.value)
    # mpirun continues a stopped rank before it ends it, so the rank may still print a line.
    assert "rank 0: " in message
    assert "rank 1: " in message
    assert any(
        description in message
        for description in (
            "in an all-reduce, for",
            "in a barrier, for",
            "waiting for the others, for",
        )
    )
    assert list((run.out_dir / "stalls").glob("rank-*.json"))
    wait_until(lambda: not processes_of(run.out_dir), label="all ranks are gone")


def test_a_host_that_does_not_see_the_run_folder_says_so(tmp_path: Path) -> None:
    settings = TrainSettings(workers=2, algorithm="ar-sgd")
    command, env = (
        rank_command(settings, [*RANK, str(tmp_path / "nowhere" / "runs.json")]),
        rank_environment(settings),
    )
    completed = subprocess.run(
        command,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert completed.returncode != 0
    assert (
        f"{socket.gethostname()} does not see {tmp_path}/nowhere/runs.json: the run folder must be on"
        in completed.stderr
    )
    assert "Traceback" not in completed.stderr


def test_a_run_by_hand_is_not_ended_by_the_report_of_an_earlier_standstill(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", epochs=1)
    run.save(run.out_dir / "run.json")
    (run.out_dir / "stalls").mkdir()
    listed = run.out_dir / "runs.json"
    listed.write_text(json.dumps([{"number": 0, "spec": str(run.out_dir / "run.json")}]))
    command = rank_command(run.train, [*RANK, str(listed)])
    subprocess.run(
        command, env=rank_environment(run.train), check=True, stdin=subprocess.DEVNULL, timeout=120
    )
    assert summary(run.out_dir)["epochs"] == 1
    # A rank that sees one reports too, and ends some seconds later.
    assert not (run.out_dir / "stalls").exists()


def test_a_second_launch_continues_an_interrupted_one_within_its_run(
    dataset: FeatureDataset, calm: dict[str, RunSpec], tmp_path: Path
) -> None:
    selected: list[dict[str, Any]] = [{}, {**SLOW, **FIXED["local-sgd"]}]
    runs = [
        make_spec(dataset, tmp_path / f"{index}", **keys) for index, keys in enumerate(selected)
    ]

    def interrupt(index: int, progress: Any) -> None:
        if index == 1 and progress.epoch > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch_all(runs, tmp_path / "job", on_progress=interrupt)
    wait_until(lambda: not processes_of(tmp_path / "job"), label="all ranks are gone")
    seen: list[tuple[int, int]] = []
    launch_all(
        runs,
        tmp_path / "job",
        on_progress=lambda index, progress: seen.append((index, progress.epoch)),
    )
    assert {index for index, _ in seen} == {1}
    assert seen[0][1] > 1, "it started from scratch"
    assert [record["epoch"] for record in records(runs[1].out_dir)[0]] == list(range(EPOCHS))
    np.testing.assert_array_equal(
        flat_weights(runs[1].out_dir), flat_weights(calm["local-sgd"].out_dir)
    )
