"""Ctrl-C while a module with a namedtuple was imported: the run said `interrupted`, and died by SIGINT, not with 130.

So did one that came before our own handler was there, with a traceback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import SAMPLES

SCRIPT = """
import os, signal, sys, time
from pipeline import cli, command_line

def work(*_):
    # As collections.namedtuple does.
    eval("[os.kill(os.getpid(), signal.SIGINT), time.sleep(5)]")

command_line.load_config = work
sys.argv = ["pipeline", "plan"]
cli.main()
"""


@pytest.mark.slow
def test_the_exit_code_is_that_of_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "script"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SAMPLES.parent)},
    )
    assert "interrupted" in done.stderr
    assert done.returncode == 130


@pytest.mark.slow
def test_at_any_moment_of_the_start_it_is_the_same() -> None:
    for milliseconds in (60, 150, 300, 450, 700):
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "plan"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        time.sleep(milliseconds / 1000)
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=60)
        # The interpreter itself takes some moments before anything of ours runs (what it says then may name the
        # environment's own file for `hep_pipeline`, which is not ours); later the run may have been done already.
        ours = str(SAMPLES.parent / "pipeline") + os.sep
        assert process.returncode in {130, 0} or ours not in words, words
