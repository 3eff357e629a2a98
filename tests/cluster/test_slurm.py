"""A SLURM of two nodes."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from cluster_runs import LONG, AddRow, HostRuns, LocalResults
from clusters import Slurm, missing
from network_hosts import Network
from ranks import wait_until
from training_runs import flat_weights

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        bool(missing("slurmctld", "slurmd", "sbatch", "munged")),
        reason="no SLURM here (Debian: slurm-wlm)",
    ),
]

CLUSTER = "SLURM, 2 nodes"


@pytest.fixture(scope="module")
def slurm(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Slurm:
    return Slurm(hosts, tmp_path_factory.mktemp("slurm") / "files", nodes=2)


@pytest.fixture
def pmix(slurm: Slurm) -> None:
    """Skips what needs PMIx if this srun has none."""
    if "ready" not in slurm.run("srun", "--mpi=pmix", "echo", "ready", check=False):
        pytest.skip(
            "this srun has no PMIx (Debian: libpmix-dev, whose libpmix.so its plugin opens)"
        )


def script_of(folder: Path, *commands: list[str]) -> Path:
    """A batch script, as the documentation has it."""
    lines = ["#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=1", "set -e"]
    script = folder / "job.sh"
    script.write_text("\n".join([*lines, *map(shlex.join, commands)]) + "\n")
    return script


def output_of_job(script: Path) -> str:
    return Path(f"{script}.out").read_text(errors="replace")


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_cancelled_job_continues_when_it_is_submitted_again(
    hosts: Network,
    slurm: Slurm,
    local: LocalResults,
    tmp_path: Path,
    add_row: AddRow,
    launcher: str,
    request: pytest.FixtureRequest,
) -> None:
    if launcher == "srun":
        request.getfixturevalue("pmix")
    runs = HostRuns(hosts, tmp_path, train={"launcher": launcher})
    local.lend(runs.run_dir, "ingest", "features")
    script = script_of(tmp_path, runs.command("train", sets=LONG))
    job = slurm.submit(script)
    runs.await_checkpoint()
    assert [len(hosts.processes(node, "rank_process")) > 0 for node in (0, 1)] == [True, True], (
        output_of_job(script)
    )
    slurm.run("scancel", job)
    assert slurm.wait(job) == "CANCELLED"
    wait_until(
        lambda: not any(hosts.processes(node, "rank_process") for node in (0, 1)),
        label="all ranks are gone",
    )
    repeated = slurm.submit(script)
    assert slurm.wait(repeated) == "COMPLETED", output_of_job(script)
    assert "training continues from the checkpoint of an interrupted run" in output_of_job(script)
    current = runs.version("train") / "hlf"
    np.testing.assert_array_equal(flat_weights(current), flat_weights(local.trained(*LONG)))
    add_row(
        CLUSTER,
        f"train, launcher: {launcher}, ar-sgd; scancel, then sbatch again",
        "continued; the same weights",
    )


@pytest.mark.usefixtures("pmix")
def test_training_continues_after_a_rank_is_killed_under_srun(
    hosts: Network, slurm: Slurm, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = HostRuns(hosts, tmp_path, train={"launcher": "srun"})
    local.lend(runs.run_dir, "ingest", "features")
    script = script_of(tmp_path, runs.command("train", sets=LONG))
    job = slurm.submit(script)
    runs.await_checkpoint()
    next(
        process for process in hosts.processes(1, "rank_process") if "python" in process.name()
    ).kill()
    assert slurm.wait(job) == "COMPLETED", output_of_job(script)
    assert "a rank was lost (srun: error: host2: task 1: Killed" in " ".join(
        output_of_job(script).split()
    ), output_of_job(script)
    current = runs.version("train") / "hlf"
    np.testing.assert_array_equal(flat_weights(current), flat_weights(local.trained(*LONG)))
    add_row(
        CLUSTER,
        "train, launcher: srun, ar-sgd; kill -9 of a rank",
        "continued from the checkpoint; the same weights",
    )


@pytest.mark.usefixtures("pmix")
def test_a_batch_job_runs_promotes_and_cleans(
    hosts: Network, slurm: Slurm, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = HostRuns(hosts, tmp_path, train={"launcher": "srun"})
    local.lend(runs.run_dir, "ingest", "features")
    script = script_of(tmp_path, *(runs.command(word) for word in ("run", "promote", "clean")))
    job = slurm.submit(script)
    assert slurm.wait(job) == "COMPLETED", output_of_job(script)
    assert (runs.run_dir / "registry" / "hlf" / "current.json").exists()
    np.testing.assert_array_equal(
        flat_weights(runs.version("train") / "hlf"), flat_weights(local.trained())
    )
    add_row(CLUSTER, "a night: run, promote, clean as a batch job", "the same weights; promoted")
