"""Benchmark: training against a bare torch loop, two workers, simulator, overhead, a GPU (`make bench`).

Rates are events per second of reading, computing and communicating; validation and checkpoints are
left out on both sides. Runs of what is compared alternate, and medians of the ratios are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from feature_datasets import CLASSES, write_dataset
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from features.columns import INPUT_COLUMNS, hlf_names
from features.dataset import FeatureDataset, RowGroup
from features.scaling import ColumnStatistics, scaler_json
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.simulate import simulate
from models.networks.hlf_settings import HlfSettings
from models.networks.network_settings import NetworkSettings
from models.networks.particles_settings import ParticlesSettings
from models.saved_model import build, model_spec
from training.compiled.optimizer import VectorOptimizer
from training.launching.launcher import launch
from training.launching.rank import RunSpec, train, without_denormals
from training.loop.records import read_records
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.readers.sharding import even_parts
from training.settings import TrainSettings
from training.transports.transport import Transport
from training.workloads.hep_settings import HepSettings
from training.workloads.work import ReaderWork

GROUPS = 16


def hlf_dataset(folder: Path, num_rows: int) -> FeatureDataset:
    """Separable events with the columns that the HLF network reads, and no others."""
    rng = np.random.default_rng(1)
    servers = np.random.default_rng(99).normal(0, 1, (len(CLASSES), len(hlf_names())))
    splits: dict[str, list[RowGroup]] = {}
    for split, rows in {"train": num_rows, "val": num_rows // 100, "test": num_rows // 100}.items():
        (folder / split).mkdir(parents=True)
        splits[split] = []
        for group in range(GROUPS):
            count = max(1, rows // GROUPS)
            labels = rng.integers(0, len(CLASSES), count)
            hlf = (
                100 + 10 * (servers[labels] + rng.normal(0, 1, (count, len(hlf_names()))))
            ).astype(np.float32)
            columns = {
                **dict(zip(hlf_names(), hlf.T.copy(), strict=True)),
                "label": pa.array(labels),
                "weight": pa.array(np.ones(count)),
            }
            name = f"{split}/part-{group:05d}.parquet"
            pq.write_table(pa.table(columns), folder / name, row_group_size=count)
            splits[split].append(RowGroup(name, count))
    dataset = FeatureDataset(
        folder, CLASSES, [1.0, 1.0, 1.0], splits, {split: [1, 1, 1] for split in splits}
    )
    dataset.save(
        columns={"hlf": scaler_json(ColumnStatistics.from_rows(hlf), INPUT_COLUMNS["hlf"])}
    )
    return dataset


def bare_loop(dataset: FeatureDataset, model: NetworkSettings, settings: TrainSettings) -> float:
    """Events per second of the quickest plain torch loop that a user would write: tensors in memory, fused Adam."""
    torch.manual_seed(settings.seed)
    network = build(model_spec(model, dataset))
    device = "cpu" if settings.device == "cpu" or not torch.cuda.is_available() else "cuda"
    rows = MemoryRows.load(dataset, "train", network.inputs, seed=settings.seed, device=device)
    return torch_rate(network.to(device), rows, settings)


def torch_rate(network: nn.Module, rows: MemoryRows, settings: TrainSettings) -> float:
    """Events per second of all epochs but the first."""
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
    num_rows, started, count, device = len(rows), 0.0, 0, rows.rows.labels.device
    with without_denormals():
        for epoch in range(settings.epochs):
            if epoch == 1:
                started = time.perf_counter()
            order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(epoch)).to(
                device
            )
            for chunk in order.split(settings.batch_size):
                inputs = plain_batch(rows, chunk)
                optimizer.zero_grad()
                functional.cross_entropy(network(*inputs), rows.rows.labels[chunk]).backward()
                optimizer.step()
                count += len(chunk) if epoch else 0
    if device.type == "cuda":
        torch.cuda.synchronize()
    return count / (time.perf_counter() - started)


def plain_batch(rows: MemoryRows, chunk: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Columns of some events; particles are cut to the longest."""
    if rows.rows.lengths is None:
        return (rows.rows.inputs[0][chunk],)
    particles, numbers = rows.rows.inputs
    return particles[chunk, : max(1, int(numbers[chunk].max()))], numbers[chunk]


