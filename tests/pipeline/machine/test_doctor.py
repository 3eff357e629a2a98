"""The doctor: each check on a machine with a fault, and on one without."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from hep_core.allocation import CoreLimit, MemoryLimit, memory_limit
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.machine.doctor import (
    Need,
    check_batch_memory,
    check_cores,
    check_java,
    check_memory,
    check_shared_memory,
    check_spark,
    check_srun,
    examine,
)

MIB = 2**20


def write_java(folder: Path, script: str) -> Path:
    """Write a program `java`; returns its path."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(script)
    java.chmod(0o700)
    return java


def java_of_version(version: str) -> str:
    """A script that prints a version as Java does."""
    return (
        "#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dx=1' >&2\n"
        f"echo 'openjdk version \"{version}\"' >&2\n"
    )


def environment(java: Path, *, has_java_home: bool) -> dict[str, str]:
    env = {"PATH": f"{java.parent}:/usr/bin:/bin"}
    if has_java_home:
        env["JAVA_HOME"] = str(java.parent.parent)
    return env


@pytest.mark.parametrize("has_java_home", [True, False])
def test_java_17_is_well(tmp_path: Path, has_java_home: bool) -> None:
    java = write_java(tmp_path, java_of_version("17.0.15"))

    assert check_java(environment(java, has_java_home=has_java_home)) is None


@pytest.mark.parametrize("has_java_home", [True, False])
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (java_of_version("1.8.0_392"), " is Java 8, but Spark runs on 17 and 21."),
        (java_of_version("25"), " is Java 25, "),
        (
            "#!/bin/sh\necho 'Could not create the Java Virtual Machine.' >&2; exit 1\n",
            " does not run: ",
        ),
        ("no shebang, no program\0", " does not run: "),
    ],
)
def test_another_java_is_an_error_that_says_where_it_comes_from(
    tmp_path: Path, script: str, problem: str, has_java_home: bool
) -> None:
    java = write_java(tmp_path, script)

    finding = check_java(environment(java, has_java_home=has_java_home))

    assert finding is not None
    assert finding.severity == "error"
    origin = "JAVA_HOME" if has_java_home else "the PATH"
    assert f"{java} (from {origin}){problem}" in finding.problem
    assert "openjdk-17-jre-headless" in finding.fix


@pytest.mark.parametrize(
    "message",
    [
        "Could not reserve enough space for code cache (245760K)",
        "Failed to allocate initial concurrent mark overflow mark stack.",
        "Could not allocate metaspace: 1073741824 bytes",
    ],
)
def test_java_without_memory_names_the_limit(tmp_path: Path, message: str) -> None:
    lines = f"echo 'Error occurred during initialization of VM'; echo '{message}'; exit 1"
    write_java(tmp_path, f"#!/bin/sh\n{lines}\n")

    finding = check_java({"JAVA_HOME": str(tmp_path)})

    assert finding is not None
    assert f"does not start ({message}): {memory_limit()}." in finding.problem
    assert "Allow this command more memory" in finding.fix


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    java = write_java(tmp_path, java_of_version("17"))
    path = f"{java.parent}:/bin"

    finding = check_java({"PATH": path, "JAVA_HOME": str(tmp_path / "gone")})

    assert finding is not None
    assert finding.problem.startswith(f"JAVA_HOME is {tmp_path}/gone, which has no bin/java")
    assert check_java({"PATH": path, "JAVA_HOME": ""}) is None


def test_a_machine_without_java_is_named(tmp_path: Path) -> None:
    finding = check_java({"PATH": str(tmp_path), "JAVA_HOME": ""})

    assert finding is not None
    assert finding.problem.startswith("There is no Java")


def test_too_little_shared_memory_is_a_warning() -> None:
    finding = check_shared_memory(96 * MIB - 1, workers=2)

    assert finding is not None
    assert finding.severity == "warning"
    assert "Only 95 MiB of /dev/shm are free, but 2 workers need 96" in finding.problem
    assert finding.fix == "Start the container with `--shm-size=96m`."


@pytest.mark.parametrize(("free_bytes", "workers"), [(96 * MIB, 2), (0, 1), (None, 2)])
def test_enough_shared_memory_is_no_finding(free_bytes: int | None, workers: int) -> None:
    assert check_shared_memory(free_bytes, workers) is None


@pytest.mark.parametrize(
    ("num_cores", "workers", "threads", "fix"),
    [
        (3, 4, 1, "Train with `--workers 3`."),
        (3, 2, 2, "Set `train.threads` to 1."),
        (2, 4, 3, "Set `train.threads` to 1."),
    ],
)
def test_more_threads_than_cores_are_named_with_the_fix(
    num_cores: int, workers: int, threads: int, fix: str
) -> None:
    limit = CoreLimit(num_cores, "the cgroup /job")

    finding = check_cores(limit, workers, threads)

    assert finding is not None
    assert f"the cgroup /job allows {num_cores} core(s)" in finding.problem
    assert finding.fix == fix


def test_srun_without_cpus_for_all_workers_is_named_with_the_number_that_starts() -> None:
    finding = check_srun({"SLURM_JOB_CPUS_PER_NODE": "6(x2),3"}, 4, 4)

    assert finding is not None
    assert finding.problem == (
        "srun has CPUs for 2 of 4 worker(s) of 4 thread(s), since this batch job has 6(x2),3 on "
        "its nodes (SLURM_JOB_CPUS_PER_NODE)."
    )
    assert "--ntasks=4 --cpus-per-task=4" in finding.fix


