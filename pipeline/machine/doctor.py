"""Finds problems of this machine before a run starts: the mistakes that people make."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Final, Literal, NamedTuple

from hep_core.allocation import MemoryLimit, memory_limit, usable_cores
from hep_core.environment import IGNORED_BY_LOCAL_SPARK, ignored_names
from pipeline.runs.code_meaning import PACKAGES, ROOT
from pipeline.runs.provenance import DISTRIBUTION, installed_version

_MIB: Final = 2**20
_GIB: Final = 2**30
#: Disk space for any stage, with temporary files of Spark and MPI, figures and logs.
_LEAST_BYTES: Final = _GIB
#: Versions that Spark runs on.
JAVA_VERSIONS: Final = (17, 21)
_JAVA_FIX: Final = (
    "Install Java 17 (`sudo apt-get install openjdk-17-jre-headless` on Debian) and point to it: "
    "`export JAVA_HOME=/usr/lib/jvm/java-17-openjdk-$(dpkg --print-architecture)`."
)
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - OpenMPI's own default; nothing is written here
_SHM_BASE: Final = 64 * _MIB
_SHM_PER_WORKER: Final = 16 * _MIB
#: Memory of this process and of each rank before they hold events; two ranks and their launcher had 730 MiB together.
_MEMORY_BASE: Final = 256 * _MIB
_MEMORY_PER_WORKER: Final = 256 * _MIB


class Need(StrEnum):
    """What a stage needs, by the extra of pyproject.toml that installs it; this chooses the checks."""

    SPARK = "spark"
    MPI = "train"


class Finding(NamedTuple):
    """One problem: a sentence about it, and a fix.

    After an error the stage fails or hangs; after a warning it runs slowly, or otherwise than the user may expect.
    """

    check: str
    severity: Literal["error", "warning"]
    problem: str
    fix: str


def examine(
    needs: Collection[Need], *, run_dir: Path, workers: int = 1, threads: int = 1
) -> list[Finding]:
    """Check the packages and the disk, and what the needs ask for.

    Returns:
        The findings, errors first.
    """
    found = [about_packages(needs), about_disk(run_dir)]
    if Need.SPARK in needs:
        found.append(about_java(os.environ))
    if Need.MPI in needs:
        free = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None
        found += [about_shared_memory(free, workers), about_memory(memory_limit(), workers)]
        found.append(about_cores(usable_cores(), workers, threads))
    return sorted((each for each in found if each), key=lambda each: each.severity)


def render(findings: Sequence[Finding]) -> str:
    """The result of `examine` as lines for the terminal."""
    lines = [f"{found.severity}: {found.problem}\n    fix: {found.fix}" for found in findings]
    return "\n".join(lines) or "nothing wrong found"


def about_packages(extras: Iterable[str]) -> Finding | None:
    """A package that is missing or unsupported, for example after another `pip install`."""
    try:
        unmet = _unmet(tuple(metadata.requires(DISTRIBUTION) or ()), frozenset({"", *extras}))
    except metadata.PackageNotFoundError:  # This project is on the path without being installed.
        return None
    if not unmet:
        return None
    found = ", ".join(f"{wanted} ({version or 'missing'})" for wanted, version in unmet.items())
    install = shlex.join([sys.executable, "-m", "pip", "install", *unmet])
    problem = f"Packages differ from pyproject.toml: {found}."
    return Finding("packages", "error", problem, f"Run `make setup`, or `{install}`.")


def about_names() -> Finding | None:
    """A package or module of another project that has the name of one of ours: Python imports one of the two."""
    owners = metadata.packages_distributions()
    found = [
        f"{name} of {owner}"
        for name in PACKAGES
        for owner in {*owners.get(name, ())} - {DISTRIBUTION}
    ]
    places = {*sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)} - {""}
    for folder in sorted({Path(place).resolve() for place in places} - {ROOT}):
        found += [
            str(folder / name) for name in PACKAGES if (folder / name / "__init__.py").is_file()
        ]
        found += [
            str(folder / f"{name}.py") for name in PACKAGES if (folder / f"{name}.py").is_file()
        ]
    if not found:
        return None
    problem = (
        f"Python also finds {', '.join(found)}, which have the names of packages of this project."
    )
    return Finding(
        "names", "warning", problem, "Use an environment, and a PYTHONPATH, without them."
    )


def about_disk(run_dir: Path) -> Finding | None:
    """Too little free disk at the run folder: Spark would fail in the middle of a write."""
    path = run_dir.absolute()
    free = shutil.disk_usage(
        next(folder for folder in (path, *path.parents) if folder.exists())
    ).free
    if free >= _LEAST_BYTES:
        return None
    has, wants = (f"{size / _GIB:.2f} GiB" for size in (free, _LEAST_BYTES))
    problem = f"The disk of {run_dir} has {has} free, but the run needs {wants}."
    fix = "Delete old runs (`python -m pipeline clean`), or choose a run_dir on another disk."
    return Finding("disk", "error", problem, fix)


def about_java(env: Mapping[str, str]) -> Finding | None:
    """No Java that Spark runs on, where pyspark only says "Java gateway process exited before sending its port number".

    If JAVA_HOME is set, Spark uses it and ignores the PATH.
    """
    error = partial(Finding, "java", "error", fix=_JAVA_FIX)
    home = env.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else env.get("PATH"))  # noqa: PTH118 - a path of `which`
    if java is None:
        nowhere = f"JAVA_HOME is {home}, which has no bin/java, and Spark uses no other Java."
        return error(
            nowhere
            if home
            else "There is no Java: JAVA_HOME is not set and no java is on the PATH."
        )
    # Without what the site's Spark would give it.
    answer = _java_version(
        java,
        frozenset(
            (name, env[name])
            for name in env.keys() - set(ignored_names(IGNORED_BY_LOCAL_SPARK, env))
        ),
    )
    # Java 8 and older print 1.8 and the like.
    match = re.search(r'version "(?:1\.)?(\d+)', answer)
    whose = f"{java} (from {'JAVA_HOME' if home else 'the PATH'})"
    lack = re.search(r".*(enough space|memory).*", answer)
    if match is None and lack is not None:
        limit = memory_limit()
        return Finding(
            "memory", "error", f"{whose} does not start ({lack[0].strip()}): {limit}.", limit.advice
        )
    if match is None:
        return error(f"{whose} does not run: `java -version` prints no version.")
    if int(match[1]) not in JAVA_VERSIONS:
        return error(
            f"{whose} is Java {match[1]}, but Spark runs on {' and '.join(map(str, JAVA_VERSIONS))}."
        )
    return None


def about_shared_memory(free: int | None, workers: int) -> Finding | None:
    """Too small a /dev/shm, as in a container (64 MiB by default), where the ranks share memory.

    `free` is None without a /dev/shm.
    """
    wanted = _SHM_BASE + _SHM_PER_WORKER * workers
    if workers == 1 or free is None or free >= wanted:
        return None
    has, should = f"{free // _MIB} MiB", wanted // _MIB
    problem = f"Only {has} of /dev/shm are free, but {workers} workers need {should}: MPI's windows may not fit."
    return Finding(
        "shared-memory", "warning", problem, f"Start the container with `--shm-size={should}m`."
    )


def about_memory(limit: MemoryLimit, workers: int) -> Finding | None:
    """Too little memory for the ranks, as in a small container or batch job: the kernel would kill one of them."""
    wanted = _MEMORY_BASE + _MEMORY_PER_WORKER * workers
    if limit.num_bytes >= wanted:
        return None
    problem = f"{workers} worker(s) need {wanted // _MIB:,} MiB and the memory of their events, but {limit}."
    return Finding("memory", "warning", problem, limit.advice)


def about_cores(cores: int, workers: int, threads: int) -> Finding | None:
    """More workers, or threads of all workers, than cores: they wait for each other."""
    if workers * threads <= cores:
        return None
    problem = f"{workers} worker(s) of {threads} thread(s) share {cores} core(s), so that they wait for cores."
    fix = (
        f"Set `train.threads` to {max(1, cores // workers)}."
        if threads > 1
        else f"Train with `--workers {cores}`."
    )
    return Finding("cores", "warning", problem, fix)


@cache  # A process that runs several commands, as tests do, would start a JVM for each.
def _java_version(java: str, env: frozenset[tuple[str, str]]) -> str:
    """Output of `java -version`; empty if it cannot start."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, check=False, env=dict(env))
    except OSError:
        return ""
    return (answer.stderr + answer.stdout).decode(errors="replace")


@cache  # The metadata of a hundred packages takes longer than some commands.
def _unmet(requirements: tuple[str, ...], extras: frozenset[str]) -> Mapping[str, str | None]:
    """Unmet requirements with the installed versions; None for missing packages."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - `status` starts without it

    unmet = {}
    for wanted in map(Requirement, requirements):
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": each}) for each in extras):
            version = installed_version(wanted.name)
            if version is None or not wanted.specifier.contains(version, prereleases=True):
                unmet[f"{wanted.name}{wanted.specifier}"] = version
    return unmet