def distributed_rate(folder: str, settings: str) -> None:
    """The same loop as one of two ranks of DistributedDataParallel over gloo; rank 0 prints the rate of both."""
    torch.distributed.init_process_group("gloo")
    rank, selected = torch.distributed.get_rank(), TrainSettings.model_validate_json(settings)
    dataset = FeatureDataset.load(Path(folder))
    torch.manual_seed(selected.seed)
    network = build(model_spec(HlfSettings(), dataset))
    rows = MemoryRows.load(dataset, "train", network.inputs, seed=selected.seed)
    half = len(rows) // 2
    chosen_rows = slice(rank * half, (rank + 1) * half)
    own_value = Rows(
        tuple(column[chosen_rows] for column in rows.rows.inputs),
        rows.rows.labels[chosen_rows],
        rows.rows.weights[chosen_rows],
    )
    rate = 2 * torch_rate(
        DistributedDataParallel(network), MemoryRows(own_value, selected.seed, [half]), selected
    )
    if rank == 0:
        sys.stdout.write(json.dumps(rate) + "\n")
    torch.distributed.destroy_process_group()


def distributed_loop(dataset: FeatureDataset, settings: TrainSettings) -> float:
    """Events per second of two ranks of torch's DistributedDataParallel, without a launcher."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        position = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": "2",
        }
    command = [sys.executable, __file__, "--ddp", str(dataset.folder), settings.model_dump_json()]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **position, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    output = [rank.communicate(timeout=600)[0] for rank in ranks]
    return float(output[0].splitlines()[-1])


def our_loop(dataset: FeatureDataset, model: NetworkSettings, settings: TrainSettings) -> float:
    """Events per second of a run of ours, from its records; without the first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        launch(
            RunSpec(HepSettings(folder=dataset.folder, network=model), settings, Path(folder)),
            on_progress=lambda _: None,
        )
        ranks = read_records(Path(folder))
    return working_rate(ranks)


def working_rate(ranks: list[list[dict[str, Any]]]) -> float:
    """Events of all workers over the time that the slowest spent at work, after the first epoch."""
    samples = sum(record["samples"] for rank in ranks for record in rank[1:])
    rate: float = samples / max(sum(map(working_seconds, rank[1:])) for rank in ranks)
    return rate


def working_seconds(record: dict[str, Any]) -> float:
    """The time of an epoch without validation and checkpoints [s]."""
    kinds = ("read", "compute", "communicate", "wait")
    return float(sum(record["seconds_by_kind"].get(kind_name, 0.0) for kind_name in kinds))


def ratios(
    first_function: Callable[[], float], second_function: Callable[[], float], repeats: int
) -> dict[str, Any]:
    """Alternating runs of both; the median ratio of the first to the second, and both rates."""
    pairs = [(first_function(), second_function()) for _ in range(repeats)]
    return {
        "ratio": round(statistics.median(first / second for first, second in pairs), 3),
        "of_each_pair": [round(first / second, 3) for first, second in pairs],
        "rate": round(statistics.median(first for first, _ in pairs)),
        "bare_rate": round(statistics.median(second for _, second in pairs)),
    }


