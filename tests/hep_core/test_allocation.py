"""The cores and the memory of a process: affinity, cgroups of both versions, and their events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small_cgroup import cgroup_with

from hep_core.allocation import core_limit, killed_for_memory, memory_limit
from hep_core.batch_systems import cores_of_nodes, granted_cores, granted_memory, has_several_hosts
from hep_core.environment import IGNORED_EVERYWHERE, ignored_names

MIB = 2**20
GIB = 2**30


def write_proc(root: Path, *, groups: str, mounts: dict[str, str]) -> Path:
    """A `/proc/self` with these groups, and with mounts given as `<root> <folder>`: `<type> <options>`."""
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(groups)
    lines = [
        f"31 24 0:27 {where} rw,nosuid shared:9 - {description}"
        for where, description in mounts.items()
    ]
    (proc / "mountinfo").write_text(
        "24 1 0:22 / / rw - ext4 /dev/vda rw\n" + "\n".join(lines) + "\n"
    )
    (root / "proc" / "meminfo").write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    return proc


def write_files(folder: Path, **contents: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in contents.items():
        controller, _, file = name.partition("_")
        (folder / f"{controller}.{file}").write_text(document + "\n")


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    """A job of two steps under systemd; the process is in the second step."""
    mount = tmp_path / "cgroup"
    proc = write_proc(
        tmp_path, groups="0::/batch/job_7/step_1\n", mounts={f"/ {mount}": "cgroup2 cgroup2 rw"}
    )
    write_files(mount / "batch", cpu_max="max 100000", memory_max="max", memory_events="oom_kill 9")
    write_files(mount / "batch/job_7", cpu_max="max 100000", memory_max=str(3 * GIB))
    step = mount / "batch/job_7/step_1"
    write_files(
        step, cpu_max="max 100000", memory_max="max", memory_events="low 0\noom 3\noom_kill 2"
    )
    return proc


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """A container whose hierarchies are mounted from its own group."""
    proc = write_proc(
        tmp_path,
        groups="5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n",
        mounts={
            f"/docker/abc {tmp_path}/cpu": "cgroup cgroup rw,cpu,cpuacct",
            f"/docker/abc {tmp_path}/mem\\040ory": "cgroup cgroup rw,memory",
        },
    )
    write_files(tmp_path / "cpu", cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000")
    write_files(
        tmp_path / "mem ory",
        memory_limit_in_bytes=str(2 * GIB),
        memory_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 4",
    )
    return proc


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert core_limit(proc=tmp_path / "proc" / "self").cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("100000 100000", 1), ("50000 100000", 0.5), ("150000 100000", 1.5), ("99900000 100000", 8)],
)
def test_the_quota_of_a_group_above_limits_the_cores(
    version_2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert core_limit(proc=version_2).cores == 8
    write_files(tmp_path / "cgroup" / "batch", cpu_max=quota)
    assert core_limit(proc=version_2).cores == cores


def test_the_quota_of_version_1_limits_the_cores(
    version_1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert core_limit(proc=version_1).cores == 8
    write_files(tmp_path / "cpu", cpu_cfs_quota_us="250000")
    assert core_limit(proc=version_1).cores == 2.5


def test_the_lowest_limit_of_memory_names_its_cgroup(version_2: Path, tmp_path: Path) -> None:
    assert (
        str(memory_limit(proc=version_2))
        == f"the cgroup {tmp_path}/cgroup/batch/job_7 allows 3,072 MiB"
    )


def test_the_limit_of_version_1_names_its_cgroup(version_1: Path, tmp_path: Path) -> None:
    assert str(memory_limit(proc=version_1)) == f"the cgroup {tmp_path}/mem ory allows 2,048 MiB"


def write_slot(folder: Path, text: str) -> dict[str, str]:
    """Write HTCondor's description of a slot; return the environment that names it."""
    path = folder / ".machine.ad"
    path.write_text(text)
    return {"_CONDOR_MACHINE_AD": str(path)}


#: Lines of the file of a dynamic slot of HTCondor.
SLOT = """Arch = "X86_64"
Cpus = 3
DetectedCpus = 64
DetectedMemory = 515636
Memory = 2048
MemoryUsage = 17
"""
BATCH_SCRIPT = {"SLURM_JOB_ID": "77", "SLURM_TASKS_PER_NODE": "2(x4)", "SLURM_CPUS_PER_TASK": "3"}


