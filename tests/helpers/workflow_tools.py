"""Snakemake, law and HTCondor's bindings, in an environment of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def workflow_program(name: str) -> Path:
    """Return the path of a program of that environment; fail the test where there is none."""
    folder = Path(os.environ.get("HEP_WORKFLOW_TOOLS", ROOT / ".venv-workflows" / "bin"))
    program = folder / name
    if not program.exists():
        pytest.fail(
            f"{program} is missing. `make workflows-setup` installs it; HEP_WORKFLOW_TOOLS names "
            f"another folder of programs."
        )
    return program