def test_outside_of_a_batch_job_and_for_one_worker_srun_is_no_finding() -> None:
    assert check_srun({}, 4, 4) is None
    assert check_srun({"SLURM_JOB_CPUS_PER_NODE": "3"}, 1, 4) is None


def test_a_core_for_each_worker_is_no_finding() -> None:
    assert check_cores(CoreLimit(2, "the cgroup /job"), 2, 1) is None


@pytest.mark.parametrize(
    ("spark", "problem"),
    [
        (
            {"master": "local[4]"},
            "spark.master is local[4], which runs 4 tasks at once, but the job allows 2 core(s).",
        ),
        ({"driver_memory": "2g"}, "spark.driver_memory is 2g, but the job allows 2,000 MiB."),
    ],
)
def test_spark_that_asks_for_more_than_the_allocation_is_named_with_both_numbers(
    spark: dict[str, str], problem: str
) -> None:
    cores, memory = CoreLimit(2, "the job"), MemoryLimit(2000 * MIB, "the job")

    (finding,) = check_spark(SparkSettings.model_validate(spark), cores, memory)

    assert finding.problem == problem


@pytest.mark.parametrize(
    "spark",
    [{}, {"master": "local[2]", "driver_memory": "2000m"}, {"master": "spark://host1:7077"}],
)
def test_spark_within_the_allocation_is_no_finding(spark: dict[str, str]) -> None:
    cores, memory = CoreLimit(2, "the job"), MemoryLimit(2000 * MIB, "the job")

    assert list(check_spark(SparkSettings.model_validate(spark), cores, memory)) == []


def test_a_job_that_asked_htcondor_for_no_memory_gets_the_limit_and_the_line_to_add() -> None:
    memory = MemoryLimit(128 * MIB, "HTCondor (Memory in _CONDOR_MACHINE_AD)")

    (finding,) = check_spark(SparkSettings(), CoreLimit(2, "the job"), memory)

    assert finding.problem == (
        "spark.driver_memory is 512m, but HTCondor (Memory in _CONDOR_MACHINE_AD) allows 128 MiB."
    )
    assert "(add `request_memory = 8GB` to the submit file)" in finding.fix


def test_a_job_of_slurm_that_asks_for_no_memory_is_a_warning() -> None:
    host = MemoryLimit(16_000 * MIB, "the host")

    finding = check_batch_memory(host, {"SLURM_JOB_ID": "7"})

    assert finding is not None
    assert finding.severity == "warning"
    assert finding.problem == (
        "This batch job states no memory, and the host allows 16,000 MiB, which other jobs may use "
        "too."
    )
    assert finding.fix == "Add `#SBATCH --mem=8G` to the batch script."


@pytest.mark.parametrize(
    ("source", "env"), [("the host", {}), ("the cgroup /job_7", {"SLURM_JOB_ID": "7"})]
)
def test_a_limit_of_the_job_or_no_job_is_no_finding(source: str, env: dict[str, str]) -> None:
    assert check_batch_memory(MemoryLimit(16_000 * MIB, source), env) is None


def test_too_little_memory_for_the_workers_is_a_warning() -> None:
    finding = check_memory(MemoryLimit(767 * MIB, "the cgroup /job"), 2)

    assert finding is not None
    assert finding.severity == "warning"
    assert "2 worker(s) need 768 MiB" in finding.problem
    assert "but the cgroup /job allows 767 MiB" in finding.problem


@pytest.mark.parametrize(("size_mib", "workers"), [(768, 2), (767, 1)])
def test_enough_memory_is_no_finding(size_mib: int, workers: int) -> None:
    assert check_memory(MemoryLimit(size_mib * MIB, "the cgroup /job"), workers) is None


def test_this_machine_can_run_spark_locally(tmp_path: Path) -> None:
    assert (
        examine(
            [Need.SPARK, Need.MPI],
            run_dir=tmp_path / "not" / "there" / "yet",
            spark=SparkSettings(),
        )
        == []
    )


def test_only_what_is_needed_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "JAVA_HOME", str(tmp_path / "gone"))

    def failed_checks(*needs: Need) -> list[str]:
        findings = examine(needs, run_dir=tmp_path, spark=SparkSettings(), workers=1000)
        return [finding.check for finding in findings]

    assert failed_checks() == []
    assert failed_checks(Need.SPARK) == ["java"]
    assert "java" not in failed_checks(Need.MPI)
    assert failed_checks(Need.MPI)[-1] == "cores"
    # Errors come before warnings.
    monkeypatch.setattr("pipeline.machine.doctor._MIN_FREE_BYTES", 10**18)
    assert failed_checks(Need.MPI)[0] == "disk"


def test_packages_that_are_missing_or_old_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required = ["numpy<1", "torch>=1", "no-such-package>=2", "nor-this; extra == 's3'"]
    monkeypatch.setattr(metadata, "requires", lambda _: required)
    numpy_version = metadata.version("numpy")

    (finding,) = examine([], run_dir=tmp_path, spark=SparkSettings())

    assert f": numpy<1 ({numpy_version}), no-such-package>=2 (missing)." in finding.problem
    assert "-m pip install 'numpy<1' 'no-such-package>=2'`" in finding.fix
