"""The example of law in a real law, with a pipeline whose stages only write a file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from workflow_tools import EXAMPLES, workflow_program

from pipeline.stages.table import STAGE_OF

pytestmark = pytest.mark.minutes

#: Stands for the Python of the pipeline. Its arguments: -m pipeline plan|<stage> ...
PIPELINE = f"""#!{sys.executable}
import json, sys
from pathlib import Path

STAGES = ("ingest", "features", "train", "report")
command = sys.argv[3]
if command == "plan":
    plan = []
    for name in STAGES:
        state = "up to date" if Path(name).exists() else "not there yet"
        plan.append({{"stage": name, "state": state, "target": name}})
    print(json.dumps(plan))
else:
    Path(command).touch()
    with open("log", "a") as log:
        log.write(command + "\\n")
"""


def law_environment(folder: Path, python: Path) -> dict[str, str]:
    """Return an environment in which law uses a folder and the module of the example."""
    return os.environ | {
        "HEP_PIPELINE_PYTHON": str(python),
        "LAW_HOME": str(folder / "law"),
        "PYTHONPATH": str(EXAMPLES / "law"),
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_stages_run_once_and_in_order_with_any_number_of_workers(
    tmp_path: Path, workers: int
) -> None:
    python = tmp_path / "python"
    python.write_text(PIPELINE)
    python.chmod(0o700)
    shutil.copy(EXAMPLES / "law" / "law.cfg", tmp_path)

    for _ in range(2):
        completed = subprocess.run(
            [
                *(workflow_program("law"), "run", "stages.Report"),
                *("--night", "my.yaml", "--workers", str(workers)),
            ],
            cwd=tmp_path,
            env=law_environment(tmp_path, python),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

        assert completed.returncode == 0, completed.stdout
        assert (tmp_path / "log").read_text() == "ingest\nfeatures\ntrain\nreport\n"


def test_each_stage_of_the_pipeline_has_a_task(tmp_path: Path) -> None:
    completed = subprocess.run(
        [
            workflow_program("python"),
            "-c",
            "import json, stages; print(json.dumps([*stages.TASKS]))",
        ],
        env=law_environment(tmp_path, tmp_path),
        stdout=subprocess.PIPE,
        check=True,
    )

    assert json.loads(completed.stdout) == [*STAGE_OF]
