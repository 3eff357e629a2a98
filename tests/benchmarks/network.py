"""Benchmark of methods on several hosts, with and without a delay of the network.

`make bench-network` runs it.

The hosts are network namespaces of this machine (see `tests/helpers/network_hosts.py`), so all
ranks share its cores; the numbers of a row are comparable, and those of hosts with a core per rank
are higher. A rate is events per second of all workers; an exchange is one complete average of the
2,013 parameters of the HLF network, both ranks active. The goals: an exchange within two round
trips and 100 microseconds; AD-PSGD and SwarmSGD at 0.9 of their rate in shared memory without
delay, and ahead of AR-SGD with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmark_data import hlf_dataset
from exchange import measure as measure_exchange
from network_hosts import Network, network, reason_against_hosts
from workers import our_loop

from features.dataset import FeatureDataset
from models.networks.hlf_settings import HlfSettings
from training.launching.mpirun import rank_command, rank_environment
from training.settings import TrainSettings
from training.transports.mpi import MpiTransport

METHODS: dict[str, dict[str, Any]] = {
    "AR-SGD": {"algorithm": "ar-sgd"},
    "LocalSGD": {"algorithm": "local-sgd"},
    "AD-PSGD": {"algorithm": "ad-psgd"},
    "SwarmSGD": {"algorithm": "swarm-sgd"},
}
#: Delay one way [s] and rate [bits/s]; None: one host with shared memory.
NETWORKS: dict[str, tuple[float, float] | None] = {
    "shared memory": None,
    "TCP, no delay": (0.0, 0.0),
    "TCP, 0.5 ms, 1 Gb/s": (0.0005, 1e9),
}


def rates(dataset: FeatureDataset, workers: int, launcher_args: list[str]) -> dict[str, float]:
    """Events per second of each method, from its records."""
    actual = {}
    for name, selected in METHODS.items():
        common = {"workers": workers, "batch_size": 128, "epochs": 3, "reader": "arrow"}
        settings = TrainSettings.model_validate(
            {**common, "launcher_args": launcher_args, **selected}
        )
        actual[name] = our_loop(dataset, HlfSettings(), settings)
    return actual


def exchange_rank() -> None:
    """A rank that makes averages; rank 0 prints their median [us]."""
    transport = MpiTransport()
    actual = measure_exchange(transport, 2013, 500)["both"]
    transport.close()
    if transport.rank == 0:
        sys.stdout.write(json.dumps(actual) + "\n")


def on_first_host(folder: Path, workers: int, launcher_args: list[str]) -> None:
    """All measurements of one network, started on its first host; prints a line of JSON."""
    actual: dict[str, float] = dict(rates(FeatureDataset.load(folder), workers, launcher_args))
    settings = TrainSettings(algorithm="ad-psgd", workers=workers, launcher_args=launcher_args)
    ranks = rank_command(settings, [sys.executable, __file__, "--exchange"])
    completed = subprocess.run(
        ranks, env=rank_environment(settings), stdout=subprocess.PIPE, text=True, check=True
    )
    actual["exchange [us]"] = float(
        next(line for line in completed.stdout.splitlines() if line[:1].isdigit())
    )
    sys.stdout.write(json.dumps(actual) + "\n")


def measure(name: str, dataset: Path, workers: int, folder: Path) -> dict[str, float]:
    def run(between: Network | None) -> dict[str, float]:
        launcher_args = between.launcher_args if between else []
        command = [
            sys.executable,
            __file__,
            "--host",
            str(dataset),
            str(workers),
            json.dumps(launcher_args),
        ]
        completed = subprocess.run(
            between.on_host(0, *command) if between else command,
            env=rank_environment(TrainSettings()),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        document: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
        return document | ({"round trip [us]": 1e6 * between.round_trip()} if between else {})

    selected = NETWORKS[name]
    if selected is None:
        return run(None)
    with network(workers, folder, delay=selected[0], rate=selected[1]) as between:
        return run(between)


def main() -> None:
    """Run some times, alternating between the networks, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs")
    parser.add_argument("--workers", type=int, default=2, help="workers, one a host")
    parser.add_argument("--rows", type=int, default=1_000_000, help="events of an epoch")
    parser.add_argument("--exchange", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--host", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.exchange:
        exchange_rank()
        return
    if arguments.host:
        folder, workers, launcher_args = arguments.host
        on_first_host(Path(folder), int(workers), json.loads(launcher_args))
        return
    if reason_against_hosts():
        sys.stdout.write(f"not measured: {reason_against_hosts()}\n")
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in NETWORKS}
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "hlf"
        hlf_dataset(dataset, arguments.rows)
        for _ in range(arguments.repeats):
            for name, results in runs.items():
                results.append(measure(name, dataset, arguments.workers, Path(folder)))
    numbers = {
        name: {key: statistics.median(run[key] for run in results) for key in results[0]}
        for name, results in runs.items()
    }
    sys.stdout.write(" " * 16 + "".join(f"{name:>22}" for name in numbers) + "\n")
    for key in [*METHODS, "exchange [us]", "round trip [us]"]:
        cells = (
            f"{results[key]:>22,.0f}" if key in results else " " * 22
            for results in numbers.values()
        )
        sys.stdout.write(f"{key:<16}" + "".join(cells) + "\n")


if __name__ == "__main__":
    main()
