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
from concurrent.futures import ThreadPoolExecutor
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
from training.launching.rank_reports import LaunchFiles
from training.launching.run_spec import RunSpec
from training.settings import TrainSettings

pytestmark = [pytest.mark.minutes, pytest.mark.distributed, pytest.mark.timeout(900)]

ROWS = {"train": [40] * 8, "val": [20, 20], "test": [10]}
EPOCHS = 24
LONG_RUN = {"epochs": EPOCHS, "batch_size": 4, "checkpoint_steps": 20}
#: Methods whose result does not depend on the speed of the ranks.
DETERMINISTIC: dict[str, dict[str, Any]] = {
    "ar-sgd": {"algorithm": "ar-sgd"},
    "d-psgd": {"algorithm": "d-psgd"},
    "mpca in cycles": {"algorithm": "mpca", "cycle_steps": 4},
    "local-sgd": {"algorithm": "local-sgd", "slowmo": {"tau": 5}},
}
DECORRELATE = {"from": ["lepton_pt"], "strength": 5.0, "classes": ["QCD"], "signal": "ttbar"}
#: Runs with a further term of the loss, of two networks.
DECORRELATED: dict[str, dict[str, Any]] = {
    "decorrelated": {"algorithm": "ar-sgd", "decorrelate": DECORRELATE, "batch_size": 16},
    "decorrelated particles": {
        "algorithm": "d-psgd",
        "decorrelate": DECORRELATE,
        "batch_size": 16,
        "model": {"name": "particles", "gru_width": 4},
    },
}
DETERMINISTIC |= DECORRELATED
#: Methods of every kind, of whose runs a rank is killed.
KILLED: dict[str, dict[str, Any]] = {
    "ar-sgd": DETERMINISTIC["ar-sgd"],
    "d-psgd": DETERMINISTIC["d-psgd"],
    "ad-psgd": {"algorithm": "ad-psgd"},
    "agn": {"algorithm": "agn"},
    "mpca": {"algorithm": "mpca"},
    "mpca in cycles": DETERMINISTIC["mpca in cycles"],
    "easgd together": {"algorithm": "easgd", "local_steps": 3, "synchronous": True},
    **DECORRELATED,
}
WAITING = re.compile(r"(in an all-reduce|in a barrier|waiting for the others), for")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


@pytest.fixture(scope="module")
def undisturbed(
    dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunSpec]:
    """Runs of the deterministic methods that nobody disturbs, in ranks that start once."""
    folder = tmp_path_factory.mktemp("undisturbed")
    runs = {
        name: make_spec(dataset, folder / name, **(LONG_RUN | method))
        for name, method in DETERMINISTIC.items()
    }
    launch_all(list(runs.values()), folder / "job", on_progress=lambda *_: None)
    return runs


def has_checkpoint(run: RunSpec) -> bool:
    return any((run.out_dir / "checkpoints").glob("*/complete.json"))


def wait_for_checkpoint(run: RunSpec, is_over: threading.Event) -> bool:
    """Wait for a checkpoint of a run; False if its job is over instead."""

    def is_reached() -> bool:
        return has_checkpoint(run) or is_over.is_set()

    wait_until(is_reached, label="a checkpoint", seconds=600)
    return not is_over.is_set()


def rank_processes(folder: Path) -> list[psutil.Process]:
    """The Python processes of the ranks of a job, in any order."""
    return [
        process
        for process in processes_of(folder)
        if "training.launching.rank_process" in " ".join(process.info["cmdline"][:5])
    ]


def rank_program(runs_file: Path) -> list[str]:
    """The command of a rank of the runs that a file lists."""
    return [*MODULE_COMMAND, "training.launching.rank_process", str(runs_file)]


@contextmanager
def signal_to_one_rank(run: RunSpec, signal_number: signal.Signals) -> Iterator[list[int]]:
    """Send a signal to one rank after the first checkpoint.

    Yields:
        A list that gets the process id of that rank.
    """
    signalled: list[int] = []
    is_over = threading.Event()

    def send() -> None:
        if wait_for_checkpoint(run, is_over):
            victim = rank_processes(run.out_dir)[-1]
            victim.send_signal(signal_number)
            signalled.append(victim.pid)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield signalled
    finally:
        is_over.set()
        thread.join()


