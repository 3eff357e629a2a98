"""The training loop that a user of torch would write, on one process and on two.

As a script it is one of two ranks of DistributedDataParallel.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from features.dataset import FeatureDataset
from models.networks.hlf_settings import HlfSettings
from models.networks.network_settings import NetworkSettings
from models.saved_model import build, model_spec
from training.launching.rank import without_denormals
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.settings import TrainSettings


def bare_loop(dataset: FeatureDataset, model: NetworkSettings, settings: TrainSettings) -> float:
    """Events per second of the quickest plain loop: tensors in memory, fused Adam."""
    torch.manual_seed(settings.seed)
    network = build(model_spec(model, dataset))
    device = "cpu" if settings.device == "cpu" or not torch.cuda.is_available() else "cuda"
    rows = MemoryRows.load(dataset, "train", network.inputs, seed=settings.seed, device=device)
    return torch_rate(network.to(device), rows, settings)


def torch_rate(network: nn.Module, rows: MemoryRows, settings: TrainSettings) -> float:
    """Events per second of all epochs but the first."""
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
    num_rows, device = len(rows), rows.rows.labels.device
    num_trained, started = 0, 0.0
    with without_denormals():
        for epoch in range(settings.epochs):
            if epoch == 1:
                started = time.perf_counter()
            generator = torch.Generator().manual_seed(epoch)
            order = torch.randperm(num_rows, generator=generator).to(device)
            for chunk in order.split(settings.batch_size):
                inputs = plain_batch(rows, chunk)
                optimizer.zero_grad()
                functional.cross_entropy(network(*inputs), rows.rows.labels[chunk]).backward()
                optimizer.step()
                if epoch > 0:
                    num_trained += len(chunk)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return num_trained / (time.perf_counter() - started)


def plain_batch(rows: MemoryRows, chunk: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Columns of some events; particles are cut to the longest."""
    if rows.rows.lengths is None:
        return (rows.rows.inputs[0][chunk],)
    particles, numbers = rows.rows.inputs
    return particles[chunk, : max(1, int(numbers[chunk].max()))], numbers[chunk]


def distributed_rate(folder: str, settings: str) -> None:
    """Train as one of two ranks of DistributedDataParallel; rank 0 prints the rate of both."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    train_settings = TrainSettings.model_validate_json(settings)
    dataset = FeatureDataset.load(Path(folder))
    torch.manual_seed(train_settings.seed)
    network = build(model_spec(HlfSettings(), dataset))
    all_rows = MemoryRows.load(dataset, "train", network.inputs, seed=train_settings.seed)
    num_rows = len(all_rows) // 2
    half = slice(rank * num_rows, (rank + 1) * num_rows)
    rows_of_rank = Rows(
        tuple(column[half] for column in all_rows.rows.inputs),
        all_rows.rows.labels[half],
        all_rows.rows.weights[half],
    )
    memory_rows = MemoryRows(rows_of_rank, train_settings.seed, [num_rows])
    rate = torch_rate(DistributedDataParallel(network), memory_rows, train_settings)
    if rank == 0:
        sys.stdout.write(json.dumps(2 * rate) + "\n")
    torch.distributed.destroy_process_group()


def distributed_loop(dataset: FeatureDataset, settings: TrainSettings) -> float:
    """Events per second of two ranks of torch's DistributedDataParallel, without a launcher."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        variables = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": "2",
        }
    command = [sys.executable, __file__, str(dataset.folder), settings.model_dump_json()]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **variables, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    output = [rank.communicate(timeout=600)[0] for rank in ranks]
    return float(output[0].splitlines()[-1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed_rate(*sys.argv[1:])
