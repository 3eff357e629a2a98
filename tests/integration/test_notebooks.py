"""The notebooks of the documentation on a fresh run: their stored output shows nothing of what a
user gets."""

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


@pytest.mark.minutes
@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.ipynb")))
def test_the_notebook_failed_on_a_fresh_run(
    finished_run: FinishedRun, tmp_path: Path, name: str
) -> None:
    finished_run.restore()
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert RUN in code
    # 16 virtual workers for 20 epochs and 5 seeds show a curve; that it runs, one epoch shows.
    shorter = {
        RUN: str(finished_run.run_dir),
        "epochs=20": "epochs=2",
        "range(1, 6)": "range(1, 3)",
        "arange(1, 21)": "arange(1, 3)",
    }
    for old, new in shorter.items():
        code = code.replace(old, new)
    script = tmp_path / f"{name}.py"
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
