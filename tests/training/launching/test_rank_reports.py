"""What becomes of the messages of mpirun and srun, and what ends a launcher whose ranks do not
come."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from feature_datasets import write_dataset
from ranks import wait_until
from training_runs import make_spec

from hep_core import plugins
from hep_core.allocation import memory_limit
from training.errors import LaunchError
from training.launching import launcher, memory_use, mpirun, rank_reports
from training.launching.memory_use import MemoryWatch
from training.launching.rank_reports import LaunchFiles, RankError, StartLimit
from training.settings import TrainSettings


def launch_with(
    script: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    on_loss: Callable[[str], None] = lambda _: None,
) -> str:
    """The error of a launch by another mpirun."""
    program = folder / "mpirun"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: program)
    monkeypatch.setattr(rank_reports, "_LEAST_SECONDS", 0.1)
    dataset = write_dataset(folder / "data", rows={"train": [40, 40], "val": [10], "test": [10]})
    run = make_spec(dataset, folder / "out", workers=3, stall_seconds=0.2)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(run, on_progress=lambda _: None, on_loss=on_loss)
    return str(caught.value)


def test_a_start_that_does_not_end_is_ended_and_names_who_did_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = f"""
mkdir {tmp_path}/out/present {tmp_path}/out/signs
touch {tmp_path}/out/signs/rank-2
echo '{{"host": "host7", "pid": 1, "what": "does not come out of MPI"}}' > {tmp_path}/out/present/rank-1.json
exec sleep 1000"""
    message = launch_with(present, tmp_path, monkeypatch)
    assert "the ranks did not start within 0.2 s" in message
    assert "rank 0: its process did not come" in message
    assert "rank 1 on host7: does not come out of MPI" in message
    # One that trains does not keep those that wait for the others.
    assert "rank 2" not in message


def test_a_launcher_that_is_killed_during_the_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that the ranks did not start."""
    message = launch_with("kill -9 $$", tmp_path, monkeypatch)
    assert message.startswith("mpirun was ended by signal 9 (Killed) while the ranks started")


@pytest.mark.parametrize(
    ("log", "awaited"),
    [
        ("", "rank 0: its process did not come, rank 1 on host7: does not come out of MPI"),
        (
            "srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)\n",
            "retrying (Requested nodes are busy); an earlier step of this job may still end on these nodes",
        ),
    ],
)
def test_a_long_start_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, awaited: str
) -> None:
    monkeypatch.setattr(rank_reports, "_SILENCE_SECONDS", 0.01)
    monkeypatch.setattr(rank_reports, "_LOOK_SECONDS", 0.01)
    files = LaunchFiles(tmp_path)
    files.log.write_text(log)
    files.present.mkdir()
    (files.present / "rank-1.json").write_text(
        '{"host": "host7", "pid": 1, "what": "does not come out of MPI"}'
    )
    waits: list[str] = []
    limit = StartLimit(files, TrainSettings(workers=2), stop=lambda: None, on_wait=waits.append)
    wait_until(lambda: len(waits) > 1, label="words", seconds=60)
    limit.end()
    assert waits[0].startswith("for 0.01 s the start waits: ")
    assert waits[0].endswith(awaited)


PROGRESS = json.dumps(
    {
        "run": 0,
        "epoch": 1,
        "num_epochs": 4,
        "step": 3,
        "num_steps": 10,
        "loss": 1.0,
        "samples_per_second": 1.0,
        "consensus_distance": 0.0,
    }
)


def test_a_rank_killed_for_memory_before_the_first_step_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr(memory_use, "killed_for_memory", lambda: next(counts))
    losses: list[str] = []
    message = launch_with(
        f"touch {tmp_path}/out/started; exit 1", tmp_path, monkeypatch, on_loss=losses.append
    )
    assert message.startswith(f"the kernel has killed 1 process(es) for memory: {memory_limit()}")
    assert "No step was made" in message
    assert losses == []


