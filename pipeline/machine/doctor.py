"""Finds problems of this machine before a run starts: the mistakes that people make."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Final, Literal, NamedTuple

from hep_core.allocation import MIB, CoreLimit, MemoryLimit, core_limit, memory_limit
from hep_core.batch_systems import MEMORY_REQUESTS, cores_of_nodes
from hep_core.environment import IGNORED_BY_LOCAL_SPARK, ignored_names
from pipeline.configuration.shell_sections import AUTO, SparkSettings
from pipeline.machine.spark_allocation import heap_bytes, slots_of, with_allocation
from pipeline.runs.code_meaning import PACKAGES, ROOT
from pipeline.runs.provenance import DISTRIBUTION, installed_version
from training.allocation import memory_of_workers

_GIB: Final = 1024 * MIB
#: Disk space for any stage, with temporary files of Spark and MPI, figures and logs.
_MIN_FREE_BYTES: Final = _GIB
#: Versions that Spark runs on.
JAVA_VERSIONS: Final = (17, 21)
_JAVA_FIX: Final = (
    "Install Java 17 (`sudo apt-get install openjdk-17-jre-headless` on Debian) and point to it: "
    "`export JAVA_HOME=/usr/lib/jvm/java-17-openjdk-$(dpkg --print-architecture)`."
)
#: What Java says that cannot get its memory; which part it asks for first depends on chance.
_LACK_OF_MEMORY: Final = re.compile(r".*(enough space|memory|allocate|reserve).*", re.IGNORECASE)
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - nothing is written here
#: Shared memory for MPI itself and for each worker of a training.
_SHM_BASE: Final = 64 * MIB
_SHM_PER_WORKER: Final = 16 * MIB


class Need(StrEnum):
    """What a stage needs on this machine; it selects the checks.

    The values are the names of the extras in `pyproject.toml` that install it.
    """

    SPARK = "spark"
    MPI = "train"


class Finding(NamedTuple):
    """A problem: a sentence about it, and a fix.

    After an error the stage fails or hangs; after a warning it runs slowly, or otherwise than the
    user may expect.
    """

    check: str
    """Short name of the check that found it."""
    severity: Literal["error", "warning"]
    problem: str
    fix: str


def examine(
    needs: Collection[Need],
    *,
    run_dir: Path,
    spark: SparkSettings,
    workers: int = 1,
    threads: int = 1,
) -> list[Finding]:
    """Check the packages and the disk of this machine, and what the needs ask for.

    Args:
        needs: What the stages of the run need, such as Spark.
        run_dir: The run folder, which need not exist yet.
        spark: The section `spark` of the config.
        workers: Number of training processes on this machine.
        threads: Threads of each.

    Returns:
        The findings, errors first.
    """
    findings = [
        check_packages(needs),
        check_disk(run_dir),
        check_batch_memory(memory_limit(), os.environ),
    ]
    if Need.SPARK in needs:
        findings += [check_java(os.environ), *check_spark(spark, core_limit(), memory_limit())]
    if Need.MPI in needs:
        free_bytes = None
        if _SHARED_MEMORY.is_dir():
            free_bytes = shutil.disk_usage(_SHARED_MEMORY).free
        findings += [
            check_shared_memory(free_bytes, workers),
            check_memory(memory_limit(), workers),
            check_cores(core_limit(), workers, threads),
        ]
    problems = [finding for finding in findings if finding is not None]
    # "error" comes before "warning" in the alphabet.
    return sorted(problems, key=lambda finding: finding.severity)


def render(findings: Sequence[Finding]) -> str:
    """Return findings as lines for the terminal, each problem with its fix below."""
    lines = [
        f"{finding.severity}: {finding.problem}\n    fix: {finding.fix}" for finding in findings
    ]
    return "\n".join(lines) or "nothing wrong found"


def check_packages(extras: Iterable[str]) -> Finding | None:
    """Compare the installed packages with the requirements of this project.

    They differ, for example, after a `pip install` of something else.

    Args:
        extras: Optional groups of requirements in `pyproject.toml` that count too.

    Returns:
        An error that names missing packages and unsupported versions; None if there are none.
    """
    try:
        requirements = tuple(metadata.requires(DISTRIBUTION) or ())
    except metadata.PackageNotFoundError:  # This project is on the path without being installed.
        return None
    unmet = _unmet(requirements, frozenset({"", *extras}))
    if not unmet:
        return None
    packages = ", ".join(
        f"{requirement} ({version or 'missing'})" for requirement, version in unmet.items()
    )
    install = shlex.join([sys.executable, "-m", "pip", "install", *unmet])
    problem = f"Packages differ from pyproject.toml: {packages}."
    return Finding("packages", "error", problem, f"Run `make setup`, or `{install}`.")


def check_names() -> Finding | None:
    """Look for packages and modules of other projects with the name of one of ours.

    Python imports one of the two, perhaps the other. The search is over the installed packages
    and over the folders from which Python imports.
    """
    namesakes = []
    # Names of installed distributions, by the package or module that they bring.
    owners = metadata.packages_distributions()
    for name in PACKAGES:
        other_owners = set(owners.get(name, ())) - {DISTRIBUTION}
        namesakes += [f"{name} of {owner}" for owner in other_owners]
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = {Path(path).resolve() for path in (*sys.path, *python_path) if path}
    for folder in sorted(folders - {ROOT}):
        packages = [folder / name for name in PACKAGES if (folder / name / "__init__.py").is_file()]
        modules = [folder / f"{name}.py" for name in PACKAGES]
        namesakes += map(str, packages)
        namesakes += [str(path) for path in modules if path.is_file()]
    if not namesakes:
        return None
    return Finding(
        "names",
        "warning",
        f"Python also finds {', '.join(namesakes)}, which have the names of packages of this "
        f"project.",
        "Use an environment, and a PYTHONPATH, without them.",
    )


def check_disk(run_dir: Path) -> Finding | None:
    """Return an error if the disk of the run folder has less than 1 GiB free.

    Spark would fail in the middle of a write.
    """
    path = run_dir.absolute()
    # The run folder may not exist yet; the closest folder around it lies on the same disk.
    existing_folder = next(folder for folder in (path, *path.parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing_folder).free
    if free_bytes >= _MIN_FREE_BYTES:
        return None
    free, needed = f"{free_bytes / _GIB:.2f} GiB", f"{_MIN_FREE_BYTES / _GIB:.2f} GiB"
    problem = f"The disk of {run_dir} has {free} free, but the run needs {needed}."
    fix = "Delete old runs (`python -m pipeline clean`), or choose a run_dir on another disk."
    return Finding("disk", "error", problem, fix)


def check_java(env: Mapping[str, str]) -> Finding | None:
    """Check that there is a Java on which Spark runs, and that it starts.

    Without one, pyspark only says "Java gateway process exited before sending its port number". If
    JAVA_HOME is set, Spark uses it and ignores the PATH.

    Args:
        env: The environment variables.

    Returns:
        An error with the reason; None if Java is fine.
    """
    error = partial(Finding, "java", "error", fix=_JAVA_FIX)
    home = env.get("JAVA_HOME")
    search_path = str(Path(home, "bin")) if home else env.get("PATH")
    java = shutil.which("java", path=search_path)
    if java is None and home:
        return error(f"JAVA_HOME is {home}, which has no bin/java, and Spark uses no other Java.")
    if java is None:
        return error("There is no Java: JAVA_HOME is not set and no java is on the PATH.")
    # Java is started as Spark starts it: without the variables of a site's own Spark.
    ignored = set(ignored_names(IGNORED_BY_LOCAL_SPARK, env))
    java_env = frozenset((name, value) for name, value in env.items() if name not in ignored)
    output = _java_version(java, java_env)
    source = f"{java} (from {'JAVA_HOME' if home else 'the PATH'})"
    # Java 8 and older print 1.8 and so on.
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is not None and int(version[1]) in JAVA_VERSIONS:
        return None
    if version is not None:
        supported = " and ".join(map(str, JAVA_VERSIONS))
        return error(f"{source} is Java {version[1]}, but Spark runs on {supported}.")
    lack_of_memory = _LACK_OF_MEMORY.search(output)
    if lack_of_memory is not None:
        limit = memory_limit()
        problem = f"{source} does not start ({lack_of_memory[0].strip()}): {limit}."
        return Finding("memory", "error", problem, limit.advice)
    return error(f"{source} does not run: `java -version` prints no version.")


def check_shared_memory(free_bytes: int | None, workers: int) -> Finding | None:
    """Return a warning if `/dev/shm`, where training processes share memory, is too small.

    A container has only 64 MiB by default. A single worker needs none.

    Args:
        free_bytes: Its free space; None if this machine has no `/dev/shm`.
        workers: Number of training processes.
    """
    needed_bytes = _SHM_BASE + _SHM_PER_WORKER * workers
    if workers == 1 or free_bytes is None or free_bytes >= needed_bytes:
        return None
    free, needed = f"{free_bytes // MIB} MiB", needed_bytes // MIB
    return Finding(
        "shared-memory",
        "warning",
        f"Only {free} of /dev/shm are free, but {workers} workers need {needed}: MPI's windows may "
        f"not fit.",
        f"Start the container with `--shm-size={needed}m`.",
    )


def check_memory(limit: MemoryLimit, workers: int) -> Finding | None:
    """Return a warning if the training processes do not fit into the memory.

    That happens in a small container or batch job, where the kernel would kill one of them.

    Args:
        limit: The memory that this process may use.
        workers: Number of training processes.
    """
    needed_bytes = memory_of_workers(workers)
    if limit.num_bytes >= needed_bytes:
        return None
    problem = (
        f"{workers} worker(s) need {needed_bytes // MIB:,} MiB and the memory of their events, "
        f"but {limit}."
    )
    return Finding("memory", "warning", problem, limit.advice)


def check_batch_memory(limit: MemoryLimit, env: Mapping[str, str]) -> Finding | None:
    """Return a warning if a batch job of SLURM asks for no memory, and nothing else limits it.

    It then shares the memory of the host with other jobs. HTCondor always states a memory.

    Args:
        limit: The memory that this process may use.
        env: The environment variables.
    """
    if "SLURM_JOB_ID" not in env or not limit.is_of_host:
        return None
    problem = f"This batch job states no memory, and {limit}, which other jobs may use too."
    return Finding("batch-memory", "warning", problem, f"Add {MEMORY_REQUESTS['SLURM']}.")


def check_cores(limit: CoreLimit, workers: int, threads: int) -> Finding | None:
    """Return a warning if all threads of all workers are more than the cores that they may use.

    They would wait for each other. The fix is fewer threads, or fewer workers if each has one.
    """
    cores = max(1, int(limit.cores))
    if workers * threads <= cores:
        return None
    problem = f"{workers} worker(s) of {threads} thread(s) wait for each other, since {limit}."
    fix = f"Train with `--workers {cores}`."
    if threads > 1:
        fix = f"Set `train.threads` to {max(1, cores // workers)}."
    return Finding("cores", "warning", problem, fix)


def check_srun(env: Mapping[str, str], workers: int, threads: int) -> Finding | None:
    """Return a warning if srun has no CPUs for all training processes on the nodes of its job.

    It would refuse to start them. It does not start a single one.

    Args:
        env: The environment variables.
        workers: Number of training processes.
        threads: Threads of each, for which srun takes as many CPUs of one node.
    """
    nodes = cores_of_nodes(env)
    num_startable = sum(cores // threads for cores in nodes)
    if workers == 1 or not nodes or workers <= num_startable:
        return None
    return Finding(
        "srun-cores",
        "warning",
        f"srun has CPUs for {num_startable} of {workers} worker(s) of {threads} thread(s), since "
        f"this batch job has {env['SLURM_JOB_CPUS_PER_NODE']} on its nodes "
        f"(SLURM_JOB_CPUS_PER_NODE).",
        f"Add `#SBATCH --ntasks={workers} --cpus-per-task={threads}` to the batch script, or lower "
        f"`train.workers` or `train.threads`.",
    )


def check_spark(
    settings: SparkSettings, cores: CoreLimit, memory: MemoryLimit
) -> Iterator[Finding]:
    """Yield a warning for each share of this machine that a local Spark asks for and does not get.

    Args:
        settings: The section `spark` of the config.
        cores: The cores that this process may use.
        memory: The memory that this process may use.
    """
    num_slots = slots_of(settings.master)
    if num_slots is not None and num_slots > max(1, cores.cores):
        yield Finding(
            "spark-cores",
            "warning",
            f"spark.master is {settings.master}, which runs {num_slots} tasks at once, "
            f"but {cores}.",
            "Set `spark.master` to local[auto].",
        )
    # `auto` takes as little as Spark starts with, which may be too much.
    heap = with_allocation(settings, cores=cores, memory=memory).driver_memory
    if heap_bytes(heap) > memory.num_bytes:
        fix = "Set `spark.driver_memory` to auto."
        if settings.driver_memory == AUTO:
            fix = memory.advice
        yield Finding(
            "spark-memory", "warning", f"spark.driver_memory is {heap}, but {memory}.", fix
        )


@cache  # A process that runs several commands, as tests do, would start a JVM for each.
def _java_version(java: str, env: frozenset[tuple[str, str]]) -> str:
    """Return the output of `java -version`; empty if it cannot start.

    `env` holds the environment variables as pairs of name and value, which a cache can hash.
    """
    try:
        process = subprocess.run(
            [java, "-version"], capture_output=True, check=False, env=dict(env)
        )
    except OSError:
        return ""
    return (process.stderr + process.stdout).decode(errors="replace")


@cache  # The metadata of a hundred packages takes longer than some commands.
def _unmet(requirements: tuple[str, ...], extras: frozenset[str]) -> Mapping[str, str | None]:
    """Return the unmet requirements, such as `numpy>=2`, with the installed versions.

    A requirement counts if its marker (a condition, such as on an extra) holds for any of the
    extras; the empty extra stands for the base installation. The version is None for a missing
    package.
    """
    from packaging.requirements import Requirement  # noqa: PLC0415 - `status` starts without it

    unmet = {}
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        is_needed = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        version = installed_version(requirement.name)
        is_met = version is not None and requirement.specifier.contains(version, prereleases=True)
        if is_needed and not is_met:
            unmet[f"{requirement.name}{requirement.specifier}"] = version
    return unmet
