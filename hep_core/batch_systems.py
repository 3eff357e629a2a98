"""Cores and memory that a batch system grants to this job, by the environment that it sets.

Not every site enforces its grants by cgroups: a process that takes more may be slowed down, killed
or put on hold. The grant counts whether it is enforced or not.

Commands drop some variables of their environment before they read the grants. So none of those in
`hep_core.environment.IGNORED_EVERYWHERE` is read here: OMP_NUM_THREADS may be the user's, for other
programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from hep_core.cgroups import read_system_file

#: Variable of HTCondor with the path of a file that describes the slot of the job.
_SLOT_FILE: Final = "_CONDOR_MACHINE_AD"
#: Variable of PBS with the path of a file that names the hosts of the job, one in each line.
_HOST_FILE: Final = "PBS_NODEFILE"
#: Numbers of the steps of SLURM that are no tasks of `srun`: the shell of `salloc`, and the batch
#: script (SLURM_INTERACTIVE_STEP and SLURM_BATCH_SCRIPT in slurm.h).
_STEPS_OF_WHOLE_JOB: Final = ("4294967290", "4294967291")
#: Where a job asks a batch system for memory. A job that does not ask gets what the site sets.
MEMORY_REQUESTS: Final = {
    "SLURM": "`#SBATCH --mem=8G` to the batch script",
    "HTCondor": "`request_memory = 8GB` to the submit file",
}
_MIB: Final = 2**20


class Grant(NamedTuple):
    """An amount that a batch system grants."""

    amount: int
    """Cores, or bytes of memory."""
    source: str
    """Such as "SLURM (SLURM_CPUS_PER_TASK)"."""


def granted_cores(environment: Mapping[str, str]) -> Iterator[Grant]:
    """Yield the numbers of cores on this host that batch systems grant to the process."""
    yield from _cores_of_slurm(environment)
    yield from _cores_of_pbs(environment)
    slot_cores = _slot_attribute("Cpus", environment)
    if slot_cores:
        yield Grant(slot_cores, f"HTCondor (Cpus in {_SLOT_FILE})")


def granted_memory(environment: Mapping[str, str]) -> Iterator[Grant]:
    """Yield the amounts of memory on this host that batch systems grant to the job [bytes].

    SLURM and HTCondor state mebibytes. A job of SLURM has its memory for each node or for each
    core; 0 for a node is all of its memory.
    """
    if "SLURM_JOB_ID" in environment:
        node_memory = _number("SLURM_MEM_PER_NODE", environment)
        core_memory = _number("SLURM_MEM_PER_CPU", environment)
        node_cores = _number("SLURM_CPUS_ON_NODE", environment)
        if node_memory:
            yield Grant(node_memory * _MIB, "SLURM (SLURM_MEM_PER_NODE)")
        if core_memory and node_cores:
            source = "SLURM (SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE)"
            yield Grant(core_memory * node_cores * _MIB, source)
    slot_memory = _slot_attribute("Memory", environment)
    if slot_memory:
        yield Grant(slot_memory * _MIB, f"HTCondor (Memory in {_SLOT_FILE})")


def has_several_hosts(environment: Mapping[str, str]) -> bool:
    """Return whether this is a job of SLURM with further nodes beside this one."""
    return "SLURM_JOB_ID" in environment and _number("SLURM_JOB_NUM_NODES", environment) > 1


def cores_of_nodes(environment: Mapping[str, str]) -> list[int]:
    """Return the cores on each node of a job of SLURM; empty outside of one.

    SLURM_JOB_CPUS_PER_NODE joins equal nodes, as in `4(x2),8`.
    """
    nodes: list[int] = []
    stated_nodes = environment.get("SLURM_JOB_CPUS_PER_NODE", "")
    for cores, num_equal in re.findall(r"(\d+)(?:\(x(\d+)\))?", stated_nodes):
        nodes += [int(cores)] * int(num_equal or 1)
    return nodes


def _cores_of_slurm(environment: Mapping[str, str]) -> Iterator[Grant]:
    """Yield the cores of a job of SLURM on this node, and those that its tasks have.

    A process that `srun` started is one task. The batch script, and the shell of `salloc`, may use
    the cores of all tasks on their node; SLURM_TASKS_PER_NODE begins with their number, as in
    `4(x2),1`.
    """
    if "SLURM_JOB_ID" not in environment:
        return
    node_cores = _number("SLURM_CPUS_ON_NODE", environment)
    if node_cores:
        yield Grant(node_cores, "SLURM (SLURM_CPUS_ON_NODE)")
    task_cores = _number("SLURM_CPUS_PER_TASK", environment)
    if not task_cores:
        return
    num_tasks = _number("SLURM_TASKS_PER_NODE", environment)
    step = environment.get("SLURM_STEP_ID", "")
    is_task = step != "" and step not in _STEPS_OF_WHOLE_JOB
    if is_task or num_tasks <= 1:
        yield Grant(task_cores, "SLURM (SLURM_CPUS_PER_TASK)")
    else:
        source = "SLURM (SLURM_CPUS_PER_TASK x SLURM_TASKS_PER_NODE)"
        yield Grant(task_cores * num_tasks, source)


def _cores_of_pbs(environment: Mapping[str, str]) -> Iterator[Grant]:
    """Yield the cores of a job of PBS on this host.

    PBS Pro and OpenPBS write a line for each MPI process (`mpiprocs`) into the file of hosts, and
    set NCPUS to the threads of a process (`ompthreads`, by default the `ncpus` of its chunk).
    Torque writes a line for each core, and sets no NCPUS.
    """
    if "PBS_JOBID" not in environment:
        return
    num_threads = _number("NCPUS", environment)
    num_lines = _lines_of_host(environment)
    # As many processes as threads: a job of `ncpus=8:mpiprocs=8` has 8 cores, which PBS states as
    # the threads of each process.
    if num_threads and num_lines in (0, 1, num_threads):
        yield Grant(num_threads, "PBS (NCPUS)")
    elif num_threads:
        yield Grant(num_threads * num_lines, f"PBS ({_HOST_FILE} x NCPUS)")
    elif num_lines:
        yield Grant(num_lines, f"PBS ({_HOST_FILE})")


def _lines_of_host(environment: Mapping[str, str]) -> int:
    """Return how often PBS's file of hosts names this host, with or without its domain."""
    host_file = environment.get(_HOST_FILE, "")
    hosts = [host.partition(".")[0] for host in read_system_file(Path(host_file)).split()]
    if not hosts:
        return 0
    host_name = os.uname().nodename.partition(".")[0]
    if host_name not in hosts:
        # The script of the job runs on the first host, whose name in PBS may be another one.
        host_name = hosts[0]
    return hosts.count(host_name)


def _slot_attribute(name: str, environment: Mapping[str, str]) -> int:
    """Return a number from HTCondor's description of the slot; 0 without it.

    A line of the file is `Name = value`.
    """
    path = environment.get(_SLOT_FILE)
    if not path:
        return 0
    description = read_system_file(Path(path))
    line = re.search(rf"^{name}\s*=\s*(\d+)", description, re.MULTILINE)
    if line is None:
        return 0
    return int(line[1])


def _number(name: str, environment: Mapping[str, str]) -> int:
    """Return the number with which the value of a variable begins; 0 if there is none."""
    digits = re.match(r"\d+", environment.get(name, ""))
    if digits is None:
        return 0
    return int(digits[0])
