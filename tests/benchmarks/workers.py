"""Benchmark of training: a bare torch loop, two workers, simulator, overhead, GPU (`make bench`).

Rates are events per second of reading, computing and communicating; validation and checkpoints are
left out on both sides. Runs of what is compared alternate, and medians of the ratios are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from bare_torch import bare_loop, distributed_loop
from benchmark_data import hlf_dataset, in_memory
from feature_datasets import write_dataset

from features.dataset import FeatureDataset
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.simulate import simulate
from models.networks.hlf_settings import HlfSettings
from models.networks.network_settings import NetworkSettings
from models.networks.particles_settings import ParticlesSettings
from training.compiled.optimizer import VectorOptimizer
from training.launching.launcher import launch
from training.launching.rank import train
from training.launching.run_spec import RunSpec
from training.loop.records import read_records
from training.settings import TrainSettings
from training.transports.transport import Transport
from training.workloads.hep_settings import HepSettings
from training.workloads.work import ReaderWork


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
    """One worker against the bare loop, and two workers against it."""
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
    """One worker against the bare loop, on events with about as many particles as real ones."""
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
    """A rank on the GPU against the bare loop there, and against a rank on one core.

    The result is empty without a GPU.
    """
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


def simulator(workers: int) -> dict[str, Any]:
    """Steps of virtual workers per second of one core, over three epochs of whole runs."""
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
    """A transport whose clock is the CPU time of this process.

    So other work on the machine does not count.
    """

    def now(self) -> float:
        return time.process_time()


def overhead(rows: int, repeats: int) -> dict[str, Any]:
    """CPU time of a step of the loop and its meters.

    One worker trains, whose batches, gradients and updates cost nothing.
    """

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
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chunks: dict[str, Callable[[], dict[str, Any]]] = {
        "hlf": lambda: one_and_two_workers(arguments.rows, arguments.repeats),
        "particles": lambda: recurrent(arguments.repeats),
        "simulator": lambda: simulator(arguments.workers),
        "overhead": lambda: overhead(arguments.rows, arguments.repeats),
        "gpu": lambda: gpu(arguments.rows, arguments.repeats),
    }
    processor = platform.processor() or platform.machine()
    show(f"{processor}, {os.cpu_count()} cores, torch {torch.__version__}")
    for name, chunk in chunks.items():
        if arguments.only in (None, name):
            show(f"{name}:")
            for key, value in chunk().items():
                show(f"  {key}: {json.dumps(value)}")


if __name__ == "__main__":
    main()
