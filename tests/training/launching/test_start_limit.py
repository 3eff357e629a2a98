"""What ends a launcher whose ranks do not come."""

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

from ingestion.environment import PROGRAM
from training.errors import LaunchError
from training.launching import launcher, loopback_only, start_limit
from training.launching.rank_reports import LaunchFiles
from training.launching.start_limit import end_ranks_here, say_present, without_network
from training.settings import TrainSettings


def launch_with(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a launch by another mpirun."""
    mpirun = folder / "mpirun"
    mpirun.write_text(f"#!/bin/sh\n{script}\n")
    mpirun.chmod(0o755)
    monkeypatch.setattr(launcher, "find_mpirun", lambda: mpirun)
    monkeypatch.setattr(start_limit, "_LEAST_SECONDS", 0.1)
    dataset = write_dataset(folder / "data", rows={"train": [40, 40], "val": [10], "test": [10]})
    run = make_spec(dataset, folder / "out", stall_seconds=0.2)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(run, on_progress=lambda _: None)
    return str(caught.value)


def test_a_start_that_does_not_end_is_ended_and_names_who_did_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = f"""
mkdir {tmp_path}/out/present {tmp_path}/out/signs
echo '{{"host": "host7", "pid": 1, "what": "does not come out of MPI"}}' > {tmp_path}/out/present/rank-1.json
exec sleep 1000"""
    words = launch_with(present, tmp_path, monkeypatch)
    assert "the ranks did not start within 0.2 s" in words
    assert "rank 0: its process did not come" in words
    assert "rank 1 on host7: does not come out of MPI" in words


def test_a_launcher_that_is_killed_during_the_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that the ranks did not start."""
    words = launch_with("kill -9 $$", tmp_path, monkeypatch)
    assert words.startswith("mpirun was ended by signal 9 (Killed) while the ranks started")


def test_a_launcher_that_does_not_see_the_end_of_its_ranks_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_limit, "_END_SECONDS", 0.1)
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
        say_present(files, "has begun")
    assert json.loads((files.present / "rank-1.json").read_text())["host"] == socket.gethostname()
    end_ranks_here(files)
    assert not psutil.pid_exists(rank.pid)
    rank.communicate()
    assert other.poll() is None
    other.communicate()


@pytest.mark.parametrize(
    ("arguments", "where", "variable", "stays"),
    [
        ([], [], "", False),
        (["--mca", "osc", "^ucx"], [], "", False),
        (["--hostfile", "hosts.txt"], [], "", True),
        (["-H", "a,b"], [], "", True),
        ([], ["--host", "a"], "", True),
        ([], [], "SLURM_JOB_ID", True),
    ],
)
def test_only_a_run_on_one_host_loses_the_network(
    arguments: list[str], where: list[str], variable: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")
    settings = TrainSettings(workers=2, launcher_args=arguments)
    assert (without_network(settings, where, Path()) == []) == stays


def test_a_program_without_the_right_or_the_folder_runs_as_it_is(tmp_path: Path) -> None:
    done = subprocess.run(as_mpirun(tmp_path, tmp_path / "none"), check=True, capture_output=True, text=True)
    assert done.stdout.split()[:2] == ["^tcp", str(Path("/proc/self/ns/net").readlink())]


def as_mpirun(folder: Path, needed: Path) -> list[str]:
    """A program in the place of mpirun, which shows its environment and its arguments."""
    program = folder / "mpirun"
    program.write_text(
        '#!/bin/sh\necho "$OMPI_MCA_btl"; readlink /proc/self/ns/net; echo "$HOME" "$OMPI_MCA_pml" "$@"\n'
    )
    program.chmod(0o755)
    return [*PROGRAM, loopback_only.__name__, str(needed), str(program), "-n", "2"]


def test_parameters_of_a_site_or_user_do_not_reach_mpirun_on_one_host(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": "/home/ada", "OMPI_MCA_pml": "ucx", "OMPI_MCA_btl": "openib"}
    done = subprocess.run(as_mpirun(tmp_path, tmp_path), check=True, capture_output=True, text=True, env=env)
    first, _, last = done.stdout.splitlines()
    assert (first, last) == ("^tcp", "/dev/null  -x HOME=/home/ada -n 2")
