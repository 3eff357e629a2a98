"""Launchers load nothing of what their ranks and tasks compute with."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "training.launching.launcher",
        "training.gridsearch.spark_job",
        "pipeline.stages.train",
        "pipeline.machine.launching",
    ],
)
def test_a_launcher_imports_no_torch_and_no_compiler(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'numba', 'pandas'}} & {{*sys.modules}})"

    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )

    assert completed.stdout.strip() == "set()"
