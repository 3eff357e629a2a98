"""The notebooks of the documentation on a fresh run: their stored output is of an earlier one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from finished_run import ROOT, FinishedRun

EXAMPLES = ROOT / "docs" / "examples"
#: The run folder that a notebook reads.
RUN = "../../runs/demo"
#: 16 virtual workers for 20 epochs and 5 seeds show a curve; fewer show that the code works.
SHORTER = {
    "epochs=20": "epochs=2",
    "range(1, 6)": "range(1, 3)",
    "arange(1, 21)": "arange(1, 3)",
}


def code_of(notebook: Path) -> str:
    """The code of all cells."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return "\n".join(sources)


@pytest.mark.minutes
@pytest.mark.spark
@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_on_a_fresh_run(
    finished_run: FinishedRun, tmp_path: Path, notebook: Path
) -> None:
    run_dir = finished_run.restore()
    code = code_of(notebook)
    assert RUN in code
    for original, replacement in ({RUN: str(run_dir)} | SHORTER).items():
        code = code.replace(original, replacement)
    script = tmp_path / "notebook.py"
    script.write_text(code, encoding="utf-8")

    completed = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stderr
