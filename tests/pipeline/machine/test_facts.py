"""What the doctor reads about this machine, in this environment and in others."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from pipeline.machine.doctor import Finding, Need, PlannedUse, Severity, examine
from pipeline.machine.facts import (
    ask_java,
    find_java,
    java_major,
    mpi_temp_dir,
    read_machine,
)


@pytest.mark.parametrize(
    ("answer", "major"),
    [
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ('java version "1.8.0_392"', 8),
        ("bash: java: not a Java", None),
        ("", None),
    ],
)
def test_java_major(answer: str, major: int | None) -> None:
    assert java_major(answer) == major


def test_this_machine_can_run_spark_locally(tmp_path: Path) -> None:
    machine = read_machine(run_dir=tmp_path / "not" / "there" / "yet")
    findings = examine(machine, [Need.SPARK], PlannedUse(min_free_bytes=0))
    assert [found for found in findings if found.severity == Severity.ERROR] == []
    assert machine.cores >= 1
    assert machine.free_bytes > 0
    assert (machine.checkout / "pipeline" / "cli.py").exists()
    assert machine.python_version == sys.version_info[:2]


def make_java(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(script)
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


JAVA_11_SCRIPT = "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"


@pytest.fixture
def find(tmp_path: Path) -> Callable[..., list[Finding]]:
    """What the doctor finds about Spark on this machine in another environment."""

    def examine_with(**env: str) -> list[Finding]:
        machine = read_machine(run_dir=tmp_path, env={**os.environ, **env})
        return [found for found in examine(machine, [Need.SPARK]) if found.check == "java"]

    return examine_with


def test_wrong_java_at_java_home(tmp_path: Path, find: Callable[..., list[Finding]]) -> None:
    make_java(tmp_path / "bin", JAVA_11_SCRIPT)
    (found,) = find(JAVA_HOME=str(tmp_path))
    assert found.severity == Severity.ERROR
    assert found.problem == f"{tmp_path}/bin/java (from JAVA_HOME) is Java 11, but Spark 4.0 runs on 17 and 21."


def test_wrong_java_on_the_path(tmp_path: Path, find: Callable[..., list[Finding]]) -> None:
    make_java(tmp_path, JAVA_11_SCRIPT)
    (found,) = find(JAVA_HOME="", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert found.problem.startswith(f"{tmp_path}/java (from the PATH) is Java 11")


def test_java_home_at_nothing(tmp_path: Path, find: Callable[..., list[Finding]]) -> None:
    (found,) = find(JAVA_HOME=str(tmp_path / "gone"))
    assert found.problem.startswith(f"JAVA_HOME is {tmp_path}/gone, which has no bin/java")


def test_no_java_at_all(tmp_path: Path, find: Callable[..., list[Finding]]) -> None:
    (found,) = find(JAVA_HOME="", PATH=str(tmp_path))
    assert found.problem.startswith("There is no Java")


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    on_path = make_java(tmp_path / "path", JAVA_11_SCRIPT)
    at_home = make_java(tmp_path / "home" / "bin", JAVA_11_SCRIPT)
    env = {"PATH": str(on_path.parent)}
    assert find_java(env) == on_path
    assert find_java({**env, "JAVA_HOME": str(tmp_path / "home")}) == at_home
    at_home.chmod(0o600)
    assert find_java({**env, "JAVA_HOME": str(tmp_path / "home")}) is None


def test_java_that_cannot_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    not_a_program = make_java(tmp_path / "text", "no shebang, no program\0")
    assert ask_java(not_a_program, {}) is None
    monkeypatch.setattr("pipeline.machine.facts._JAVA_TIMEOUT_SECONDS", 0.2)
    sleeps = make_java(tmp_path / "sleeps", "#!/bin/sh\nexec sleep 30\n")
    assert ask_java(sleeps, {"PATH": "/usr/bin:/bin"}) is None


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"TMPDIR": "/a", "TEMP": "/b", "TMP": "/c"}, "/a"),
        ({"TMPDIR": "", "TEMP": "/b", "TMP": "/c"}, "/b"),
        ({"TMP": "/c"}, "/c"),
        ({}, "/tmp"),  # noqa: S108 - the name, nothing is written there
    ],
)
def test_mpi_temp_dir(env: dict[str, str], folder: str) -> None:
    assert mpi_temp_dir(env) == Path(folder)


def test_temp_folder_is_usable_if_it_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def is_usable(folder: str) -> bool:
        return read_machine(run_dir=tmp_path, env={"TMPDIR": folder}).temp_usable

    assert is_usable(str(tmp_path))
    assert is_usable(str(tmp_path / "to" / "be" / "made"))
    assert not is_usable(str(tmp_path / "file"))
    assert not is_usable(str(tmp_path / "file" / "below"))
    assert not is_usable("/" + "t" * 5000)


def test_mpirun_is_looked_for_beside_this_python_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = make_java(tmp_path / "path", "").rename(tmp_path / "path" / "mpirun")
    (tmp_path / "env").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    env = {"PATH": str(on_path.parent)}
    assert read_machine(run_dir=tmp_path, env=env).mpirun == on_path
    assert read_machine(run_dir=tmp_path, env={"PATH": str(tmp_path)}).mpirun is None
    (tmp_path / "env" / "mpirun").touch()
    assert read_machine(run_dir=tmp_path, env=env).mpirun == tmp_path / "env" / "mpirun"


def test_host_name_that_does_not_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An empty label is no valid name, so no name server is asked.
    monkeypatch.setattr("socket.gethostname", lambda: "no..host")
    assert not read_machine(run_dir=tmp_path).host_resolves


def test_packages_that_are_missing_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy<1", "torch>=1", "no-such-package>=2", "nor-this; extra == 's3'"]
    monkeypatch.setattr("pipeline.machine.facts.metadata.requires", lambda _: wanted)
    assert read_machine(run_dir=tmp_path).unmet == {"numpy<1": version("numpy"), "no-such-package>=2": None}


def test_a_checkout_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("pipeline.machine.facts.metadata.requires", missing)
    assert read_machine(run_dir=tmp_path).unmet == {}


def test_this_environment_has_what_pyproject_asks_for(tmp_path: Path) -> None:
    assert read_machine(run_dir=tmp_path).unmet == {}