def test_a_rank_killed_for_memory_after_steps_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(range(100))
    monkeypatch.setattr(memory_use, "killed_for_memory", lambda: next(counts))
    losses: list[str] = []
    script = f"touch {tmp_path}/out/started; echo '{PROGRESS}'; exit 1"
    message = launch_with(script, tmp_path, monkeypatch, on_loss=losses.append)
    assert len(losses) == TrainSettings().max_restarts
    assert "a rank was lost (the kernel has killed 1 process(es) for memory" in losses[0]
    assert "train.max_restarts" in message


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
        "srun: error: host2: task 1: Out Of Memory",
        "ImportError: libtorch_cpu.so: failed to map segment from shared object",
    ],
)
def test_a_lack_of_memory_in_the_log_is_named_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    error = launch_with(
        f"touch {tmp_path}/out/started; echo '{line}' >&2; exit 137", tmp_path, monkeypatch
    )
    assert error.startswith(
        f"a rank got no memory, or was killed for it ({line}); here {memory_limit()}. No step"
    )


def test_the_memory_of_each_rank_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 1])
    monkeypatch.setattr(memory_use, "killed_for_memory", lambda: next(counts))
    monkeypatch.setattr(memory_use, "_SECONDS_BETWEEN_LOOKS", 0.01)
    files = LaunchFiles(tmp_path)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    files.write_heartbeat("has begun")
    with MemoryWatch(files) as memory:
        wait_until(lambda: "rank 3 " in str(memory.largest()), label="a measurement", seconds=60)
    held = memory.kill(by_signal=False).partition("held up to [MiB]: rank 3 ")[2]
    assert 10 < int(held.replace(",", "")) < 100_000


def test_a_launcher_that_does_not_see_the_end_of_its_ranks_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_reports, "_END_SECONDS", 0.1)
    with pytest.raises(launcher.StalledError):
        launch_with(f"mkdir {tmp_path}/out/stalls; exec sleep 1000", tmp_path, monkeypatch)


def test_ranks_that_outlive_their_launcher_are_ended_and_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LaunchFiles(tmp_path)
    message = "import sys; sys.stdin.read()"
    names = ("training.launching.rank_process", "another")
    rank, second = (
        subprocess.Popen([sys.executable, "-c", message, name], stdin=subprocess.PIPE)
        for name in names
    )
    for index, process in enumerate((rank, second)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(index))
        monkeypatch.setattr(os, "getpid", lambda process=process: process.pid)
        files.write_heartbeat("has begun")
    assert json.loads((files.present / "rank-1.json").read_text())["host"] == socket.gethostname()
    files.end_ranks_here()
    assert not psutil.pid_exists(rank.pid)
    rank.communicate()
    assert second.poll() is None
    second.communicate()


def test_the_error_of_a_plugin_on_a_rank_names_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words were those of the error alone, and the error counted as one of the pipeline."""
    plugin = tmp_path / "method.py"
    plugin.write_text("def step():\n    return {}['rate']\n")
    module = plugins._import_file(plugin)
    monkeypatch.setitem(plugins._loaded, str(plugin), module)
    del sys.modules[module.__name__]
    with pytest.raises(KeyError) as caught:
        module.step()
    error = RankError.from_exception(caught.value)
    assert error.message == f"plugin {plugin}, line 2: KeyError: 'rate'"
    assert error.known
    assert "in step" in error.traceback


WARNING = "UCX WARN: cannot allocate memory for huge pages, others are used"


def test_a_line_about_memory_hides_no_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = launch_with(
        f"echo '{WARNING}' >&2; echo 'no option --bound' >&2; exit 1", tmp_path, monkeypatch
    )
    assert message.startswith("the ranks did not start: status 1")
    assert "no option --bound" in message


def test_a_line_about_memory_hides_no_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(launcher.StalledError):
        launch_with(
            f"mkdir {tmp_path}/out/stalls; echo '{WARNING}' >&2; exit 137", tmp_path, monkeypatch
        )
