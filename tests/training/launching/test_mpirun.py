"""How mpirun is started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hep_core.environment import MODULE_COMMAND
from training.launching.loopback_only import without_network
from training.launching.mpirun import rank_environment
from training.settings import TrainSettings

ARGS, AGENT = "PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_agent"
BOTH = {ARGS, "OMPI_MCA_plm_rsh_args"}


@pytest.mark.parametrize(
    ("arguments", "variable", "has_ours"),
    [
        (["--hostfile", "hosts.txt"], "", BOTH),
        ([], ARGS, {"OMPI_MCA_plm_rsh_args"}),
        (["--prtemca", "plm_ssh_agent", "/path/agent"], "", set()),
        ([], AGENT, set()),
    ],
)
def test_a_host_without_power_stalled_mpirun_forever_but_options_and_agent_of_the_user_stay(
    arguments: list[str], variable: str, has_ours: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*BOTH, "PRTE_MCA_plm_ssh_agent", AGENT):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "-p 2222")
    actual = rank_environment(TrainSettings(workers=2), arguments)
    assert {name for name in BOTH if "ServerAliveInterval=" in actual.get(name, "")} == has_ours
    assert not variable or actual[variable] == "-p 2222"


@pytest.mark.parametrize(
    ("arguments", "variable", "stays"),
    [
        ([], "", False),
        (["--mca", "osc", "^ucx"], "", False),
        (["--hostfile", "hosts.txt"], "", True),
        (["-H", "a,b"], "", True),
        ([], "SLURM_JOB_ID", True),
    ],
)
def test_only_a_run_on_one_host_loses_the_network(
    arguments: list[str], variable: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")
    assert (without_network(arguments, Path()) == []) == stays


def as_mpirun(folder: Path, needed: Path) -> list[str]:
    """A program in the place of mpirun, which shows its environment and its arguments."""
    program = folder / "mpirun"
    program.write_text(
        '#!/bin/sh\necho "$OMPI_MCA_btl"; readlink /proc/self/ns/net; echo "$HOME" "$OMPI_MCA_pml" "$@"\n'
    )
    program.chmod(0o755)
    return [
        *MODULE_COMMAND,
        "training.launching.loopback_only",
        str(needed),
        str(program),
        "-n",
        "2",
    ]


def test_a_program_without_the_right_or_the_folder_runs_as_it_is(tmp_path: Path) -> None:
    completed = subprocess.run(
        as_mpirun(tmp_path, tmp_path / "none"), check=True, capture_output=True, text=True
    )
    assert completed.stdout.split()[:2] == ["^tcp", str(Path("/proc/self/ns/net").readlink())]


def test_parameters_of_a_site_or_user_do_not_reach_mpirun_on_one_host(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": "/home/ada", "OMPI_MCA_pml": "ucx", "OMPI_MCA_btl": "openib"}
    completed = subprocess.run(
        as_mpirun(tmp_path, tmp_path), check=True, capture_output=True, text=True, env=env
    )
    first, _, last = completed.stdout.splitlines()
    assert (first, last) == ("^tcp", "/dev/null  -x HOME=/home/ada -n 2")
