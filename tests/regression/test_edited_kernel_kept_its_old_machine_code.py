"""Numba's cache notices changes only in a function's own file: an edit of a kernel that others call had no effect."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import features

CALL = """
import numpy as np
from features.isolation import Candidates, lepton_sums
one = Candidates(np.array([1]), np.array([0.5]), np.array([0.2]), np.array([3.1]))
print(lepton_sums(one, 0.0, -3.1, 0.3, 0.0, False)[0][1])
"""


def isolation(checkout: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", CALL], cwd=checkout, capture_output=True, text=True, check=True, env={"PYTHONPATH": "."}
    )
    return float(done.stdout)


@pytest.mark.slow
def test_an_edit_in_another_file_of_the_package_is_compiled_in(tmp_path: Path) -> None:
    source = Path(str(features.__file__)).parent
    (tmp_path / "features").mkdir()
    for name in ("__init__", "arrays", "columns", "compiling", "kinematics", "isolation"):
        shutil.copy(source / f"{name}.py", tmp_path / "features")
    assert isolation(tmp_path) == 0.5
    kinematics = tmp_path / "features" / "kinematics.py"
    text = kinematics.read_text()
    edited = text.replace("difference %= _TWO_PI", "difference = 5.0")
    assert edited != text
    kinematics.write_text(edited)
    assert isolation(tmp_path) == 0.0
