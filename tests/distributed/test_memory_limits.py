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
PROGRAM = """
import sys
from pathlib import Path
from training.errors import LaunchError
from training.launching.launcher import launch
from training.launching.rank import RunSpec
try:
    launch(RunSpec.load(Path(sys.argv[1])), on_progress=lambda _: None, on_loss=lambda words: print("again:", words))
except LaunchError as error:
    print(error)
"""


@pytest.mark.minutes
@pytest.mark.timeout(300)
def test_ranks_that_the_kernel_kills_for_memory_name_limit_and_need(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [40, 40], "val": [10], "test": [10]})
    make_spec(dataset, tmp_path / "out").save(tmp_path / "spec.json")
    with cgroup_with(memory_bytes=600 * MIB) as enter:
        command = [*enter, sys.executable, "-c", PROGRAM, str(tmp_path / "spec.json")]
        completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert completed.stdout.startswith("the kernel has killed "), completed.stdout
    assert " allows 600 MiB; the ranks held up to [MiB]: rank 0 " in completed.stdout
    assert "No step was made" in completed.stdout
