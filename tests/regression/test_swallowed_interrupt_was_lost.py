"""Ctrl-C that some import caught together with everything else was lost, and the stage was published."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SAMPLES, small_config

SCRIPT = """
import os, signal, sys
from pipeline.cli import app
from pipeline.stages.base import Result
from pipeline.stages.ingest import Ingest

def run(stage, context):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        pass  # as some libraries do
    return Result(summary="continued to the end")

Ingest.run = run
app(["ingest", "--config", sys.argv[1]])
"""


@pytest.mark.slow
def test_nothing_is_published(tmp_path: Path) -> None:
    config = small_config(tmp_path, SAMPLES)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(config)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert "continued to the end" not in done.stderr
    assert list((tmp_path / "run" / "ingest").iterdir()) == []


def test_a_second_ctrl_c_does_not_change_the_exit_code(tmp_path: Path) -> None:
    script = """
import os, signal
from pipeline.terminal import exit_codes as ending

def work():
    os.kill(os.getpid(), signal.SIGINT)

leave = ending._leave
ending._leave = lambda code: (os.kill(os.getpid(), signal.SIGINT), leave(code))
ending.guard(work, debug=False)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "interrupted" in done.stderr
    assert done.returncode not in {-signal.SIGINT, os.EX_OK}
