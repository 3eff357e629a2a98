"""The start of ranks: what a rank loads, since each pays, and what is advised if it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from feature_datasets import write_dataset
from training_runs import make_spec

from training.errors import IdleSettingError, LaunchError
from training.launching import mpirun
from training.launching.launcher import Job, launch
from training.launching.mpirun import rank_command
from training.launching.rank import choose_device
from training.settings import TrainSettings

#: Settings, with whether `--workers 1` and `train.launcher_args` are accepted beside them.
ADVICE = {
    "ar-sgd": ({"algorithm": "ar-sgd"}, True, True),
    "sgp": ({"algorithm": "sgp"}, False, True),
    "bound": ({"algorithm": "ad-psgd", "staleness_bound": 2}, False, True),
    "srun": ({"algorithm": "ar-sgd", "launcher": "srun"}, False, True),
    "arguments": ({"algorithm": "ar-sgd", "launcher_args": ["--bound"]}, False, True),
    "spark-agents": ({"algorithm": "mpca", "launcher": "spark-agents"}, False, False),
}
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

    chosen_device = choose_device(name, workload)

    assert chosen_device.type == device


def fail_to_start(job: Job) -> tuple[int, str]:
    """A start of all ranks that fails."""
    job.files.log.write_text("no option --bound")
    return 1, ""


@pytest.mark.parametrize(("settings", "one_worker", "arguments"), ADVICE.values(), ids=ADVICE)
def test_the_error_of_a_failed_start_advises_only_what_the_settings_allow(
    tmp_path: Path, settings: dict[str, Any], *, one_worker: bool, arguments: bool
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [40], "val": [10], "test": [10]})
    run = make_spec(dataset, tmp_path / "out", **settings)

    with pytest.raises(LaunchError) as error:
        launch(run, on_progress=lambda _: None, run=fail_to_start)

    message = str(error.value)
    assert "python -m pipeline doctor" in message
    assert ("--workers 1" in message) is one_worker
    assert ("train.launcher_args" in message) is arguments


@pytest.mark.parametrize(("algorithm", "one_worker"), [("ar-sgd", True), ("sgp", False)])
def test_without_mpirun_one_worker_is_advised_only_where_it_can_train(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, *, one_worker: bool
) -> None:
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: None)
    settings = TrainSettings(workers=2, algorithm=algorithm)

    with pytest.raises(LaunchError) as error:
        rank_command(settings, ["true"])

    assert ("--workers 1" in str(error.value)) is one_worker
    if not one_worker:
        with pytest.raises(IdleSettingError):
            TrainSettings(workers=1, algorithm=algorithm).check_one_worker()
