"""Benchmark: the memory of each stage of the demo (`make bench-memory`).

Each stage is a command of its own, in turn, on one run folder and in a cgroup with the memory of
`--mebibytes` (needs the rights of root). Several times a second the anonymous pages of all its
processes are summed; those that processes share count once (PSS). A line shows the highest sum.
The page cache comes on top, and gives way. The last line is a whole `run` in a folder of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import psutil
from small_cgroup import cgroup_with

from hep_core.cgroups import read_system_file

_MIB: Final = 2**20
_SECONDS_BETWEEN_SAMPLES: Final = 0.2
_KINDS: Final = ("command", "Spark's JVM", "Spark's Python", "ranks")
#: Titles and command lines of the stages in turn. The second training finds the first up to date.
_STAGES: Final = {
    "ingest": ["ingest"],
    "features": ["features"],
    "gridsearch": ["gridsearch"],
    "train, perceptron": ["train", "--set", "model.names=[hlf]"],
    "train, recurrent network": ["train"],
    "evaluate": ["evaluate"],
    "export": ["export"],
    "report": ["report"],
}


def kind_of_process(process: psutil.Process) -> str:
    """Return what a process of a command is, one of the columns of the table."""
    arguments = " ".join(process.cmdline())
    if process.name() == "java":
        return "Spark's JVM"
    if "pyspark.daemon" in arguments or "pyspark/daemon" in arguments:
        return "Spark's Python"
    if "training.launching" in arguments:
        return "ranks"
    return "command"


def anonymous_bytes(process: psutil.Process) -> int:
    """Return the anonymous pages of a process, of shared ones its share; 0 after its end."""
    for line in read_system_file(Path(f"/proc/{process.pid}/smaps_rollup")).splitlines():
        if line.startswith("Pss_Anon:"):
            return 1024 * int(line.split()[1])
    return 0


def sample_memory(root: psutil.Process) -> Counter[str]:
    """Return the memory of a process and all its children, by kind [bytes]."""
    memory_of_kind: Counter[str] = Counter()
    for process in [root, *root.children(recursive=True)]:
        try:
            memory_of_kind[kind_of_process(process)] += anonymous_bytes(process)
        except psutil.NoSuchProcess:
            continue
    return memory_of_kind


def highest_memory(command: list[str]) -> Counter[str]:
    """Run a command to its end; returns its memory by kind when the sum was highest [bytes].

    Raises:
        subprocess.CalledProcessError: The command fails.
    """
    highest: Counter[str] = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        root = psutil.Process(child.pid)
        while child.poll() is None:
            try:
                memory_of_kind = sample_memory(root)
            except psutil.NoSuchProcess:
                break
            if memory_of_kind.total() > highest.total():
                highest = memory_of_kind
            time.sleep(_SECONDS_BETWEEN_SAMPLES)
        output = child.communicate()[0]
    if child.returncode:
        sys.stderr.buffer.write(output)
        raise subprocess.CalledProcessError(child.returncode, command)
    return highest


def write_memory(title: str, memory_of_kind: Counter[str]) -> None:
    """Write the memory of a stage, a line of the table [MiB]."""
    cells = [f"{memory_of_kind.total() / _MIB:.0f}"]
    for kind in _KINDS:
        memory = memory_of_kind[kind]
        # An empty cell says that the stage has no such process.
        text = f"{memory / _MIB:.0f}" if memory else ""
        cells.append(text)
    write_line(title, cells)


def write_line(title: str, cells: Sequence[str]) -> None:
    """Write a line of the table."""
    sys.stdout.write("|".join(["", f" {title} ", *cells, ""]) + "\n")
    sys.stdout.flush()


def measure_all(num_stages: int, memory_bytes: int | None) -> None:
    """Measure the first stages one after the other, then a whole run; write the table.

    Args:
        num_stages: How many stages; 0 for all, and the whole run.
        memory_bytes: Limit of a cgroup for all processes of a command; None for no limit.
    """
    limit: AbstractContextManager[list[str]] = nullcontext([])
    if memory_bytes is not None:
        limit = cgroup_with(memory_bytes=memory_bytes)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, limit as words_before:
        pipeline = [*words_before, sys.executable, "-m", "pipeline"]
        stages = list(_STAGES.items())[: num_stages or None]
        for title, words in stages:
            command = [*pipeline, *words, "--set", f"run_dir={folder}/stages"]
            write_memory(title, highest_memory(command))
        if num_stages == 0:
            whole_run = [*pipeline, "run", "--set", f"run_dir={folder}/run"]
            write_memory("run", highest_memory(whole_run))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=750, help="limit; 0: no limit")
    parser.add_argument("--stages", type=int, default=0, help="how many stages; 0: all, and `run`")
    arguments = parser.parse_args()
    memory_bytes = arguments.mebibytes * _MIB if arguments.mebibytes else None
    # As the set-up does: a stage would compile the kernels whose code has changed since.
    for module in ("training.compiled", "features"):
        subprocess.run([sys.executable, "-m", module], check=True)
    write_line("stage [MiB]", ["all", *_KINDS])
    measure_all(arguments.stages, memory_bytes)


if __name__ == "__main__":
    main()
