"""The facts about this machine that the doctor checks; only `java -version` is started for them."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from ingestion.environment import LOCAL_SPARK, ignored
from pipeline.runs.provenance import DISTRIBUTION, installed_version
from training.cores import usable_cores

_JAVA_TIMEOUT_SECONDS: Final = 20
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - OpenMPI's own default; nothing is written here


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The facts that the checks use; `read_machine` gathers them.

    Attributes:
        env: The environment variables.
        java: The java that Spark would start; None if there is none.
        java_version: Output of `java -version`; None if there is no java, or it did not run.
        host_name: Name of this host.
        host_resolves: Whether that name has an address.
        mpirun: The mpirun that the launcher would start; None if there is none.
        cores: Number of cores that this process may use.
        shm_free_bytes: Free bytes in /dev/shm; None if there is no /dev/shm.
        temp_dir: Folder of MPI's session folder.
        temp_usable: Whether that folder can be written, or made.
        checkout: Folder of this project.
        run_dir: Folder of the run; need not exist yet.
        free_bytes: Free bytes on the disk of the run folder.
        unmet: Unmet requirements of this project with the installed versions; None for missing packages.
        python: This interpreter.
        python_version: Its version, major and minor.
    """

    env: Mapping[str, str]
    java: Path | None
    java_version: str | None
    host_name: str
    host_resolves: bool
    mpirun: Path | None
    cores: int
    shm_free_bytes: int | None
    temp_dir: Path
    temp_usable: bool
    checkout: Path
    run_dir: Path
    free_bytes: int
    unmet: Mapping[str, str | None]
    python: Path
    python_version: tuple[int, int]


def read_machine(*, run_dir: Path, env: Mapping[str, str] | None = None) -> Machine:
    """Gather the facts about this machine.

    Args:
        run_dir: Folder of the run; need not exist yet.
        env: The environment variables; those of this process by default.

    Returns:
        The facts, without any judgement.
    """
    env = dict(os.environ if env is None else env)
    java = find_java(env)
    without_site = {name: env[name] for name in env.keys() - set(ignored(LOCAL_SPARK, env))}
    host_name = socket.gethostname()
    temp_dir = mpi_temp_dir(env)
    python = Path(sys.executable)
    return Machine(
        env=env,
        java=java,
        java_version=None if java is None else _asked_once(java, frozenset(without_site.items())),
        host_name=host_name,
        host_resolves=_resolves(host_name),
        mpirun=_find_mpirun(python, env),
        cores=len(usable_cores()),
        shm_free_bytes=shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None,
        temp_dir=temp_dir,
        temp_usable=_is_usable(temp_dir),
        checkout=Path(__file__).absolute().parents[2],
        run_dir=run_dir,
        free_bytes=shutil.disk_usage(_nearest_existing(run_dir)).free,
        unmet=_unmet_requirements(),
        python=python,
        python_version=sys.version_info[:2],
    )


def find_java(env: Mapping[str, str]) -> Path | None:
    """The java that Spark's start script takes: JAVA_HOME's if that is set, else the one on the PATH."""
    if home := env.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        return java if java.is_file() and os.access(java, os.X_OK) else None
    found = shutil.which("java", path=env.get("PATH"))
    return Path(found) if found else None


def ask_java(java: Path, env: Mapping[str, str]) -> str | None:
    """Output of `java -version`, which comes on stderr; None if it cannot start or does not end."""
    try:
        answer = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            check=False,
            encoding="utf-8",
            env=env,
            errors="replace",
            timeout=_JAVA_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{answer.stderr}\n{answer.stdout}".strip()


@cache
def _asked_once(java: Path, env: frozenset[tuple[str, str]]) -> str | None:
    # A process that runs several commands, as tests do, would start a JVM for each.
    return ask_java(java, dict(env))


def java_major(answer: str) -> int | None:
    """The major version in the output of `java -version`; Java 8 and older print 1.8 and the like.

    >>> java_major('openjdk version "17.0.15" 2025-04-15')
    17
    """
    match = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(match[1]) if match else None


def mpi_temp_dir(env: Mapping[str, str]) -> Path:
    """The folder below which OpenMPI 5 makes its session folder.

    `tempfile.gettempdir()` differs: it tries the next candidate if a folder cannot be used, and mpirun does not. The
    order TMPDIR, TEMP, TMP was seen with the mpirun of OpenMPI 5.0.11.
    """
    return Path(next((env[name] for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)), "/tmp"))  # noqa: S108


def _find_mpirun(python: Path, env: Mapping[str, str]) -> Path | None:
    # The same search as in training.launching.launcher, whose import would import torch.
    beside = python.parent / "mpirun"
    if beside.exists():
        return beside
    found = shutil.which("mpirun", path=env.get("PATH"))
    return Path(found) if found else None


def _resolves(host_name: str) -> bool:
    try:
        socket.getaddrinfo(host_name, None)
    except (OSError, UnicodeError):
        return False
    return True


def _nearest_existing(path: Path) -> Path:
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _is_usable(folder: Path) -> bool:
    # mpirun makes a missing folder, so the nearest existing folder counts.
    try:
        existing = _nearest_existing(folder)
    except OSError:  # A name that is too long for the file system.
        return False
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _unmet_requirements() -> Mapping[str, str | None]:
    """Unmet requirements of pyproject.toml; none if this project is on the path without being installed."""
    try:
        return _unmet(tuple(metadata.requires(DISTRIBUTION) or ()))
    except metadata.PackageNotFoundError:
        return {}


@cache
def _unmet(requirements: tuple[str, ...]) -> Mapping[str, str | None]:
    # Read once in a process: the metadata of a hundred packages takes longer than some commands.
    unmet = {}
    for wanted in map(Requirement, requirements):
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            version = installed_version(wanted.name)
            if version is None or not wanted.specifier.contains(version, prereleases=True):
                unmet[str(wanted)] = version
    return unmet
