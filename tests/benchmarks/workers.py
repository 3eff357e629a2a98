"""Benchmark: training against a bare torch loop, two workers, stragglers, the simulator (`make bench`).

Rates are events per second of reading, computing and communicating; validation and checkpoints are left out on both
sides. Runs of what is compared alternate, and medians of the ratios are shown.
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
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from feature_datasets import CLASSES, write_dataset
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from features.columns import NUM_HLF
from features.dataset import FeatureDataset, RowGroup
from features.scaling import ColumnStatistics
from models.networks.hlf_settings import HlfSettings
from models.networks.network_settings import NetworkSettings
from models.networks.particles_settings import ParticlesSettings
from models.saved_model import build, model_spec
from training.algorithms.base import Algorithm
from training.algorithms.registry import make_algorithm
from training.flat_model import FlatModel
from training.launching.launcher import launch, rank_command, rank_environment
from training.launching.rank import RunSpec, without_denormals
from training.loop.summary import read_records
from training.readers.batch import Rows
from training.readers.memory_rows import MemoryRows
from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings
from training.simulation.simulate import simulate
from training.simulation.transport import SimNetwork
from training.simulation.virtual_time import VirtualClock
from training.transports.mpi import MpiTransport
from training.transports.transport import Transport, run_now

GROUPS = 16
#: Seconds of a step of the workers that only sleep: three fast ones, and a slow one.
FAST, SLOW = 0.005, 0.05


def hlf_dataset(folder: Path, num_rows: int) -> FeatureDataset:
    """Separable events with the columns that the HLF network reads, and no others."""
    rng = np.random.default_rng(1)
    centres = np.random.default_rng(99).normal(0, 1, (len(CLASSES), NUM_HLF))
    splits: dict[str, list[RowGroup]] = {}
    for split, rows in {"train": num_rows, "val": num_rows // 100, "test": num_rows // 100}.items():
        (folder / split).mkdir(parents=True)
        splits[split] = []
        for group in range(GROUPS):
            count = rows // GROUPS
            labels = rng.integers(0, len(CLASSES), count)
            hlf = (100 + 10 * (centres[labels] + rng.normal(0, 1, (count, NUM_HLF)))).astype(np.float32)
            offsets = pa.array(np.arange(count + 1, dtype=np.int32) * NUM_HLF)
            columns = {
                "hlf": pa.ListArray.from_arrays(offsets, pa.array(hlf.ravel())),
                "label": pa.array(labels),
                "weight": pa.array(np.ones(count)),
            }
            name = f"{split}/part-{group:05d}.parquet"
            pq.write_table(pa.table(columns), folder / name, row_group_size=count)
            splits[split].append(RowGroup(name, count))
    dataset = FeatureDataset(folder, CLASSES, [1.0, 1.0, 1.0], splits, {split: [1, 1, 1] for split in splits})
    dataset.save(columns={"hlf": ColumnStatistics.of(hlf).to_json()})
    return dataset


def bare_loop(dataset: FeatureDataset, model: NetworkSettings, settings: TrainSettings) -> float:
    """Events per second of the quickest plain torch loop that a user would write: tensors in memory, fused Adam."""
    torch.manual_seed(settings.seed)
    network = build(model_spec(model, dataset))
    rows = MemoryRows.load(dataset, "train", network.inputs, seed=settings.seed)
    return torch_rate(network, rows, settings)


def torch_rate(network: nn.Module, rows: MemoryRows, settings: TrainSettings) -> float:
    """Events per second of all epochs but the first."""
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
    num_rows, started, count = len(rows), 0.0, 0
    with without_denormals():
        for epoch in range(settings.epochs):
            if epoch == 1:
                started = time.perf_counter()
            order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(epoch))
            for part in order.split(settings.batch_size):
                inputs = plain_batch(rows, part)
                optimizer.zero_grad()
                functional.cross_entropy(network(*inputs), rows.labels[part]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                count += len(part) if epoch else 0
    return count / (time.perf_counter() - started)


def plain_batch(rows: MemoryRows, part: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Columns of some events; particles are cut to the longest."""
    if rows.rows.lengths is None:
        return (rows.inputs[0][part],)
    particles, numbers = rows.inputs
    return particles[part, : max(1, int(numbers[part].max()))], numbers[part]