class KilledJob(NamedTuple):
    """Runs of one job, in each of which a rank was killed after its first checkpoint."""

    runs: dict[str, RunSpec]
    pending_runs: list[list[int]]
    """Numbers of the runs that ranks had to do, at each kill and at the end."""
    were_unfinished: list[bool]
    """True where the run had no result at its kill."""
    losses: list[str]


@pytest.fixture(scope="module")
def killed_job(dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory) -> KilledJob:
    """One run of each method, in ranks that start once and again after each kill."""
    folder = tmp_path_factory.mktemp("killed")
    runs = {
        name: make_spec(dataset, folder / name, max_restarts=len(KILLED), **(LONG_RUN | method))
        for name, method in KILLED.items()
    }
    job = KilledJob(runs, [], [], [])
    is_over = threading.Event()

    def note_pending_runs() -> None:
        listed = json.loads((folder / "job" / "runs.json").read_text())
        job.pending_runs.append([entry["number"] for entry in listed])

    def kill_a_rank_of_each_run() -> None:
        for run in runs.values():
            if not wait_for_checkpoint(run, is_over):
                return
            note_pending_runs()
            rank_processes(folder / "job")[-1].kill()
            job.were_unfinished.append(not (run.out_dir / "summary.json").exists())

    thread = threading.Thread(target=kill_a_rank_of_each_run)
    thread.start()
    try:
        launch_all(
            list(runs.values()),
            folder / "job",
            on_progress=lambda *_: None,
            on_loss=job.losses.append,
        )
    finally:
        is_over.set()
        thread.join()
    note_pending_runs()
    return job


@pytest.mark.parametrize("method", KILLED)
def test_all_ranks_continue_from_the_last_checkpoint_after_one_is_killed(
    killed_job: KilledJob, undisturbed: dict[str, RunSpec], method: str
) -> None:
    run = killed_job.runs[method]
    index = list(KILLED).index(method)

    assert killed_job.were_unfinished[index]
    assert re.match(
        r"a rank was lost \(.*process rank \d with .* signal 9 \(Killed\).*\); all start again",
        killed_job.losses[index],
    )
    for rank_records in records(run.out_dir):
        assert [record["epoch"] for record in rank_records] == list(range(EPOCHS))
    assert summary(run.out_dir)["samples"] == EPOCHS * sum(ROWS["train"])
    if method in DETERMINISTIC:
        np.testing.assert_array_equal(
            flat_weights(run.out_dir), flat_weights(undisturbed[method].out_dir)
        )


@pytest.mark.parametrize("method", DECORRELATED)
def test_steps_with_the_term_of_the_loss_are_counted_once_across_a_kill(
    killed_job: KilledJob, undisturbed: dict[str, RunSpec], method: str
) -> None:
    interrupted = decorrelated_steps(killed_job.runs[method])
    expected = decorrelated_steps(undisturbed[method])

    assert interrupted == expected
    assert min(expected) > EPOCHS


def decorrelated_steps(run: RunSpec) -> list[int]:
    """Number of steps of each rank whose loss had the further term."""
    return [
        sum(record["decorrelated_steps"] for record in rank_records)
        for rank_records in records(run.out_dir)
    ]


def test_a_killed_rank_costs_only_the_run_that_it_was_in(killed_job: KilledJob) -> None:
    numbers = list(range(len(KILLED)))
    unfinished_at_kills = [numbers[index:] for index in numbers]

    assert killed_job.pending_runs == [numbers, *unfinished_at_kills]
    assert len(killed_job.losses) == len(KILLED)


