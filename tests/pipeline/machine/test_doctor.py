"""The doctor: for every check a machine on which it finds something, and one on which it does
not."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from hep_core.allocation import MemoryLimit, memory_limit
from pipeline.machine.doctor import (
    Need,
    check_cores,
    check_java,
    check_memory,
    check_shared_memory,
    examine,
)

MIB = 2**20


def make_java(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(script)
    java.chmod(0o700)
    return java


def says(version: str) -> str:
    return f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dx=1' >&2\necho 'openjdk version \"{version}\"' >&2\n"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (says("17.0.15"), None),
        (says("1.8.0_392"), " is Java 8, but Spark runs on 17 and 21."),
        (says("25"), " is Java 25, "),
        (
            "#!/bin/sh\necho 'Could not create the Java Virtual Machine.' >&2; exit 1\n",
            " does not run: ",
        ),
        ("no shebang, no program\0", " does not run: "),
    ],
)
def test_java_of_java_home_and_of_the_path(
    tmp_path: Path, script: str, problem: str | None
) -> None:
    java = make_java(tmp_path, script)
    path = {"PATH": f"{java.parent}:/usr/bin:/bin"}
    for env, whose in (({**path, "JAVA_HOME": str(tmp_path)}, "JAVA_HOME"), (path, "the PATH")):
        actual = check_java(env)
        if problem is None:
            assert actual is None
        else:
            assert actual is not None
            assert actual.severity == "error"
            assert f"{java} (from {whose}){problem}" in actual.problem
            assert "openjdk-17-jre-headless" in actual.fix


def test_java_without_memory_names_the_limit(tmp_path: Path) -> None:
    message = "Could not reserve enough space for code cache (245760K)"
    make_java(
        tmp_path,
        f"#!/bin/sh\necho 'Error occurred during initialization of VM'; echo '{message}'; exit 1\n",
    )
    finding = check_java({"JAVA_HOME": str(tmp_path)})
    assert finding is not None
    assert f"does not start ({message}): {memory_limit()}." in finding.problem
    assert "Allow this command more memory" in finding.fix


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    java = make_java(tmp_path, says("17"))
    path = {"PATH": f"{java.parent}:/bin"}
    gone = check_java({**path, "JAVA_HOME": str(tmp_path / "gone")})
    assert gone is not None
    assert gone.problem.startswith(f"JAVA_HOME is {tmp_path}/gone, which has no bin/java")
    assert check_java({**path, "JAVA_HOME": ""}) is None
    nowhere = check_java({"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert nowhere is not None
    assert nowhere.problem.startswith("There is no Java")


@pytest.mark.parametrize(
    ("free", "workers", "problem"),
    [
        (96 * MIB - 1, 2, "Only 95 MiB of /dev/shm are free, but 2 workers need 96"),
        (96 * MIB, 2, None),
        (0, 1, None),
        (None, 2, None),
    ],
)
def test_shared_memory(free: int | None, workers: int, problem: str | None) -> None:
    actual = check_shared_memory(free, workers)
    assert (actual and (actual.severity, actual.fix)) == (
        problem and ("warning", "Start the container with `--shm-size=96m`.")
    )
    assert actual is None or str(problem) in actual.problem


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        ((3, 4, 1), "Train with `--workers 3`."),
        ((3, 2, 2), "Set `train.threads` to 1."),
        ((2, 4, 3), "Set `train.threads` to 1."),
        ((2, 2, 1), None),
    ],
)
def test_cores(asked: tuple[int, int, int], fix: str | None) -> None:
    actual = check_cores(*asked)
    assert (actual and actual.fix) == fix


@pytest.mark.parametrize(
    ("size_mib", "workers", "is_enough"), [(768, 2, True), (767, 2, False), (767, 1, True)]
)
def test_memory(size_mib: int, workers: int, is_enough: bool) -> None:
    limit = MemoryLimit(size_mib * MIB, "the cgroup /job")
    finding = check_memory(limit, workers)
    assert (finding is None) == is_enough
    if finding is not None:
        assert finding.severity == "warning"
        assert "2 worker(s) need 768 MiB" in finding.problem
        assert "but the cgroup /job allows 767 MiB" in finding.problem


def test_this_machine_can_run_spark_locally(tmp_path: Path) -> None:
    assert examine([Need.SPARK, Need.MPI], run_dir=tmp_path / "not" / "there" / "yet") == []


def test_only_what_is_needed_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors come first."""
    monkeypatch.setitem(os.environ, "JAVA_HOME", str(tmp_path / "gone"))

    def checks(*needs: Need) -> list[str]:
        return [actual.check for actual in examine(needs, run_dir=tmp_path, workers=1000)]

    assert checks() == []
    assert checks(Need.SPARK) == ["java"]
    assert "java" not in checks(Need.MPI)
    assert checks(Need.MPI)[-1] == "cores"
    monkeypatch.setattr("pipeline.machine.doctor._MIN_FREE_BYTES", 10**18)
    assert checks(Need.MPI)[0] == "disk"


def test_packages_that_are_missing_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ["numpy<1", "torch>=1", "no-such-package>=2", "nor-this; extra == 's3'"]
    monkeypatch.setattr(metadata, "requires", lambda _: expected)
    (actual,) = examine([], run_dir=tmp_path)
    assert (
        f": numpy<1 ({metadata.version('numpy')}), no-such-package>=2 (missing)." in actual.problem
    )
    assert "-m pip install 'numpy<1' 'no-such-package>=2'`" in actual.fix