def distributed_rate(folder: str, settings: str) -> None:
    """The same loop as one of two ranks of DistributedDataParallel over gloo; rank 0 prints the rate of both."""
    torch.distributed.init_process_group("gloo")
    rank, chosen = torch.distributed.get_rank(), TrainSettings.model_validate_json(settings)
    dataset = FeatureDataset.load(Path(folder))
    torch.manual_seed(chosen.seed)
    network = build(model_spec(HlfSettings(), dataset))
    rows = MemoryRows.load(dataset, "train", network.inputs, seed=chosen.seed)
    half = len(rows) // 2
    own = Rows(
        *((column[rank * half :][:half],) for column in rows.inputs),
        *(column[rank * half :][:half] for column in (rows.labels, rows.weights)),
    )
    rate = 2 * torch_rate(DistributedDataParallel(network), MemoryRows(own, chosen.seed, [half]), chosen)
    if rank == 0:
        sys.stdout.write(json.dumps(rate) + "\n")
    torch.distributed.destroy_process_group()


def distributed_loop(dataset: FeatureDataset, settings: TrainSettings) -> float:
    """Events per second of two ranks of torch's DistributedDataParallel, without a launcher."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    command = [sys.executable, __file__, "--ddp", str(dataset.folder), settings.model_dump_json()]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=600)[0] for rank in ranks]
    return float(said[0].splitlines()[-1])


def our_loop(dataset: FeatureDataset, model: NetworkSettings, settings: TrainSettings) -> float:
    """Events per second of a run of ours, from its records; without the first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        launch(RunSpec(dataset.folder, model, settings, Path(folder)), on_progress=lambda _: None)
        ranks = read_records(Path(folder))
    return working_rate(ranks)


def working_rate(ranks: list[list[dict[str, Any]]]) -> float:
    """Events of all workers over the time that the slowest spent at work, after the first epoch."""
    samples = sum(record["samples"] for rank in ranks for record in rank[1:])
    kinds = ("read", "compute", "communicate")
    seconds = max(
        sum(record["seconds_by_kind"].get(kind, 0.0) for record in rank[1:] for kind in kinds) for rank in ranks
    )
    rate: float = samples / seconds
    return rate


def ratios(one: Callable[[], float], other: Callable[[], float], repeats: int) -> dict[str, Any]:
    """Alternating runs of both; the median ratio of the first to the second, and both rates."""
    pairs = [(one(), other()) for _ in range(repeats)]
    return {
        "ratio": round(statistics.median(first / second for first, second in pairs), 3),
        "of_each_pair": [round(first / second, 3) for first, second in pairs],
        "rate": round(statistics.median(first for first, _ in pairs)),
        "bare_rate": round(statistics.median(second for _, second in pairs)),
    }


def one_and_two_workers(rows: int, repeats: int) -> dict[str, Any]:
    """Items 3 and 4: one worker against the bare loop, and two workers against it."""
    found: dict[str, Any] = {}
    memory = {"reader": "arrow", "cache": "memory", "batch_size": 128, "epochs": 4}
    with tempfile.TemporaryDirectory() as folder:
        dataset = hlf_dataset(Path(folder) / "hlf", rows)
        hlf = HlfSettings()
        alone = TrainSettings(algorithm="sgd", **memory)

        def bare() -> float:
            return bare_loop(dataset, hlf, alone)

        found["hlf, one worker"] = ratios(lambda: our_loop(dataset, hlf, alone), bare, repeats)
        through_petastorm = alone.model_copy(update={"reader": "petastorm", "cache": "none", "epochs": 2})
        found["hlf, one worker, petastorm"] = ratios(lambda: our_loop(dataset, hlf, through_petastorm), bare, 1)
        methods: dict[str, dict[str, Any]] = {
            "ad-psgd inline": {"algorithm": "ad-psgd"},
            "ad-psgd thread": {"algorithm": "ad-psgd", "overlap": "thread"},
            "swarm-sgd H=3": {"algorithm": "swarm-sgd", "local_steps": 3},
            "ar-sgd": {"algorithm": "ar-sgd"},
        }
        for name, chosen in methods.items():
            two = TrainSettings.model_validate({"workers": 2, **memory, **chosen})
            found[f"hlf, two workers, {name}"] = ratios(lambda two=two: our_loop(dataset, hlf, two), bare, repeats)  # type: ignore[misc]
        ar_sgd = TrainSettings.model_validate({"workers": 2, **memory, "algorithm": "ar-sgd"})
        found["hlf, two workers, ar-sgd against DistributedDataParallel"] = ratios(
            lambda: our_loop(dataset, hlf, ar_sgd), lambda: distributed_loop(dataset, ar_sgd), repeats
        )
    return found


