"""Benchmark: averages of the vectors of two workers over MPI (`make bench`).

One number is one complete average, in memory or through sockets. Both workers make them at the same
time, so that each waits for the other now and then; `alone` is one worker whose partner makes none.
The goal: at most 2 microseconds for the 2,013 parameters of the HLF network in memory, alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from training.launching.mpirun import rank_command, rank_environment
from training.settings import TrainSettings
from training.transports.basics import run_now
from training.transports.mpi import MpiTransport

#: Parameters of the HLF network, GRU, LeNet-5 and a large one; how many averages of each.
SIZES = {2_013: 10_000, 10_803: 10_000, 61_706: 3_000, 1_000_000: 200}
COLUMNS = ("both", "both_99", "alone", "read", "add")


def microseconds(work: Callable[[], object], times: int) -> list[float]:
    results = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        results.append((time.perf_counter() - started) * 1e6)
    return results


def measure(transport: MpiTransport, size: int, times: int) -> dict[str, float]:
    """Averages of one size [us], by all ranks at once and by rank 0 alone, and the other calls."""
    vector = run_now(transport.shared_vector(np.full(size, transport.rank, np.float32)))
    partner = (transport.rank + 1) % transport.world_size
    out, change = np.empty(size, np.float32), np.zeros(size, np.float32)

    def average() -> None:
        run_now(vector.average_with(partner))

    microseconds(average, times // 10)
    run_now(transport.barrier())
    pair = microseconds(average, times)
    run_now(transport.barrier())
    alone = microseconds(average, times) if transport.rank == 0 else [0.0]
    run_now(transport.barrier())
    actual = {
        "both": statistics.median(pair),
        "both_99": statistics.quantiles(pair, n=100)[-1],
        "alone": statistics.median(alone),
        "read": statistics.median(microseconds(lambda: run_now(vector.read(out)), times)),
        "add": statistics.median(microseconds(lambda: run_now(vector.add(change)), times)),
    }
    run_now(vector.close())
    return actual


def rank(most: int) -> None:
    """Measure all sizes and ways on two ranks, with `most` averages at most.

    Rank 0 prints a line of JSON for each.
    """
    for way in ("memory", "sockets"):
        transport = MpiTransport(shares_memory=way == "memory")
        for size, times in SIZES.items():
            actual = measure(transport, size, min(times, most))
            if transport.rank == 0:
                sys.stdout.write(json.dumps({"way": way, "size": size, **actual}) + "\n")
        transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs")
    parser.add_argument("--averages", type=int, default=10_000, help="of each size, at most")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments.averages)
        return
    settings = TrainSettings(algorithm="ad-psgd", workers=2)
    command = [sys.executable, __file__, "--rank", "--averages", str(arguments.averages)]
    ranks, environment = rank_command(settings, command), rank_environment(settings)
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(arguments.repeats):
        completed = subprocess.run(
            ranks, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        for line in completed.stdout.splitlines():
            if line.startswith("{"):
                document = json.loads(line)
                runs.setdefault(f"{document['way']:<9}{document['size']:>9,}", []).append(document)
    sys.stdout.write("microseconds, medians    both (99 %)     alone      read       add\n")
    for name, document in runs.items():
        numbers = {key: statistics.median(run[key] for run in document) for key in COLUMNS}
        pair = "{both:.1f} ({both_99:.0f})".format(**numbers)
        sys.stdout.write(
            name + f"{pair:>18}" + "{alone:>10.1f}{read:>10.1f}{add:>10.1f}\n".format(**numbers)
        )


if __name__ == "__main__":
    main()