def one_and_two_workers(rows: int, repeats: int) -> dict[str, Any]:
    """Items 3 and 4: one worker against the bare loop, and two workers against it."""
    actual: dict[str, Any] = {}
    memory = {"reader": "arrow", "batch_size": 128, "epochs": 4}
    with tempfile.TemporaryDirectory() as folder:
        dataset = hlf_dataset(Path(folder) / "hlf", rows)
        hlf = HlfSettings()
        alone = TrainSettings(algorithm="sgd", **memory)

        def bare() -> float:
            return bare_loop(dataset, hlf, alone)

        actual["hlf, one worker"] = ratios(lambda: our_loop(dataset, hlf, alone), bare, repeats)
        through_petastorm = alone.model_copy(update={"reader": "petastorm", "epochs": 2})
        actual["hlf, one worker, petastorm"] = ratios(
            lambda: our_loop(dataset, hlf, through_petastorm), bare, 1
        )
        methods: dict[str, dict[str, Any]] = {
            # What two of these cores can do at most.
            "no averages": {"algorithm": {"name": "local-sgd", "local_steps": 10**9}},
            "ad-psgd": {"algorithm": "ad-psgd"},
            "swarm-sgd H=3": {"algorithm": {"name": "swarm-sgd", "local_steps": 3}},
            "ar-sgd": {"algorithm": "ar-sgd"},
        }
        for name, selected in methods.items():
            two = TrainSettings.model_validate({"workers": 2, **memory, **selected})
            actual[f"hlf, two workers, {name}"] = ratios(
                lambda two=two: our_loop(dataset, hlf, two),  # type: ignore[misc]
                bare,
                repeats,
            )
        ar_sgd = TrainSettings.model_validate({"workers": 2, **memory, "algorithm": "ar-sgd"})
        actual["hlf, two workers, ar-sgd against DistributedDataParallel"] = ratios(
            lambda: our_loop(dataset, hlf, ar_sgd),
            lambda: distributed_loop(dataset, ar_sgd),
            repeats,
        )
    return actual