def recurrent(repeats: int) -> dict[str, Any]:
    """Item 3 for the GRU, on events with about as many particles as real ones."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {"train": [64] * 8, "val": [16], "test": [16]}
        dataset = write_dataset(Path(folder) / "particles", rows=rows, most_particles=801)
        model = ParticlesSettings()
        settings = TrainSettings(
            algorithm="sgd", reader="arrow", cache="memory", batch_size=128, epochs=2 if repeats < 3 else 3
        )
        ours = ratios(lambda: our_loop(dataset, model, settings), lambda: bare_loop(dataset, model, settings), repeats)
    return {"particles, one worker": ours}


class Sleeper:
    """A model whose gradient is 0 and takes time."""

    def __init__(self, size: int) -> None:
        self.flat_model = FlatModel(nn.Linear(size, 1, bias=False))


async def steps_until(
    algorithm: Algorithm, transport: Transport, sleep: Callable[[], Any], *, seconds: float, steps: int | None
) -> float:
    """Steps per second of one worker: as many as it makes in a time, or a number that all make together."""
    await algorithm.start()
    await transport.barrier()
    started = transport.now()
    done = 0
    while done < steps if steps else transport.now() - started < seconds:
        await algorithm.step(sleep, 1)
        done += 1
    rate = done / (transport.now() - started)
    await algorithm.quiesce()
    await algorithm.close()
    return rate


STRAGGLER_METHODS: dict[str, dict[str, Any]] = {
    "ar-sgd": {"algorithm": "ar-sgd", "scale_learning_rate": False},
    "ad-psgd": {"algorithm": "ad-psgd"},
    "ad-psgd + slowmo, no average": {"algorithm": "ad-psgd", "slowmo": {}},
    "swarm-sgd": {"algorithm": "swarm-sgd"},
    "swarm-sgd + slowmo, no average": {"algorithm": "swarm-sgd", "slowmo": {}},
}


def straggling(chosen: dict[str, Any], slow: dict[int, float]) -> float:
    """Steps per second of four simulated workers together."""
    settings = TrainSettings.model_validate({"workers": 4, **chosen})
    cluster = ClusterSettings.sleeping(FAST, slow_ranks=slow)
    clock = VirtualClock()
    network = SimNetwork(clock, cluster, 4)
    rates: list[float] = []
    steps = 200 if settings.algorithm == "ar-sgd" else None

    async def work(transport: Transport) -> None:
        async def sleep() -> None:
            await clock.sleep(FAST * slow.get(transport.rank, 1.0))

        algorithm = make_algorithm(Sleeper(2013).flat_model, settings, transport)
        rates.append(await steps_until(algorithm, transport, sleep, seconds=5.0, steps=steps))

    for transport in network.transports():
        clock.spawn(work(transport), f"worker {transport.rank}")
    clock.run()
    return sum(rates)


def straggling_rank(chosen: dict[str, Any], slow: bool) -> None:
    """The same as one rank of an MPI job; rank 0 prints the rate of all."""
    transport = MpiTransport(overlap="inline")
    settings = TrainSettings.model_validate({"workers": transport.world_size, **chosen})
    seconds = SLOW if slow and transport.rank == 0 else FAST

    async def sleep() -> None:
        time.sleep(seconds)

    algorithm = make_algorithm(Sleeper(2013).flat_model, settings, transport)
    steps = 60 if settings.algorithm == "ar-sgd" else None
    rate = np.array([run_now(steps_until(algorithm, transport, sleep, seconds=3.0, steps=steps))])
    run_now(transport.all_reduce_sum(rate))
    if transport.rank == 0:
        sys.stdout.write(json.dumps(float(rate[0])) + "\n")


def straggling_on_mpi(chosen: dict[str, Any], slow: bool) -> float:
    """Steps per second of four ranks that sleep instead of computing."""
    command = rank_command(TrainSettings.model_validate({"algorithm": "ad-psgd", "workers": 4}), Path("unused"))
    start = command[: command.index(sys.executable)]
    argument = json.dumps({"chosen": chosen, "slow": slow})
    done = subprocess.run(
        [*start, sys.executable, __file__, "--rank", argument],
        env=rank_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return float(done.stdout.splitlines()[-1])


def stragglers() -> dict[str, Any]:
    """Item 5: four workers, one ten times slower; the share of the clean rate that is left."""
    found: dict[str, Any] = {}
    for name, chosen in STRAGGLER_METHODS.items():
        simulated = straggling(chosen, {0: SLOW / FAST}) / straggling(chosen, {})
        measured = straggling_on_mpi(chosen, True) / straggling_on_mpi(chosen, False)
        losses = [loss_with_straggler(chosen, slow) for slow in ({}, {0: SLOW / FAST})]
        found[name] = {
            "simulated": round(simulated, 3),
            "on MPI": round(measured, 3),
            "validation loss, clean": round(losses[0], 4),
            "validation loss, with straggler": round(losses[1], 4),
        }
    return found


def loss_with_straggler(chosen: dict[str, Any], slow: dict[int, float]) -> float:
    """Validation loss after equal samples, in the simulator."""
    train, val, network = in_memory(8_000, workers=4)
    settings = TrainSettings.model_validate({"workers": 4, "epochs": 5, "batch_size": 32, **chosen})
    cluster = ClusterSettings.sleeping(FAST, slow_ranks=slow)
    loss: float = simulate(network, train, val, settings, cluster).records[0][-1]["val_loss"]
    return loss


def in_memory(num_rows: int, *, workers: int) -> tuple[MemoryRows, MemoryRows, nn.Module]:
    """Separable events in memory, and the HLF network for them."""
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        dataset = hlf_dataset(Path(folder) / "hlf", num_rows)
        network = build(model_spec(HlfSettings(), dataset))
        train, val = (MemoryRows.load(dataset, split, network.inputs, seed=1) for split in ("train", "val"))
    return train.recut(max(workers, GROUPS)), val, network


def simulator(workers: int) -> dict[str, Any]:
    """Item 7: steps of virtual workers per second of one core, over three epochs, with everything that a run does."""
    found = {}
    batch, steps, epochs = 32, 60, 3
    train, val, network = in_memory(workers * batch * steps, workers=workers)
    for algorithm in ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd"):
        settings = TrainSettings.model_validate(
            {"algorithm": algorithm, "workers": workers, "epochs": epochs, "batch_size": batch}
        )
        few = settings.model_copy(update={"workers": 8, "epochs": 1})
        simulate(network, train.recut(8), val, few, ClusterSettings(jitter=0.1))
        started, busy = time.perf_counter(), time.process_time()
        simulate(network, train, val, settings, ClusterSettings(jitter=0.1))
        wall, cpu = time.perf_counter() - started, time.process_time() - busy
        found[algorithm] = {
            "per second": round(workers * steps * epochs / wall),
            "per CPU second": round(workers * steps * epochs / cpu),
        }
    return found


def show(line: str) -> None:
    """A line of the result, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run all of it, or a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="training rows of the HLF runs")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs")
    parser.add_argument("--workers", type=int, default=1_000, help="virtual workers of the simulator")
    parser.add_argument("--only", choices=["hlf", "particles", "stragglers", "simulator"], help="one part only")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--ddp", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.ddp:
        distributed_rate(*arguments.ddp)
        return
    if arguments.rank:
        job = json.loads(arguments.rank)
        straggling_rank(job["chosen"], job["slow"])
        return
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "hlf": lambda: one_and_two_workers(arguments.rows, arguments.repeats),
        "particles": lambda: recurrent(arguments.repeats),
        "stragglers": stragglers,
        "simulator": lambda: simulator(arguments.workers),
    }
    show(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    for name, part in parts.items():
        if arguments.only in (None, name):
            show(f"{name}:")
            for key, value in part().items():
                show(f"  {key}: {json.dumps(value)}")


if __name__ == "__main__":
    main()
