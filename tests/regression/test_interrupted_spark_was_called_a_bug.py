"""Ctrl-C at a terminal ends Spark's workers too; their failure arrived first and was reported as a bug."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal
from pipeline.terminal.exit_codes import guard

def work():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass
    except KeyboardInterrupt:
        raise RuntimeError("Python worker exited unexpectedly") from None

guard(work, debug=False)
"""


def test_an_error_after_an_interrupt_is_the_interrupt() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert "interrupted" in done.stderr
    assert "bug of" not in done.stderr