#: Variables of the shell of `salloc --ntasks=8 --cpus-per-task=1`.
INTERACTIVE = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_TASKS_PER_NODE": "8",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURM_CPUS_ON_NODE": "8",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (BATCH_SCRIPT, "SLURM (SLURM_CPUS_PER_TASK x SLURM_TASKS_PER_NODE) allows 6 core(s)"),
        (BATCH_SCRIPT | {"SLURM_CPUS_ON_NODE": "4"}, "SLURM (SLURM_CPUS_ON_NODE) allows 4 core(s)"),
        (BATCH_SCRIPT | {"SLURM_STEP_ID": "0"}, "SLURM (SLURM_CPUS_PER_TASK) allows 3 core(s)"),
        # The shell of `salloc` is a step of one task, which may use all cores of its node.
        (INTERACTIVE, "SLURM (SLURM_CPUS_ON_NODE) allows 8 core(s)"),
        (
            INTERACTIVE | {"SLURM_STEP_ID": "4294967291"},
            "SLURM (SLURM_CPUS_ON_NODE) allows 8 core(s)",
        ),
        ({"SLURM_CPUS_PER_TASK": "3"}, "the CPU affinity of this process allows 64 core(s)"),
        # SLURM does not set this variable, so that it is the user's choice for other programs.
        (
            BATCH_SCRIPT | {"OMP_NUM_THREADS": "1"},
            "SLURM (SLURM_CPUS_PER_TASK x SLURM_TASKS_PER_NODE) allows 6 core(s)",
        ),
        ({"OMP_NUM_THREADS": "8"}, "the CPU affinity of this process allows 64 core(s)"),
        ({"_CONDOR_MACHINE_AD": "/no/file"}, "the CPU affinity of this process allows 64 core(s)"),
    ],
)
def test_cores_that_a_batch_system_grants_are_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    proc = write_proc(tmp_path, groups="0::/\n", mounts={})

    assert str(core_limit(proc=proc, environment=environment)) == expected


def pbs_job(folder: Path, hosts: Mapping[str, int], variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of a job of PBS on some hosts, with a number of lines for each in its file."""
    lines = [f"{host}\n" * count for host, count in hosts.items()]
    host_file = folder / "5.head"
    host_file.write_text("".join(lines))
    return {"PBS_JOBID": "5.head", "PBS_NODEFILE": str(host_file), **variables}


THIS_HOST = os.uname().nodename
#: What PBS Pro and OpenPBS set to the threads of the first process of a job.
ONE_THREAD = {"NCPUS": "1", "OMP_NUM_THREADS": "1"}
TWO_THREADS = {"NCPUS": "2", "OMP_NUM_THREADS": "2"}
SIXTEEN_THREADS = {"NCPUS": "16", "OMP_NUM_THREADS": "16"}


@pytest.mark.parametrize(
    ("hosts", "variables", "expected"),
    [
        # -l select=1:ncpus=16
        ({THIS_HOST: 1}, SIXTEEN_THREADS, "PBS (NCPUS) allows 16 core(s)"),
        # -l select=1:ncpus=16:mpiprocs=16:ompthreads=1
        ({THIS_HOST: 16}, ONE_THREAD, "PBS (PBS_NODEFILE x NCPUS) allows 16 core(s)"),
        # -l select=2:ncpus=16:mpiprocs=8:ompthreads=2, on a host of a domain
        (
            {f"{THIS_HOST}.cluster": 8, "other.cluster": 8},
            TWO_THREADS,
            "PBS (PBS_NODEFILE x NCPUS) allows 16 core(s)",
        ),
        # -l select=1:ncpus=16:mpiprocs=16: the threads of each are all cores of the chunk.
        ({THIS_HOST: 16}, SIXTEEN_THREADS, "PBS (NCPUS) allows 16 core(s)"),
        # -l nodes=1:ppn=12+1:ppn=4 of Torque, where the user sets the threads for another program.
        (
            {THIS_HOST: 12, "other": 4},
            {"PBS_NUM_PPN": "12", "PBS_NP": "16", "OMP_NUM_THREADS": "1"},
            "PBS (PBS_NODEFILE) allows 12 core(s)",
        ),
        # The first host of the file runs the script of the job.
        (
            {"this-host-ib0": 4, "other-ib0": 8},
            ONE_THREAD,
            "PBS (PBS_NODEFILE x NCPUS) allows 4 core(s)",
        ),
        # Without the file
        ({}, SIXTEEN_THREADS, "PBS (NCPUS) allows 16 core(s)"),
        ({}, {"OMP_NUM_THREADS": "1"}, "the CPU affinity of this process allows 64 core(s)"),
    ],
)
def test_the_cores_of_a_job_of_pbs_are_those_of_its_processes_on_this_host(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hosts: dict[str, int],
    variables: dict[str, str],
    expected: str,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    proc = write_proc(tmp_path, groups="0::/\n", mounts={})
    environment = pbs_job(tmp_path, hosts, variables)

    assert str(core_limit(proc=proc, environment=environment)) == expected


def test_doctor_counts_the_cores_of_a_job_of_pbs(tmp_path: Path) -> None:
    job = pbs_job(tmp_path, {THIS_HOST: 1}, ONE_THREAD)
    run_dir = f"run_dir={tmp_path / 'run'}"
    command = [sys.executable, "-m", "pipeline", "doctor", "--json"]

    completed = subprocess.run(
        [*command, "--set", run_dir, "--set", "train.workers=1"],
        env=os.environ | job,
        capture_output=True,
        text=True,
        check=True,
    )

    notes = json.loads(completed.stdout)["notes"]
    assert "PBS (NCPUS) allows 1 core(s)" in notes[0]


class RecordedReads(dict[str, str]):
    """An environment that notes the names of the variables that are read."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def test_the_command_ignores_no_variable_of_a_batch_system(tmp_path: Path) -> None:
    jobs = [
        INTERACTIVE | {"SLURM_MEM_PER_CPU": "500"},
        pbs_job(tmp_path, {THIS_HOST: 2}, ONE_THREAD),
        write_slot(tmp_path, SLOT),
    ]
    for job in jobs:
        environment = RecordedReads(job)
        grants = [*granted_cores(environment), *granted_memory(environment)]
        has_several_hosts(environment)
        cores_of_nodes(environment)

        assert grants
        assert not set(ignored_names(IGNORED_EVERYWHERE, environment.names))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "4096"},
            "SLURM (SLURM_MEM_PER_NODE) allows 4,096 MiB",
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "0"}, "the host allows 16,000 MiB"),
        (
            {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "500", "SLURM_CPUS_ON_NODE": "4"},
            "SLURM (SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE) allows 2,000 MiB",
        ),
        ({"SLURM_MEM_PER_NODE": "4096"}, "the host allows 16,000 MiB"),
    ],
)
def test_memory_that_a_batch_system_grants_is_the_limit(
    tmp_path: Path, environment: dict[str, str], expected: str
) -> None:
    proc = write_proc(tmp_path, groups="0::/\n", mounts={})

    assert str(memory_limit(proc=proc, environment=environment)) == expected


