"""The cores and the memory of a process: affinity, cgroups of both versions, and their events."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_cgroup import cgroup_with

from hep_core.allocation import core_limit, killed_for_memory, memory_limit

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
        ({"PBS_JOBID": "5.head", "OMP_NUM_THREADS": "8"}, "PBS (OMP_NUM_THREADS) allows 8 core(s)"),
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
