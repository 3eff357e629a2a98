"""Benchmark with one of four ranks stopped from outside for nine tenths of the time.

`make bench-stragglers` runs it.

What a crowded machine, a debugger or a paused virtual machine do. `train` runs as a user starts it;
from one second after its start on, SIGSTOP and SIGCONT hold rank 1 for 180 of every 200 ms. The
rate is all samples over the longest sum of epoch seconds of a rank. Runs alternate with undisturbed
ones; the share is that of their medians. Beside it stands the undisturbed rate as a multiple of
that of `ar-sgd`. The goals: a share of 0.70, and 0.9 times `ar-sgd` for `ad-psgd`.

`--cores 0.5` makes the cores slow, and the ranks independent of each other: each rank gets a cgroup
of its own with this quota. A share of 0.775 is then possible: three ranks, and a tenth of one.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from small_cgroup import cores_group

from training.loop.records import Record, read_records

DEMO = Path(__file__).resolve().parents[2] / "pipeline" / "configs" / "demo.yaml"
METHODS = ("ar-sgd", "ad-psgd", "swarm-sgd", "downpour", "easgd")
WORKERS: Final = 4
#: Time for which the rank is stopped, in each period of the holder [s].
STOPPED, PERIOD = 0.18, 0.2
#: Period of the quota [us]. It is short beside the time for which the held rank runs, so that
#: this rank is as slow then as the others.
QUOTA_PERIOD_US: Final = 10_000


class Experiment(NamedTuple):
    """What all runs have in common."""

    where: list[str]
    """Arguments of the command line that name config and run folder."""
    run_dir: Path
    epochs: int
    cores: float | None
    """Quota of each rank; None: no quota."""


def ranks_of(process: psutil.Process) -> list[psutil.Process]:
    """The ranks below a process, in the order of their start."""
    results = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            if "python" in child.name() and "training.launching.rank_process" in child.cmdline():
                results.append(child)
    return sorted(results, key=lambda process: process.pid)


def hold(process: psutil.Process, is_over: threading.Event) -> None:
    """Stop a process for most of the time, from one second from now on."""
    is_over.wait(1)
    with suppress(psutil.NoSuchProcess):
        while not is_over.is_set():
            process.send_signal(signal.SIGSTOP)
            is_over.wait(STOPPED)
            process.send_signal(signal.SIGCONT)
            is_over.wait(PERIOD - STOPPED)


def limit_cores(ranks: Sequence[psutil.Process], cores: float, stack: ExitStack) -> None:
    """Move each rank into a cgroup of its own with a quota; the stack removes the cgroups."""
    for number, rank in enumerate(ranks):
        group = cores_group(cores, period_us=QUOTA_PERIOD_US, label=f"rank-{number}")
        folder = stack.enter_context(group)
        (folder / "cgroup.procs").write_text(str(rank.pid))


def train(experiment: Experiment, method: str, *, disturbed: bool) -> list[list[Record]]:
    """Train with four ranks; return the records of each."""
    settings = {
        "model.names": "[hlf]",
        "model.hlf.from_gridsearch": "false",
        "train.workers": WORKERS,
        "train.epochs": experiment.epochs,
        "train.reader": "arrow",
        "train.algorithm": method,
        "train.stall_seconds": 600,
    }
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    pipeline = [sys.executable, "-m", "pipeline", "train", "--force"]
    command = [*pipeline, *experiment.where, *overrides]
    versions = experiment.run_dir / "train"
    markers_before = set(versions.glob("*/hlf/started"))
    is_over = threading.Event()
    with (
        ExitStack() as stack,
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            ranks: list[psutil.Process] = []
            while process.poll() is None and not ranks:
                if set(versions.glob("*/hlf/started")) - markers_before:
                    ranks = ranks_of(psutil.Process(process.pid))
                time.sleep(0.02)
            if experiment.cores is not None:
                limit_cores(ranks, experiment.cores, stack)
            if disturbed and ranks:
                threading.Thread(target=hold, args=(ranks[1], is_over), daemon=True).start()
            errors = process.communicate()[1]
        finally:
            is_over.set()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors}")
    version = json.loads((versions / "current.json").read_text())["version"]
    return read_records(versions / version / "hlf")


def rate(records: Sequence[Sequence[Record]]) -> float:
    """Events per second of a training."""
    num_samples = sum(record["samples"] for rank_records in records for record in rank_records)
    seconds = [sum(record["seconds"] for record in rank_records) for rank_records in records]
    return float(num_samples / max(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=DEMO, help="config of the events")
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3, help="of each run")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--cores", type=float, help="quota of each rank, in a cgroup of its own")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        where = ["--config", str(arguments.config), "--set", f"run_dir={run_dir}"]
        stages = [sys.executable, "-m", "pipeline", "run", "--until", "features", *where]
        subprocess.run(stages, check=True, stdout=subprocess.DEVNULL)
        experiment = Experiment(where, run_dir, arguments.epochs, arguments.cores)
        reference = None
        for method in arguments.methods:
            clean, held = [], []
            for _ in range(arguments.repeats):
                clean.append(rate(train(experiment, method, disturbed=False)))
                held.append(rate(train(experiment, method, disturbed=True)))
            usual = statistics.median(clean)
            reference = reference or usual
            share = statistics.median(held) / usual
            lowest, highest = min(held) / usual, max(held) / usual
            sys.stdout.write(
                f"{method:<10} {usual:>10,.0f} events/s, {usual / reference:.2f} times "
                f"{arguments.methods[0]}; share with a rank held {share:.2f} "
                f"({lowest:.2f} to {highest:.2f})\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
