"""The examples for HTCondor: what its own bindings make of them, and the script of a night.

No pool is here: that a pool does what the submit files say is not tested.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from workflow_tools import EXAMPLES, ROOT, workflow_program

pytestmark = pytest.mark.minutes

FOLDER = EXAMPLES / "htcondor"
#: Prints what a submit file becomes, and what its expressions are after a job ended with a code.
EXPAND = """
import json, sys
import htcondor

path, exit_codes, values = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
submit = htcondor.Submit(open(path).read())
submit.update(values)
job = next(submit.jobs(count=1))
outcomes = {}
for code in exit_codes:
    job.update({"ExitCode": code, "ExitBySignal": False, "NumJobCompletions": 1})
    outcomes[code] = {name: bool(job.eval(name)) for name in ("OnExitHold", "OnExitRemove")}
names = ("RequestCpus", "RequestMemory", "Args", "KillSig")
print(json.dumps({"outcomes": outcomes, "text": {name: str(job[name]) for name in names}}))
"""


def expand(name: str, *exit_codes: int, **values: str) -> dict[str, Any]:
    """Return what HTCondor's bindings make of a submit file."""
    python = workflow_program("python")
    arguments = [str(FOLDER / name), json.dumps(exit_codes), json.dumps(values)]
    completed = subprocess.run(
        [python, "-c", EXPAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(completed.stdout)
    return result


@pytest.mark.parametrize("name", ["night.sub", "night_transfer.sub"])
def test_exit_codes_hold_repeat_or_end_the_job(name: str) -> None:
    outcomes = expand(name, 0, 1, 2, 3, 66, 75)["outcomes"]

    held = {int(code) for code, outcome in outcomes.items() if outcome["OnExitHold"]}
    repeated = {int(code) for code, outcome in outcomes.items() if not outcome["OnExitRemove"]}
    assert held == {2, 3, 66, 75}
    assert 0 not in repeated
    assert 1 in repeated


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.sub")))
def test_jobs_state_their_cores_and_memory_and_end_by_sigterm(name: str) -> None:
    text = expand(name, config="my.yaml", stage="train")["text"]

    assert (text["RequestCpus"], text["RequestMemory"]) == ("4", "8192")
    assert text["KillSig"] == "SIGTERM"
    assert "my.yaml" in text["Args"]


def test_batch_scripts_of_pages_state_their_memory() -> None:
    """Without it a job gets what its site sets, which may be too little."""
    scripts = []
    for page in (ROOT / "docs").rglob("*.md"):
        # Consecutive lines of options belong to one script.
        scripts += re.findall(r"(?:^ *#SBATCH .*\n)+", page.read_text(), re.MULTILINE)

    assert scripts
    for script in scripts:
        assert " --mem=" in script


def test_nodes_of_the_workflow_are_commands_in_order() -> None:
    lines = (FOLDER / "night.dag").read_text().splitlines()
    nodes = [line.split()[1] for line in lines if line.startswith("JOB ")]
    arrows = [tuple(line.split()[1::2]) for line in lines if line.startswith("PARENT ")]

    assert nodes[:2] == ["ingest", "features"]
    assert arrows == list(itertools.pairwise(nodes))


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
