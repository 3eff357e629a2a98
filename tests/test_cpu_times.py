"""`pytest --cpu-times`."""

from __future__ import annotations

import subprocess
import sys

from cpu_times import used

BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def test_time_of_processes_counts_while_they_live_and_afterwards() -> None:
    before = used()
    child = subprocess.Popen(
        [sys.executable, "-c", f"{BUSY}\nprint(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout
        child.stdout.readline()
        assert used() - before >= 0.25
    assert used() - before >= 0.3
