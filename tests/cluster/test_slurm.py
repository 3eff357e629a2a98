"""A SLURM of two nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cluster_runs import LONG, AddRow, HostRuns, LocalResults
from clusters import Slurm, missing
from network_hosts import Network
from page_commands import SITE_PAGE, block_with
from ranks import wait_until
from training_runs import flat_weights

from pipeline.terminal.exit_codes import Exit

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        bool(missing("slurmctld", "slurmd", "sbatch", "munged")),
        reason="no SLURM here (Debian: slurm-wlm)",
    ),
]

CLUSTER = "SLURM, 2 nodes"
#: The folder of the checkout on the page.
PAGE_CHECKOUT = "/shared/hep-pipeline"
#: What a training says that continues.
CONTINUES = "training continues from the checkpoint of an interrupted run"
#: What a command says that SIGTERM ends.
INTERRUPTED = "interrupted; finished stages stay"
#: The sizes of these nodes instead of those on the page.
SMALL_NODES = ("--ntasks-per-node=1", "--mem=3000M")


@pytest.fixture(scope="module")
def slurm(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    started = Slurm(hosts, tmp_path_factory.mktemp("slurm") / "files", nodes=2)
    yield started
    started.remove_cgroups()


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


def page_script(runs: HostRuns) -> Path:
    """The batch script of the page, with the folder of some runs as the checkout."""
    checkout = runs.use_as_checkout("nightly.yaml")
    text = "\n".join(block_with(SITE_PAGE, "#SBATCH"))
    assert PAGE_CHECKOUT in text
    script = checkout / "nightly.sh"
    script.write_text(text.replace(PAGE_CHECKOUT, str(checkout)) + "\n")
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
    assert CONTINUES in output_of_job(script)
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


@pytest.mark.usefixtures("pmix")
def test_the_night_of_the_page_continues_after_its_time_limit_and_scancel(
    hosts: Network, slurm: Slurm, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    training = {"epochs": 60, "batch_size": 8, "checkpoint_steps": 5}
    runs = HostRuns(hosts, tmp_path, train={"launcher": "srun", **training})
    local.lend(runs.run_dir, "ingest", "features")
    script = page_script(runs)

    limited = slurm.submit(script, *SMALL_NODES, "--time=60")
    runs.await_checkpoint()
    ranks = [rank for rank in hosts.processes(1, "rank_process") if "python" in rank.name()]
    assert ranks
    # Training does not end before the signal.
    ranks[0].suspend()
    # The --signal of the page comes two minutes before the limit: that is now.
    time_limit = slurm.minutes(limited) + 2
    slurm.run("scontrol", "update", f"JobId={limited}", f"TimeLimit={time_limit}")
    # The script ends by itself, with the exit code of an interrupt.
    assert slurm.wait(limited) == "FAILED", output_of_job(script)
    assert f"ExitCode={Exit.INTERRUPTED}:0" in slurm.description(limited)
    assert INTERRUPTED in output_of_job(script)

    cancelled = slurm.submit(script, *SMALL_NODES)
    wait_until(lambda: CONTINUES in output_of_job(script), label="training continues", seconds=400)
    slurm.run("scancel", cancelled)
    assert slurm.wait(cancelled) == "CANCELLED"
    wait_until(
        lambda: not any(hosts.processes(node, "rank_process") for node in (0, 1)),
        label="all ranks are gone",
    )
    assert INTERRUPTED in output_of_job(script)

    finished = slurm.submit(script, *SMALL_NODES)
    assert slurm.wait(finished, seconds=900) == "COMPLETED", output_of_job(script)
    assert CONTINUES in output_of_job(script)
    overrides = [f"train.{key}={value}" for key, value in training.items()]
    weights = flat_weights(runs.version("train") / "hlf")
    np.testing.assert_array_equal(weights, flat_weights(local.trained(*overrides)))
    add_row(
        CLUSTER,
        "the script of the page: --signal before its time limit; again, scancel; again",
        "both end cleanly and continue; the same weights",
    )


@pytest.mark.usefixtures("pmix")
def test_doctor_in_a_job_prints_its_memory(
    hosts: Network, slurm: Slurm, tmp_path: Path, add_row: AddRow
) -> None:
    runs = HostRuns(hosts, tmp_path, train={"launcher": "srun"})
    script = script_of(tmp_path, runs.command("doctor"))

    job = slurm.submit(script, "--mem=2500M")

    assert slurm.wait(job) == "COMPLETED", output_of_job(script)
    output = " ".join(output_of_job(script).split())
    assert "SLURM (SLURM_CPUS_ON_NODE) allows 1 core(s)" in output
    source = r"SLURM \(SLURM_MEM_PER_NODE\)"
    if slurm.limits_memory:
        source = rf"the cgroup /sys/fs/cgroup/memory/slurm\S*/job_{job}\S*"
    assert re.search(f"{source} allows 2,500 MiB", output), output
    add_row(CLUSTER, "doctor with --mem=2500M", "prints 2,500 MiB and SLURM's cgroup")


@pytest.mark.skipif(
    not Path("/etc/profile.d/modules.sh").exists(),
    reason="no modules here (Debian: environment-modules)",
)
def test_lines_that_the_page_switches_off_work(
    hosts: Network, slurm: Slurm, tmp_path: Path, add_row: AddRow
) -> None:
    module = tmp_path / "modules" / "java" / "17"
    module.parent.mkdir(parents=True)
    module.write_text("#%Module\nsetenv JAVA_OF_SITE 17\n")
    script = page_script(HostRuns(hosts, tmp_path))
    text = script.read_text()
    for line_on_page, line in {
        "##SBATCH --gpus": "#SBATCH --gpus",
        "# module load": f"module use {tmp_path}/modules\nmodule load",
        "exec docs/examples/night.sh nightly.yaml": 'echo "Java $JAVA_OF_SITE, GPU $SLURM_GPUS_ON_NODE"',
    }.items():
        assert line_on_page in text
        text = text.replace(line_on_page, line)
    script.write_text(text)

    job = slurm.submit(script, *SMALL_NODES, "--gpus-per-node=1")

    assert slurm.wait(job) == "COMPLETED", output_of_job(script)
    assert "Java 17, GPU 1" in output_of_job(script)
    add_row(
        CLUSTER,
        "the lines of the page for a GPU and for Java as a module",
        "/dev/null is granted as a GPU; module load works",
    )
