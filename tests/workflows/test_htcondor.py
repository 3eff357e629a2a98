"""The examples for HTCondor: what its own bindings make of them, and the script of a night.

No pool is here: that a pool does what the submit files say is not tested.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import typer
from submit_files import FOLDER, fates, job_ad
from workflow_tools import EXAMPLES, ROOT

from pipeline.cli import app
from pipeline.stages.table import STAGE_OF

pytestmark = pytest.mark.minutes

SUBMIT_FILES = sorted(path.name for path in FOLDER.glob("*.sub"))
SIGNAL = None


@pytest.mark.parametrize("name", SUBMIT_FILES)
@pytest.mark.parametrize(
    ("exits", "outcomes"),
    [
        ([0], ["ends"]),
        ([1, 1, 1], ["again", "again", "ends"]),
        ([SIGNAL, SIGNAL, SIGNAL], ["again", "again", "ends"]),
        ([1, 0], ["again", "ends"]),
        ([2], ["held"]),
        ([3], ["held"]),
        ([66] * 20, ["waits"] * 19 + ["held"]),
        ([75, 0], ["waits", "ends"]),
        # A wait takes no try away.
        ([66, 75, 1, 1, 1], ["waits", "waits", "again", "again", "ends"]),
        ([1, 66, 1, 1], ["again", "waits", "again", "ends"]),
        ([2, SIGNAL, 3, 1, 0], ["held", "again", "held", "again", "ends"]),
    ],
)
def test_exit_codes_hold_repeat_or_end_the_job(
    name: str, exits: list[int | None], outcomes: list[str]
) -> None:
    assert fates(name, *exits) == outcomes


@pytest.mark.parametrize("name", SUBMIT_FILES)
def test_jobs_state_their_cores_and_memory_and_end_by_sigterm(name: str) -> None:
    job = job_ad(name, config="my.yaml", stage="train")

    assert (job["RequestCpus"], job["RequestMemory"]) == ("4", "8192")
    assert job["KillSig"] == "SIGTERM"
    assert "my.yaml" in job["Args"]


@pytest.mark.parametrize("name", SUBMIT_FILES)
def test_paths_start_at_the_folder_of_the_submission(name: str) -> None:
    job = job_ad(name, config="my.yaml", stage="train")

    folder, program = Path(job["Iwd"]), Path(job["Cmd"])
    assert folder == ROOT
    assert os.access(folder / program, os.X_OK)


def test_config_in_a_folder_travels_with_what_lies_beside_it(tmp_path: Path) -> None:
    """HTCondor puts what it transfers into one folder, by its last names."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "night").mkdir()

    job = job_ad("night_transfer.sub", folder=tmp_path, config="night/my.yaml")

    assert Path(job["Iwd"]) == tmp_path / "night"
    assert job["Args"] == "my.yaml"
    assert job["TransferInput"].split(",") == ["my.yaml", "incoming", "run", "hep-pipeline.sif"]
    assert job["TransferOutput"] == "run"


def transfer(path: Path, folder: Path) -> None:
    """Copy a file or a folder into another folder, over what is there, as HTCondor does."""
    if path.is_dir():
        shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
    else:
        shutil.copy(path, folder)


def run_on_node(node: Path, job: dict[str, str], python: Path) -> int:
    """Run a job in an empty folder of a node as HTCondor does; returns the exit code."""
    submitted_from = Path(job["Iwd"])
    node.mkdir()
    for name in job["TransferInput"].split(","):
        transfer(submitted_from / name, node)
    program = node / "condor_exec.exe"
    shutil.copy(job["Cmd"], program)

    environment = os.environ | {"HEP_PIPELINE_PYTHON": str(python)}
    command = [program, *job["Args"].split()]
    completed = subprocess.run(command, cwd=node, env=environment, check=False)

    for name in job["TransferOutput"].split(","):
        transfer(node / name, submitted_from)
    return completed.returncode


