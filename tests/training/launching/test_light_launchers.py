"""Launchers load nothing of what their ranks and tasks compute with; these load no more than they
need."""

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
    assert _loaded_after(f"import {module}", "torch", "numba", "pandas", "scipy.special") == "[]"


def test_a_task_of_the_search_imports_no_scikit_learn() -> None:
    program = "import training.gridsearch.trainings"

    assert _loaded_after(program, "sklearn", "pandas", "scipy.stats") == "[]"


def test_a_prediction_outside_of_an_export_loads_no_exporter() -> None:
    program = "import torch; from models.networks.padding import pad_to_one; "
    program += "pad_to_one(torch.ones(1))"

    assert _loaded_after(program, "torch.onnx") == "[]"


def _loaded_after(program: str, *modules: str) -> str:
    """Those of some modules that a program has loaded, as the text of a list."""
    code = f"{program}; import sys; print([name for name in {modules} if name in sys.modules])"
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    return completed.stdout.strip()
