"""The CPUs of a SLURM whose node binds tasks to them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator

import pytest
from cluster_runs import AddRow
from clusters import Slurm, missing
from network_hosts import Network

from training.launching.mpirun import rank_command
from training.settings import TrainSettings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(missing("slurmctld", "slurmd", "salloc", "munged")),
        reason="no SLURM here (Debian: slurm-wlm)",
    ),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single CPU here"),
]

CLUSTER = "SLURM, a node of 2 CPUs"
PRINT_CPUS = "import os; print(len(os.sched_getaffinity(0)))"
PRINT_LIMIT = "from hep_core.allocation import core_limit; print(core_limit())"


@pytest.fixture(scope="module")
def slurm(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    started = Slurm(hosts, tmp_path_factory.mktemp("slurm") / "files", nodes=1, cpus=2)
    yield started
    started.remove_cgroups()


def test_a_rank_has_a_cpu_for_each_of_its_threads(slurm: Slurm, add_row: AddRow) -> None:
    if "ready" not in slurm.run("srun", "--mpi=pmix", "echo", "ready", check=False):
        pytest.skip("this srun has no PMIx (Debian: libpmix-dev)")
    num_cpus = {}
    for threads in (1, 2):
        settings = TrainSettings(
            launcher="srun", launcher_args=["--cpu-bind=cores"], threads=threads
        )
        command = shlex.join(rank_command(settings, [sys.executable, "-c", PRINT_CPUS]))
        allocation = ("salloc", "--ntasks=1", "--cpus-per-task=2")

        num_cpus[threads] = slurm.run(*allocation, "sh", "-c", command).strip()

    assert num_cpus == {1: "1", 2: "2"}
    add_row(
        CLUSTER,
        "a rank of launcher: srun with --cpu-bind=cores and train.threads: 2",
        "may use 2 CPUs; with one thread 1",
    )


def test_the_shell_of_salloc_may_use_all_cores_of_its_node(slurm: Slurm, add_row: AddRow) -> None:
    allocation = ("salloc", "--ntasks=2", "--cpus-per-task=1")
    # What salloc starts where LaunchParameters has use_interactive_step.
    shell = ("srun", "--interactive", "--preserve-env")

    limit = slurm.run(*allocation, *shell, sys.executable, "-c", PRINT_LIMIT)

    assert limit.endswith("allows 2 core(s)\n")
    add_row(CLUSTER, "the allocation of the shell of salloc -n2 -c1", "2 cores")