def test_run_folder_travels_from_the_first_night_on(tmp_path: Path) -> None:
    """Prepares what the first lines of the submit file say, and nothing else of the job."""
    lines = (FOLDER / "night_transfer.sub").read_text().splitlines()
    build, prepare, submit = (line[6:] for line in lines if line.startswith("#     "))
    image, config = build.split()[2], submit.split("config=")[1]
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / config).parent.mkdir()
    (tmp_path / config).with_name("incoming").mkdir()
    for path in (image, config):
        (tmp_path / path).touch()
    subprocess.run(["/bin/sh", "-c", prepare], cwd=tmp_path, check=True)
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ntest -f "$5" && test -d incoming || exit 2\necho "$3" >> run/commands\n'
    )
    python.chmod(0o700)

    job = job_ad("night_transfer.sub", folder=tmp_path, config=config)
    for node in ("first", "second"):
        assert run_on_node(tmp_path / node, job, python) == 0

    commands = (tmp_path / config).with_name("run") / "commands"
    assert commands.read_text() == 2 * "run\npromote\nclean\n"


def test_batch_scripts_of_pages_state_their_memory() -> None:
    """Without it a job gets what its site sets, which may be too little."""
    scripts = []
    for page in (ROOT / "docs").rglob("*.md"):
        # Consecutive lines of options belong to one script.
        scripts += re.findall(r"(?:^ *#SBATCH .*\n)+", page.read_text(), re.MULTILINE)

    assert scripts
    for script in scripts:
        assert " --mem=" in script


def test_nodes_of_the_workflow_are_the_stages_and_what_follows_them() -> None:
    """Stages that only some configs ask for do nothing under the others."""
    lines = (FOLDER / "night.dag").read_text().splitlines()
    nodes = {line.split()[1]: line.split()[2] for line in lines if line.startswith("JOB ")}
    arrows = [tuple(line.split()[1::2]) for line in lines if line.startswith("PARENT ")]
    assert list(nodes) == [*STAGE_OF, "promote", "clean"]
    assert arrows == list(itertools.pairwise(nodes))

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for node, path in nodes.items():
        variables = {"JOB": node}
        for line in lines:
            if re.match(rf"VARS ({node}|ALL_NODES) ", line):
                variables |= re.findall(r'(\w+)="(.*?)"', line)
        job = job_ad(Path(path).name, **variables)

        options = {option for parameter in commands[node].params for option in parameter.opts}
        if_wanted = "--if-wanted " if "--if-wanted" in options else ""
        assert job["Args"] == f"-m pipeline {node} {if_wanted}--config nightly.yaml"


def test_eviction_reaches_the_command_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    """The shell of the script gets the signal; without care the command would be an orphan."""
    command = tmp_path / "python"
    command.write_text(
        "#!/bin/sh\ntrap 'echo ended >> log; exit 130' TERM\necho \"$3\" >> log\n"
        "while :; do sleep 0.05; done\n"
    )
    command.chmod(0o700)
    log = tmp_path / "log"
    environment = os.environ | {"HEP_PIPELINE_PYTHON": str(command)}

    script = subprocess.Popen([EXAMPLES / "night.sh", "my.yaml"], cwd=tmp_path, env=environment)
    while not log.exists() or not log.read_text():
        time.sleep(0.02)
    script.send_signal(signal.SIGTERM)

    assert script.wait(timeout=60) == 130
    assert log.read_text() == "run\nended\n"


def test_script_stops_at_the_first_command_that_fails(tmp_path: Path) -> None:
    command = tmp_path / "python"
    command.write_text('#!/bin/sh\necho "$3 $4 $5" >> log\ntest "$3" = run || exit 75\n')
    command.chmod(0o700)
    environment = os.environ | {"HEP_PIPELINE_PYTHON": str(command)}

    script = subprocess.run(
        [EXAMPLES / "night.sh", "my.yaml"], cwd=tmp_path, env=environment, check=False
    )

    assert script.returncode == 75
    log = (tmp_path / "log").read_text()
    assert log == "run --config my.yaml\npromote --config my.yaml\n"
