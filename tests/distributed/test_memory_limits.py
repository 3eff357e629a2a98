"""Ranks in a real cgroup that has too little memory for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from feature_datasets import write_dataset
from small_cgroup import cgroup_with
from training_runs import make_spec

MIB = 2**20
LAUNCHER = """
import sys
from pathlib import Path
from training.errors import LaunchError
from training.launching.launcher import launch
from training.launching.run_spec import RunSpec

def print_loss(message):
    print("again:", message)

try:
    launch(RunSpec.load(Path(sys.argv[1])), on_progress=lambda _: None, on_loss=print_loss)
except LaunchError as error:
    print(error)
"""


@pytest.mark.minutes
@pytest.mark.timeout(300)
def test_the_error_of_ranks_that_the_kernel_kills_for_memory_names_limit_and_need(
    tmp_path: Path,
) -> None:
    rows = {"train": [40, 40], "val": [10], "test": [10]}
    dataset = write_dataset(tmp_path / "data", rows=rows)
    make_spec(dataset, tmp_path / "out").save(tmp_path / "spec.json")
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path / "spec.json")]

    with cgroup_with(memory_bytes=400 * MIB) as enter:
        completed = subprocess.run([*enter, *command], capture_output=True, text=True, check=True)

    assert completed.stdout.startswith("the kernel has killed "), completed.stdout
    assert " allows 400 MiB; the ranks held up to [MiB]: rank 0 " in completed.stdout
    assert "No step was made" in completed.stdout
