"""The command line of srun, and the environment and the network of mpirun."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hep_core.environment import MODULE_COMMAND
from training.errors import LaunchError
from training.launching.loopback_only import without_network
from training.launching.mpirun import rank_command, rank_environment, run_measurement
from training.settings import TrainSettings

SSH_ARGUMENTS, SSH_AGENT = "PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_agent"
ARGUMENT_VARIABLES = {SSH_ARGUMENTS, "OMPI_MCA_plm_rsh_args"}


@pytest.mark.parametrize(
    ("arguments", "user_variable", "our_variables"),
    [
        (["--hostfile", "hosts.txt"], "", ARGUMENT_VARIABLES),
        ([], SSH_ARGUMENTS, {"OMPI_MCA_plm_rsh_args"}),
        (["--prtemca", "plm_ssh_agent", "/path/agent"], "", set()),
        ([], SSH_AGENT, set()),
    ],
)
def test_ssh_notices_a_silent_host_unless_the_user_has_set_its_options(
    arguments: list[str],
    user_variable: str,
    our_variables: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*ARGUMENT_VARIABLES, "PRTE_MCA_plm_ssh_agent", SSH_AGENT):
        monkeypatch.delenv(name, raising=False)
    if user_variable:
        monkeypatch.setenv(user_variable, "-p 2222")

    environment = rank_environment(TrainSettings(workers=2), arguments)

    noticing = {
        name for name in ARGUMENT_VARIABLES if "ServerAliveInterval=" in environment.get(name, "")
    }
    assert noticing == our_variables
    if user_variable:
        assert environment[user_variable] == "-p 2222"


@pytest.mark.parametrize(
    ("arguments", "variable", "keeps_network"),
    [
        ([], "", False),
        (["--mca", "osc", "^ucx"], "", False),
        (["--hostfile", "hosts.txt"], "", True),
        (["-H", "a,b"], "", True),
        ([], "SLURM_JOB_ID", True),
    ],
)
def test_only_a_run_on_one_host_loses_the_network(
    arguments: list[str], variable: str, keeps_network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")

    isolation = without_network(arguments, Path())

    assert (isolation == []) is keeps_network


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        # With the option, a rank of one thread would have less than srun gives it by itself.
        ({}, []),
        ({"threads": 4}, ["--cpus-per-task=4"]),
        # The last one counts.
        (
            {"threads": 4, "launcher_args": ["--cpus-per-task=6"]},
            ["--cpus-per-task=4", "--cpus-per-task=6"],
        ),
    ],
)
def test_srun_gives_a_rank_a_cpu_for_each_of_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], options: list[str]
) -> None:
    srun = tmp_path / "srun"
    srun.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    command = rank_command(TrainSettings(workers=8, launcher="srun", **settings), ["rank"])

    first_options = ["--mpi=pmix", "--kill-on-bad-exit=1", "--ntasks=8"]
    assert command == [str(srun), *first_options, *options, "rank"]


def test_the_messages_of_a_measurement_may_be_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\nprintf 'h\\351ros' >&2; exit 5\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    with pytest.raises(LaunchError, match="h\N{REPLACEMENT CHARACTER}ros"):
        run_measurement(TrainSettings(workers=2, launcher="srun"), ["rank"])


#: Prints two settings, its network namespace, its home and its arguments.
MPIRUN = """#!/bin/sh
echo "$OMPI_MCA_btl"
readlink /proc/self/ns/net
echo "$HOME" "$OMPI_MCA_pml" "$@"
"""


def run_isolated(folder: Path, needed_folder: Path, **variables: str) -> list[str]:
    """The lines that an isolated mpirun prints; it needs a folder."""
    program = folder / "mpirun"
    program.write_text(MPIRUN)
    program.chmod(0o755)
    module = [*MODULE_COMMAND, "training.launching.loopback_only"]
    completed = subprocess.run(
        [*module, str(needed_folder), str(program), "-n", "2"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | variables,
    )
    return completed.stdout.splitlines()


def test_a_program_without_the_right_or_the_folder_runs_as_it_is(tmp_path: Path) -> None:
    lines = run_isolated(tmp_path, tmp_path / "none")

    assert lines[:2] == ["^tcp", str(Path("/proc/self/ns/net").readlink())]


def test_parameters_of_a_site_or_user_do_not_reach_mpirun_on_one_host(tmp_path: Path) -> None:
    btl, _, home_and_arguments = run_isolated(
        tmp_path, tmp_path, HOME="/home/ada", OMPI_MCA_pml="ucx", OMPI_MCA_btl="openib"
    )

    assert btl == "^tcp"
    assert home_and_arguments == "/dev/null  -x HOME=/home/ada -n 2"
