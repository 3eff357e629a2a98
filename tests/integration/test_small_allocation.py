"""The demo in a real cgroup with little memory and half a core."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import in_use
from small_cgroup import cgroup_with

MIB = 2**20
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.minutes
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("mebibytes", "workers", "note"),
    [
        # The stage says that two ranks share half a core.
        (750, "2", "2 worker(s) of 1 thread(s) wait for each other"),
        (600, "auto", "hlf: ar-sgd with adam, 1 worker(s)"),
    ],
)
def test_the_demo_finishes_with_little_memory_and_half_a_core(
    tmp_path: Path, mebibytes: int, workers: str, note: str
) -> None:
    make = shutil.which("make") or "make"
    command = [make, "--directory", str(ROOT), "--old-file", "setup", "run"]
    # As the set-up does: its kernels are old where the code has changed since.
    for module in ("training.compiled", "features"):
        subprocess.run([sys.executable, "-m", module], cwd=ROOT, check=True)

    overrides = f"SET=run_dir={tmp_path} train.workers={workers}"
    with cgroup_with(cores=0.5, memory_bytes=mebibytes * MIB) as enter:
        completed = subprocess.run(
            [*enter, *command, "CONFIG=demo", overrides],
            capture_output=True,
            text=True,
            check=False,
        )

    output = completed.stdout + completed.stderr
    assert completed.returncode == 0, output
    assert note in output
    assert (in_use(tmp_path, "report").folder / "report.html").exists()
