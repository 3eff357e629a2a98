"""What a rank loads: runs start again and again, and each rank pays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from feature_datasets import write_dataset
from training_runs import make_spec

RANK = """
import sys
from pathlib import Path
import training.launching.rank_process
from training.launching.rank import RunSpec, train
from training.transports.transport import Transport
train(RunSpec.load(Path(sys.argv[1])), Transport(), on_progress=None)
import torch
assert torch.are_deterministic_algorithms_enabled() and not torch.utils.deterministic.fill_uninitialized_memory
found = {"torch._dynamo", "torch._inductor", "sympy", "pandas", "petastorm"} & sys.modules.keys()
sys.exit(f"loaded without need: {found}" if found else 0)
"""


@pytest.mark.slow
def test_a_rank_is_deterministic_and_loads_neither_torchs_compiler_nor_pandas(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20, 20], "val": [10], "test": [10]})
    run = make_spec(dataset, tmp_path / "out", algorithm="sgd", workers=1, epochs=1)
    run.save(tmp_path / "run.json")
    subprocess.run([sys.executable, "-c", RANK, str(tmp_path / "run.json")], check=True, timeout=300)
