"""`hep_pipeline` is what programs import, in any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hep_pipeline
import pipeline.api

ROOT = Path(__file__).resolve().parents[1]


def python_in(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run some code in a folder whose modules have the names of our packages."""
    for name in ("features", "ingestion", "pipeline"):
        (folder / f"{name}.py").write_text("COLUMNS = 'mine'\n", encoding="utf-8")
    for name in ("models", "training"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(
            "raise RuntimeError('of the user')\n", encoding="utf-8"
        )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_it_has_all_of_the_interface() -> None:
    assert hep_pipeline.__all__ == pipeline.api.__all__
    for name in hep_pipeline.__all__:
        assert getattr(hep_pipeline, name) is getattr(pipeline.api, name)


def test_it_works_beside_modules_with_the_names_of_its_packages(tmp_path: Path) -> None:
    """`from pipeline.api import load_run` ended with "'features' is not a package"."""
    code = (
        "from hep_pipeline import load_run, current_model, predict; print(load_run('.').folder, "
        "predict.__module__)"
    )
    result = python_in(tmp_path, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, ". pipeline.api\n", "")


def test_a_module_of_such_a_name_that_was_imported_before_is_named(tmp_path: Path) -> None:
    result = python_in(tmp_path, "import features; from hep_pipeline import load_run")
    assert result.returncode == 1
    assert (
        "hep_pipeline has a package 'features', and the program has imported "
        f"{tmp_path}/features.py" in result.stderr
    )