def test_a_rank_that_is_lost_once_too_often_ends_the_run(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", max_restarts=0, **LONG_RUN)

    with (
        signal_to_one_rank(run, signal.SIGKILL),
        pytest.raises(LaunchError, match=r"a rank was lost.*max_restarts"),
    ):
        launch(run, on_progress=lambda _: None)


def crash_first_rank_that_begins(run: RunSpec) -> None:
    """End the first rank that begins by SIGSEGV, before the ranks have found each other."""
    files = LaunchFiles(run.out_dir)
    # A rank notes its number and its process before MPI begins.
    wait_until(lambda: bool(files.heartbeats()), label="a rank begins", seconds=600)
    first_rank = min(files.heartbeats())
    os.kill(files.heartbeats()[first_rank].pid, signal.SIGSEGV)
    assert not files.has_started


def test_a_rank_that_crashes_during_the_start_starts_again(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", epochs=1)
    losses: list[str] = []

    with ThreadPoolExecutor(1) as pool:
        crash = pool.submit(crash_first_rank_that_begins, run)
        launch(run, on_progress=lambda _: None, on_loss=losses.append)

    crash.result()
    assert len(losses) == 1
    assert "signal 11" in losses[0]
    assert len(LaunchFiles(run.out_dir).lost_ranks()) == 1


def test_the_report_of_a_stopped_rank_names_the_operation_of_each_rank(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", stall_seconds=15.0, **LONG_RUN)

    with signal_to_one_rank(run, signal.SIGSTOP) as stopped, pytest.raises(StalledError) as error:
        launch(run, on_progress=lambda _: None)

    assert stopped
    message = str(error.value)
    # mpirun continues a stopped rank before it ends it, so the rank may still print a line.
    assert "rank 0: " in message
    assert "rank 1: " in message
    assert WAITING.search(message)
    assert list((run.out_dir / "stalls").glob("rank-*.json"))
    wait_until(lambda: not processes_of(run.out_dir), label="all ranks are gone")


def test_a_host_that_does_not_see_the_run_folder_says_so(tmp_path: Path) -> None:
    runs_file = tmp_path / "nowhere" / "runs.json"
    settings = TrainSettings(workers=2, algorithm="ar-sgd")

    completed = subprocess.run(
        rank_command(settings, rank_program(runs_file)),
        env=rank_environment(settings),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )

    message = f"{socket.gethostname()} does not see {runs_file}: the run folder must be on"
    assert completed.returncode != 0
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr


def test_ranks_started_by_hand_ignore_the_report_of_an_earlier_standstill(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", epochs=1)
    run.save(run.out_dir / "run.json")
    (run.out_dir / "stalls").mkdir()
    runs_file = run.out_dir / "runs.json"
    runs_file.write_text(json.dumps([{"number": 0, "spec": str(run.out_dir / "run.json")}]))

    subprocess.run(
        rank_command(run.train, rank_program(runs_file)),
        env=rank_environment(run.train),
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )

    assert summary(run.out_dir)["epochs"] == 1
    # A rank that sees a report writes one too, and ends some seconds later.
    assert not (run.out_dir / "stalls").exists()


def test_a_second_launch_continues_within_the_interrupted_run(
    dataset: FeatureDataset, undisturbed: dict[str, RunSpec], tmp_path: Path
) -> None:
    short = make_spec(dataset, tmp_path / "short")
    long = make_spec(dataset, tmp_path / "long", **LONG_RUN, **DETERMINISTIC["local-sgd"])
    progress_of_second: list[tuple[int, int]] = []

    def interrupt(index: int, progress: Any) -> None:
        if index == 1 and progress.epoch > 2:
            raise KeyboardInterrupt

    def note_progress(index: int, progress: Any) -> None:
        progress_of_second.append((index, progress.epoch))

    with pytest.raises(KeyboardInterrupt):
        launch_all([short, long], tmp_path / "job", on_progress=interrupt)
    wait_until(lambda: not processes_of(tmp_path / "job"), label="all ranks are gone")
    launch_all([short, long], tmp_path / "job", on_progress=note_progress)

    assert {index for index, _ in progress_of_second} == {1}
    _, first_epoch = progress_of_second[0]
    assert first_epoch > 1, "it started from scratch"
    assert [record["epoch"] for record in records(long.out_dir)[0]] == list(range(EPOCHS))
    np.testing.assert_array_equal(
        flat_weights(long.out_dir), flat_weights(undisturbed["local-sgd"].out_dir)
    )
