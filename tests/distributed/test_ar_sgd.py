"""AR-SGD on real MPI ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from ranks import processes_of, wait_until
from training_runs import flat_weights, make_spec, records

from features.dataset import FeatureDataset
from training.errors import LaunchError
from training.launching.launcher import launch, launch_all
from training.launching.rank import RunSpec
from training.loop.making import make_model
from training.readers.reader import open_reader
from training.readers.sharding import assignment_of, plan_epoch
from training.transports.transport import Transport

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

#: Uneven on purpose: neither row groups nor rows divide among 3 ranks.
ROWS = {"train": [20] * 6 + [7], "val": [15, 15], "test": [10]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS, class_weights=[2.0, 1.0, 0.5])


OPTIMIZERS = [{"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"}]


@pytest.fixture(scope="module")
def done(dataset: FeatureDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSpec]:
    """A run with each optimizer and one of all defaults, in ranks that are started once."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {
        each["optimizer"]: make_spec(
            dataset,
            folder / each["optimizer"],
            workers=3,
            learning_rate=0.01,
            precision="float64",
            reader="petastorm",
            **each,
        )
        for each in OPTIMIZERS
    }
    runs["default"] = make_spec(dataset, folder / "default", workers=3, reader="petastorm")
    launch_all(list(runs.values()), folder / "job", on_progress=lambda *_: None)
    return runs


def interleaved(dataset: FeatureDataset, run: RunSpec, epochs: int) -> np.ndarray[Any, Any]:
    """A plain loop over one network that is fed, at every step, the batches of all ranks put together."""
    settings = run.train
    network = make_model(run.workload.open(), settings, Transport(), torch.device("cpu")).module
    optimizer: torch.optim.Optimizer = torch.optim.Adam(network.parameters(), lr=settings.effective_learning_rate)
    if settings.optimizer == "sgd":
        rate, momentum = settings.effective_learning_rate, settings.momentum
        optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=momentum)
    reader = open_reader(dataset, ("hlf",), kind="petastorm", dtype=torch.float64, seed=settings.seed)
    for epoch in range(epochs):
        plan = plan_epoch(
            ROWS["train"],
            world_size=settings.workers,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epoch=epoch,
        )
        shards = [reader.train_batches(assignment_of(plan, rank=rank, epoch=epoch)) for rank in range(settings.workers)]
        for batches in zip(*shards, strict=True):
            labels, weights = (torch.cat(parts) for parts in zip(*[batch[1:] for batch in batches], strict=True))
            logits = network(torch.cat([batch.inputs[0] for batch in batches]))
            losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            # In place: setting the gradients to None would cut them off the network's flat vector.
            optimizer.zero_grad(set_to_none=False)
            ((losses * weights).sum() / len(labels)).backward()
            optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()]).numpy()


@pytest.mark.parametrize("optimizer", [each["optimizer"] for each in OPTIMIZERS])
def test_n_ranks_give_the_model_of_one_worker_fed_their_batches(
    dataset: FeatureDataset, done: dict[str, RunSpec], optimizer: str
) -> None:
    run = done[optimizer]
    found = flat_weights(run.out_dir)
    epochs = json.loads((run.out_dir / "summary.json").read_text())["best_epoch"] + 1
    expected = interleaved(dataset, run, epochs)
    assert epochs > 1
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-6, atol=1e-7)


def test_ranks_agree_count_all_samples_and_write_metrics_each(done: dict[str, RunSpec]) -> None:
    run = done["default"]
    for epoch in zip(*records(run.out_dir), strict=True):
        assert len({record["val_loss"] for record in epoch}) == 1
        assert len({record["steps"] for record in epoch}) == 1
        samples = sum(record["samples"] for record in epoch)
        assert samples == epoch[0]["samples_all_ranks"]
        assert samples == epoch[0]["train_rows"] == sum(ROWS["train"])
        assert all(record["bytes_sent"] > 0 for record in epoch)


def test_a_failure_on_one_rank_ends_the_job_soon_with_its_words(tmp_path: Path) -> None:
    broken = write_dataset(tmp_path / "data", rows={"train": [400, 400], "val": [10, 10], "test": [10]})
    victim = plan_epoch([400, 400], world_size=2, batch_size=8, seed=1, epoch=0).pieces[1][0].group
    path = broken.files("train")[victim]
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(content)
    started = time.monotonic()
    with pytest.raises(LaunchError, match=r"training failed on rank 1: the train split.*cannot be read"):
        launch(make_spec(broken, tmp_path / "out", reader="petastorm"), on_progress=lambda _: None)
    # A rank that waits for the failed one would be ended after `stall_seconds`: 300.
    assert time.monotonic() - started < 150


LAUNCHER = """
import signal, sys
from pathlib import Path
from training.launching.launcher import launch, launch_all
from training.launching.rank import RunSpec
# A shell that starts tests in the background has them ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
launch(RunSpec.load(Path(sys.argv[1])), on_progress=lambda progress: None)
"""


@pytest.mark.minutes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_rank_outlives_its_launcher(dataset: FeatureDataset, tmp_path: Path, number: signal.Signals) -> None:
    run = make_spec(dataset, tmp_path / "out", epochs=100_000)
    run.save(tmp_path / "spec.json")
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path / "spec.json")], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        metrics = run.out_dir / "metrics" / "rank-1.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, what="training has begun")
        os.kill(launcher.pid, number)
        try:
            launcher.wait(30)
        except subprocess.TimeoutExpired:
            # Python drops an interrupt that falls into a destructor; the command line has a hook for that, this bare
            # launcher has none.
            os.kill(launcher.pid, number)
            launcher.wait(60)
        wait_until(lambda: not processes_of(run.out_dir), what="all ranks are gone")
    finally:
        # First of all: it would start killed ranks again.
        launcher.kill()
        for process in processes_of(run.out_dir):
            process.kill()
