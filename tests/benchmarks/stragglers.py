"""Benchmark with one of four ranks stopped from outside for nine tenths of the time.

`make bench-stragglers` runs it.

What a crowded machine, a debugger or a paused virtual machine do. `train` runs as a user starts it;
from one second after its start on, SIGSTOP and SIGCONT hold rank 1 for 180 of every 200 ms. The
rate is all samples over the longest sum of epoch seconds of a rank. Runs alternate with undisturbed
ones; the share is that of their medians. Beside it stands the undisturbed rate as a multiple of
that of `ar-sgd`. The goals: a share of 0.70, and 0.9 times `ar-sgd` for `ad-psgd`.
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
from contextlib import suppress
from pathlib import Path

import psutil

from training.loop.records import read_records

DEMO = Path(__file__).resolve().parents[2] / "pipeline" / "configs" / "demo.yaml"
METHODS = ("ar-sgd", "ad-psgd", "swarm-sgd", "downpour", "easgd")
STOPPED, PERIOD = 0.18, 0.2


def ranks_of(process: psutil.Process) -> list[psutil.Process]:
    """The ranks below a process, in the order of their start."""
    results = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            if "python" in child.name() and "training.launching.rank_process" in child.cmdline():
                results.append(child)
    return sorted(results, key=lambda process: process.pid)


def hold(process: psutil.Process, is_over: threading.Event) -> None:
    with suppress(psutil.NoSuchProcess):
        while not is_over.is_set():
            process.send_signal(signal.SIGSTOP)
            is_over.wait(STOPPED)
            process.send_signal(signal.SIGCONT)
            is_over.wait(PERIOD - STOPPED)


def rate(where: list[str], run_dir: Path, method: str, epochs: int, *, disturbed: bool) -> float:
    """Events per second of a training with four ranks."""
    settings = {
        "model.names": "[hlf]",
        "model.hlf.from_gridsearch": "false",
        "train.workers": 4,
        "train.epochs": epochs,
        "train.reader": "arrow",
        "train.algorithm": method,
        "train.stall_seconds": 600,
    }
    message = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "pipeline", "train", "--force", *where, *message]
    is_over = threading.Event()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            holder = None
            started = run_dir / "train"
            while process.poll() is None:
                actual = ranks_of(psutil.Process(process.pid))
                if (
                    disturbed
                    and holder is None
                    and len(actual) == 4
                    and list(started.glob("*/hlf/started"))
                ):
                    time.sleep(1)
                    holder = threading.Thread(target=hold, args=(actual[1], is_over), daemon=True)
                    holder.start()
                time.sleep(0.02)
        finally:
            is_over.set()
        errors = process.stderr.read() if process.stderr else ""
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors}")
    version = json.loads((started / "current.json").read_text())["version"]
    records = read_records(started / version / "hlf")
    samples = sum(record["samples"] for rank in records for record in rank)
    return float(samples / max(sum(record["seconds"] for record in rank) for rank in records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=DEMO, help="config of the events")
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3, help="of each run")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        where = ["--config", str(arguments.config), "--set", f"run_dir={run_dir}"]
        stages = [sys.executable, "-m", "pipeline", "run", "--until", "features", *where]
        subprocess.run(stages, check=True, stdout=subprocess.DEVNULL)
        reference = None
        for method in arguments.methods:
            clean, held = [], []
            for _ in range(arguments.repeats):
                clean.append(rate(where, run_dir, method, arguments.epochs, disturbed=False))
                held.append(rate(where, run_dir, method, arguments.epochs, disturbed=True))
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
