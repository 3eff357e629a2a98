"""What becomes of the messages of mpirun and srun, and what ends a launcher whose ranks do not come."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from feature_datasets import write_dataset
from training_runs import make_spec

from training.errors import LaunchError
from training.launching import launcher, mpirun, rank_reports
from training.launching.rank_reports import LaunchFiles, told_of_loss

RULE = "-" * 74
KILLED = f"""[host1:17298] plm:ssh: Warning: setpgid(17301,17301) failed in parent with errno=Permission denied(13)
{RULE}
prterun noticed that process rank 1 with PID 17449 on node host2 exited on
signal 9 (Killed).
{RULE}
"""
DAEMON = """------------------------------------------------------------
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries.

  Local host:    host1
  Remote host:   host2
  Daemon exit status: 255

------------------------------------------------------------
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (KILLED, "prterun noticed that process rank 1 with PID 17449 on node host2 exited on signal 9 (Killed)."),
        (DAEMON, "Local host: host1 Remote host: host2 Daemon exit status: 255"),
        ("some words\nrank 1 on host2 is gone\n", "some words rank 1 on host2 is gone"),
        ("", ""),
    ],
)
def test_the_message_of_a_lost_rank_began_in_the_middle_of_that_of_mpirun(log: str, told: str) -> None:
    assert told_of_loss(log).endswith(told)


def test_a_long_log_without_a_message_of_mpirun_gives_its_last_lines_from_their_beginning() -> None:
    told = told_of_loss("".join(f"line {number} {'of a rank ' * 15}\n" for number in range(50)))
    assert told.startswith("line 47 of a rank")
    assert told.endswith(" ...")
    assert len(told) <= 404


def launch_with(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a launch by another mpirun."""
    program = folder / "mpirun"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: program)
    monkeypatch.setattr(rank_reports, "_LEAST_SECONDS", 0.1)
    dataset = write_dataset(folder / "data", rows={"train": [40, 40], "val": [10], "test": [10]})
    run = make_spec(dataset, folder / "out", workers=3, stall_seconds=0.2)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(run, on_progress=lambda _: None)
    return str(caught.value)


def test_a_start_that_does_not_end_is_ended_and_names_who_did_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = f"""
mkdir {tmp_path}/out/present {tmp_path}/out/signs
touch {tmp_path}/out/signs/rank-2
echo '{{"host": "host7", "pid": 1, "what": "does not come out of MPI"}}' > {tmp_path}/out/present/rank-1.json
exec sleep 1000"""
    words = launch_with(present, tmp_path, monkeypatch)
    assert "the ranks did not start within 0.2 s" in words
    assert "rank 0: its process did not come" in words
    assert "rank 1 on host7: does not come out of MPI" in words
    # One that trains does not keep those that wait for the others.
    assert "rank 2" not in words


def test_a_launcher_that_is_killed_during_the_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that the ranks did not start."""
    words = launch_with("kill -9 $$", tmp_path, monkeypatch)
    assert words.startswith("mpirun was ended by signal 9 (Killed) while the ranks started")


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
    words = "import sys; sys.stdin.read()"
    names = ("training.launching.rank_process", "another")
    rank, other = (subprocess.Popen([sys.executable, "-c", words, name], stdin=subprocess.PIPE) for name in names)
    for number, process in enumerate((rank, other)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(number))
        monkeypatch.setattr(os, "getpid", lambda process=process: process.pid)
        files.say_present("has begun")
    assert json.loads((files.present / "rank-1.json").read_text())["host"] == socket.gethostname()
    files.end_ranks_here()
    assert not psutil.pid_exists(rank.pid)
    rank.communicate()
    assert other.poll() is None
    other.communicate()
