"""The memory of ranks, measured from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from training.launching.memory_use import MemoryWatch
from training.launching.rank_reports import LaunchFiles


def test_rank_is_measured_before_its_first_heartbeat(tmp_path: Path) -> None:
    """The kernel may kill a rank while it loads its libraries."""
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "3"}
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]

    with MemoryWatch(LaunchFiles(tmp_path)) as memory:
        process = subprocess.Popen(sleeping, env=environment)
        try:
            while not memory.largest():
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()

    assert memory.largest().startswith("rank 3 ")


def test_kernel_kills_a_rank_rather_than_its_launcher(tmp_path: Path) -> None:
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    own_score = Path("/proc/self/oom_score_adj").read_text()

    with MemoryWatch(LaunchFiles(tmp_path)) as memory:
        process = subprocess.Popen(sleeping, env=environment)
        try:
            while not memory.largest():
                time.sleep(0.05)
            score = Path(f"/proc/{process.pid}/oom_score_adj").read_text()
        finally:
            process.kill()
            process.wait()

    assert int(score) > int(own_score)
