"""Ctrl-C that arrived while Python ran a destructor was dropped, and the stage continued to its end."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal, time
from pipeline.terminal.exit_codes import guard

class Fragile:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # the interrupt is raised here, where Python can only drop it

def work():
    Fragile()
    time.sleep(20)
    print("continued to the end")

guard(work, debug=False)
"""


def test_the_interrupt_still_ends_the_work() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert "continued" not in done.stdout
    assert "interrupted" in done.stderr
