"""What a rank loads: runs start again and again, and each rank pays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from feature_datasets import write_dataset
from training_runs import make_spec

from training.launching.rank import choose_device

RANK = """
import sys
from pathlib import Path

import training.launching.rank_process
from training.launching.rank import train
from training.launching.run_spec import RunSpec
from training.transports.transport import Transport

train(RunSpec.load(Path(sys.argv[1])), Transport(), on_progress=None)

import torch
assert torch.are_deterministic_algorithms_enabled()
assert not torch.utils.deterministic.fill_uninitialized_memory
unneeded = {"torch._dynamo", "torch._inductor", "sympy", "pandas", "petastorm"}
loaded = unneeded & sys.modules.keys()
assert not loaded, loaded
"""


@pytest.mark.slow
def test_a_rank_is_deterministic_and_loads_neither_torchs_compiler_nor_pandas(
    tmp_path: Path,
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20, 20], "val": [10], "test": [10]})
    run = make_spec(dataset, tmp_path / "out", algorithm="sgd", workers=1, epochs=1)
    spec = tmp_path / "run.json"
    run.save(spec)

    subprocess.run([sys.executable, "-c", RANK, str(spec)], check=True, timeout=300)


@pytest.mark.parametrize(
    ("name", "model", "device"),
    [
        ("auto", {}, "cpu"),
        ("auto", {"name": "particles"}, "cuda"),
        ("cuda", {}, "cuda"),
        ("cpu", {"name": "particles"}, "cpu"),
    ],
)
def test_perceptrons_stay_on_the_cpu_unless_a_gpu_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, model: dict[str, Any], device: str
) -> None:
    """On an H100 the perceptron of the demo trained at 0.03 of the rate of one core."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [10], "test": [10]})
    workload = make_spec(dataset, tmp_path / "out", model=model).workload.open()

    assert choose_device(name, workload).type == device
