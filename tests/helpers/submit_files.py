"""What HTCondor's bindings make of the submit files of the documentation."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from workflow_tools import EXAMPLES, ROOT, workflow_program

FOLDER = EXAMPLES / "htcondor"
#: Prints the ad of the first job of a submit file, and what the queue does after each exit.
EXPAND = """
import json, sys
import classad, htcondor

path, values, exits = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
# Values of the command line, and VARS of a DAG, stand before the lines of the file.
lines = [f"{name} = {value}\\n" for name, value in values.items()]
with open(path) as file:
    lines += file
job = next(htcondor.Submit("".join(lines)).jobs(count=1))
attributes = {name: str(job[name]) for name in job}

def holds_of_policy():
    return job["NumHoldsByReason"]["JobPolicy"] if "NumHoldsByReason" in job else 0

fates = []
for number, code in enumerate(exits, start=1):
    # The shadow counts every exit before it evaluates the expressions. After a signal the code of
    # the last exit may still be there.
    job["NumJobStarts"] = job["NumJobCompletions"] = number
    job["ExitBySignal"] = code is None
    if code is not None:
        job["ExitCode"] = code
    if job.eval("OnExitHold") is True:
        job["NumHoldsByReason"] = classad.ClassAd({"JobPolicy": holds_of_policy() + 1})
        job["HoldReasonSubCode"] = job.eval("OnExitHoldSubCode")
        job["EnteredCurrentStatus"] = 0
        fates.append("waits" if job.eval("PeriodicRelease") is True else "held")
    else:
        fates.append("ends" if job.eval("OnExitRemove") is True else "again")
print(json.dumps({"attributes": attributes, "fates": fates}))
"""


def _expand(
    name: str, values: dict[str, str], exits: tuple[int | None, ...], folder: Path
) -> dict[str, Any]:
    """Expand a submit file in the environment that DAGMan has.

    DAGMan submits with few variables since HTCondor 10.4; a shell has all of these and more.
    """
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "USER": "physicist"}
    environment["CONDOR_CONFIG"] = os.devnull
    arguments = [str(FOLDER / name), json.dumps(values), json.dumps(exits)]
    completed = subprocess.run(
        [workflow_program("python"), "-c", EXPAND, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(completed.stdout)
    return result


def job_ad(name: str, *, folder: Path = ROOT, **values: str) -> dict[str, str]:
    """Return the attributes of the job of a submit file, submitted from a folder."""
    attributes: dict[str, str] = _expand(name, values, (), folder)["attributes"]
    return attributes


def fates(name: str, *exits: int | None) -> list[str]:
    """Return what becomes of a job after each of its exits, by exit code; None is a signal.

    A job `ends`, starts `again`, is `held` for a person, or `waits`: it is held and released later.
    """
    outcomes: list[str] = _expand(name, {}, exits, ROOT)["fates"]
    return outcomes
