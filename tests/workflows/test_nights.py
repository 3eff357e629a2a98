"""Nights that Snakemake and law run, by the examples of the documentation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import BRIEF_JVM, SAMPLES, STAGES, small_config
from workflow_tools import EXAMPLES, ROOT, workflow_program

pytestmark = [
    pytest.mark.minutes,
    pytest.mark.spark,
    pytest.mark.end_to_end,
    pytest.mark.timeout(1500),
]

#: Runs a night in a folder with further values of the config.
Night = Callable[..., subprocess.CompletedProcess[str]]


def run_tool(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a workflow tool in a folder, to its end; its output and errors are one text."""
    environment = os.environ | {
        "HEP_PIPELINE_JVM_OPTIONS": BRIEF_JVM,
        "HEP_PIPELINE_PYTHON": sys.executable,
        "LAW_HOME": str(folder / "law"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES / "law")]),
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def snakemake_night(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run the rules of the example of Snakemake."""
    return run_tool(
        folder,
        workflow_program("snakemake"),
        *("--snakefile", EXAMPLES / "snakemake" / "Snakefile", "--cores", "1", "--config"),
        "night=config.yaml",
        f"python={sys.executable}",
        f"set={json.dumps(overrides)}",
    )


def law_night(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run the tasks of the example of law."""
    shutil.copy(EXAMPLES / "law" / "law.cfg", folder)
    law = workflow_program("law")
    run_tool(folder, law, "index")
    settings = ["--settings", ",".join(overrides)] if overrides else []
    return run_tool(folder, law, "run", "stages.Report", "--night", "config.yaml", *settings)


def versions_in_use(run_dir: Path) -> dict[str, str]:
    """Return the version of each stage that its pointer names."""
    pointers = {stage: run_dir / stage / "current.json" for stage in STAGES}
    return {
        stage: json.loads(pointer.read_text())["version"] for stage, pointer in pointers.items()
    }


@pytest.mark.parametrize("run_night", [snakemake_night, law_night])
def test_nights_follow_the_files_and_survive_a_failing_stage(
    tmp_path: Path, run_night: Night
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for path in SAMPLES.glob("*_0.root"):
        shutil.copy(path, incoming)
    train = {"workers": 1, "algorithm": "sgd", "epochs": 2, "batch_size": 16}
    small_config(tmp_path, incoming, train=train)
    run_dir = tmp_path / "run"

    first = run_night(tmp_path)
    assert first.returncode == 0, first.stdout
    made_first = versions_in_use(run_dir)
    assert set(made_first) == set(STAGES)

    empty = run_night(tmp_path)
    assert empty.returncode == 0, empty.stdout
    assert versions_in_use(run_dir) == made_first
    # No command of a stage began.
    assert "up to date" not in empty.stdout.replace("present and up to date", "")

    damaged = incoming / "qcd_damaged.root"
    damaged.write_bytes(b"no ROOT file")
    failed = run_night(tmp_path)
    assert failed.returncode != 0
    assert "qcd_damaged.root" in failed.stdout
    # The pointer that the tool calls its output of the failed stage is there as before.
    assert versions_in_use(run_dir) == made_first
    damaged.unlink()

    overridden = run_night(tmp_path, "train.epochs=3")
    assert overridden.returncode == 0, overridden.stdout
    made_last = versions_in_use(run_dir)
    changed = {stage for stage in STAGES if made_last[stage] != made_first[stage]}
    assert changed == {"train", "evaluate", "export", "report"}