def test_the_slot_of_a_job_of_htcondor_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    proc = write_proc(tmp_path, groups="0::/\n", mounts={})
    environment = write_slot(tmp_path, SLOT)

    cores = core_limit(proc=proc, environment=environment)
    memory = memory_limit(proc=proc, environment=environment)

    assert str(cores) == "HTCondor (Cpus in _CONDOR_MACHINE_AD) allows 3 core(s)"
    assert str(memory) == "HTCondor (Memory in _CONDOR_MACHINE_AD) allows 2,048 MiB"


def test_without_a_limit_the_memory_of_the_host_counts(tmp_path: Path) -> None:
    proc = write_proc(tmp_path, groups="0::/\n", mounts={})
    assert str(memory_limit(proc=proc)) == "the host allows 16,000 MiB"


def test_killed_processes_of_the_own_group_are_counted(version_2: Path) -> None:
    assert killed_for_memory(proc=version_2) == 2


def test_killed_processes_are_counted_in_version_1(version_1: Path) -> None:
    assert killed_for_memory(proc=version_1) == 4


def test_a_limit_of_the_address_space_is_named() -> None:
    program = "from hep_core.allocation import memory_limit; print(memory_limit())"
    limited = ["sh", "-c", 'ulimit -v 500000; exec "$@"', "sh", sys.executable, "-c", program]
    completed = subprocess.run(limited, capture_output=True, text=True, check=True)
    assert completed.stdout == "`ulimit -v` allows 488 MiB\n"


def test_a_real_cgroup_limits_the_cores() -> None:
    program = "from hep_core.allocation import usable_cores; print(usable_cores())"
    with cgroup_with(cores=1) as enter:
        completed = subprocess.run(
            [*enter, sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    assert completed.stdout == "1\n"


def test_a_kill_in_a_real_cgroup_is_counted() -> None:
    program = f"""
import subprocess, sys
from hep_core.allocation import killed_for_memory, memory_limit
before = killed_for_memory()
killed = subprocess.run([sys.executable, "-c", "bytearray({300 * MIB})"])
print(killed.returncode, killed_for_memory() - before, memory_limit())
"""
    with cgroup_with(memory_bytes=100 * MIB) as enter:
        completed = subprocess.run(
            [*enter, sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    assert completed.stdout.startswith("-9 1 the cgroup ")
    assert completed.stdout.endswith(" allows 100 MiB\n")