def recurrent(repeats: int) -> dict[str, Any]:
    """Item 3 for the GRU, on events with about as many particles as real ones."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {"train": [64] * 8, "val": [16], "test": [16]}
        dataset = write_dataset(Path(folder) / "particles", rows=rows, max_particles=801)
        model = ParticlesSettings()
        settings = TrainSettings(
            algorithm="sgd", reader="arrow", batch_size=128, epochs=2 if repeats < 3 else 3
        )
        ours = ratios(
            lambda: our_loop(dataset, model, settings),
            lambda: bare_loop(dataset, model, settings),
            repeats,
        )
    return {"particles, one worker": ours}


def gpu(rows: int, repeats: int) -> dict[str, Any]:
    """A rank on the GPU against the bare loop on the GPU, and against a rank on one core; empty without a GPU."""
    actual: dict[str, Any] = {}
    if not torch.cuda.is_available():
        return actual
    with tempfile.TemporaryDirectory() as folder:
        few = {"train": [128] * 16, "val": [16], "test": [16]}
        cases = [
            (hlf_dataset(Path(folder) / "hlf", rows), HlfSettings(), (128, 8192)),
            (
                write_dataset(Path(folder) / "particles", rows=few, max_particles=801),
                ParticlesSettings(),
                (128, 1024),
            ),
        ]
        for dataset, model, sizes in cases:
            for size in sizes:
                on_gpu, on_cpu = (
                    TrainSettings(
                        algorithm="sgd", reader="arrow", batch_size=size, epochs=3, device=device
                    )
                    for device in ("cuda", "cpu")
                )
                ours = partial(our_loop, dataset, model, on_gpu)
                name = f"{model.name}, batch {size}"
                bare, alone = (
                    partial(bare_loop, dataset, model, on_gpu),
                    partial(our_loop, dataset, model, on_cpu),
                )
                actual[f"{name}, GPU against the bare loop there"] = ratios(ours, bare, repeats)
                actual[f"{name}, GPU against one core"] = ratios(ours, alone, min(repeats, 2))
    return actual


def in_memory(num_rows: int, *, workers: int) -> tuple[MemoryRows, MemoryRows, nn.Module]:
    """Separable events in memory, and the HLF network for them."""
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        dataset = hlf_dataset(Path(folder) / "hlf", num_rows)
        network = build(model_spec(HlfSettings(), dataset))
        train, val = (
            MemoryRows.load(dataset, split, network.inputs, seed=1) for split in ("train", "val")
        )
    return replace(train, group_rows=even_parts(len(train), max(workers, GROUPS))), val, network


def simulator(workers: int) -> dict[str, Any]:
    """Item 7: steps of virtual workers per second of one core, over three epochs, with everything that a run does."""
    actual = {}
    batch, steps, epochs = 32, 60, 3
    train, val, network = in_memory(workers * batch * steps, workers=workers)
    for algorithm in ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd", "agn"):
        settings = TrainSettings.model_validate(
            {"algorithm": algorithm, "workers": workers, "epochs": epochs, "batch_size": batch}
        )
        few = settings.model_copy(update={"workers": 8, "epochs": 1})
        simulate(network, train, val, few, ClusterSettings(jitter=0.1))
        started, busy = time.perf_counter(), time.process_time()
        simulated = simulate(network, train, val, settings, ClusterSettings(jitter=0.1))
        wall, cpu = time.perf_counter() - started, time.process_time() - busy
        # Work units have a few steps more, with smaller batches.
        taken = sum(record["steps"] for records in simulated.records for record in records)
        actual[algorithm] = {
            "per second": round(taken / wall),
            "per CPU second": round(taken / cpu),
        }
    return actual


class CpuClock(Transport):
    """A transport whose clock is the CPU time of this process, so that other work on the machine does not count."""

    def now(self) -> float:
        return time.process_time()


def overhead(rows: int, repeats: int) -> dict[str, Any]:
    """CPU time of a step of one worker whose batches, gradients and updates cost nothing: the loop and its meters."""

    async def no_gradient(_: ReaderWork) -> None:
        pass

    def no_update(_: VectorOptimizer) -> None:
        pass

    nothing: dict[str, Any] = {"next_batch": lambda _: 128, "compute_gradient": no_gradient}
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.multiple(ReaderWork, **nothing),
        mock.patch.object(VectorOptimizer, "step", no_update),
    ):
        dataset = hlf_dataset(Path(folder) / "hlf", rows)
        settings = TrainSettings(
            algorithm="sgd", reader="arrow", batch_size=128, epochs=1 + repeats
        )
        spec = RunSpec(
            HepSettings(folder=dataset.folder, network=HlfSettings()),
            settings,
            Path(folder) / "run",
        )
        spec.out_dir.mkdir()
        train(spec, CpuClock(), on_progress=lambda _: None)
        (records,) = read_records(spec.out_dir)
    costs = [round(1e6 * working_seconds(record) / record["steps"], 2) for record in records[1:]]
    return {"CPU time of a step [us]": statistics.median(costs), "of each epoch": costs}


def show(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="training rows of the HLF runs")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs")
    parser.add_argument(
        "--workers", type=int, default=1_000, help="virtual workers of the simulator"
    )
    parser.add_argument(
        "--only", choices=["hlf", "particles", "simulator", "overhead", "gpu"], help="one part only"
    )
    parser.add_argument("--ddp", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.ddp:
        distributed_rate(*arguments.ddp)
        return
    chunks: dict[str, Callable[[], dict[str, Any]]] = {
        "hlf": lambda: one_and_two_workers(arguments.rows, arguments.repeats),
        "particles": lambda: recurrent(arguments.repeats),
        "simulator": lambda: simulator(arguments.workers),
        "overhead": lambda: overhead(arguments.rows, arguments.repeats),
        "gpu": lambda: gpu(arguments.rows, arguments.repeats),
    }
    show(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    )
    for name, chunk in chunks.items():
        if arguments.only in (None, name):
            show(f"{name}:")
            for key, value in chunk().items():
                show(f"  {key}: {json.dumps(value)}")


if __name__ == "__main__":
    main()
