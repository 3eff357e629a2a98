"""Ranks that fail, and launchers that end; what methods compute on ranks: `test_methods.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from feature_datasets import write_dataset
from ranks import processes_of, wait_until
from training_runs import make_spec

from hep_core.integrity import DamagedOutputError
from training.launching.launcher import launch
from training.readers.sharding import plan_epoch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]


def test_a_failure_on_one_rank_ends_the_job_soon_with_its_words(tmp_path: Path) -> None:
    broken = write_dataset(
        tmp_path / "data", rows={"train": [400, 400], "val": [10, 10], "test": [10]}
    )
    victim = (
        plan_epoch([400, 400], world_size=2, batch_size=8, seed=1, epoch=0).row_ranges[1][0].group
    )
    path = broken.files("train")[victim]
    file_bytes = bytearray(path.read_bytes())
    file_bytes[4 : len(file_bytes) // 2] = bytes(len(file_bytes) // 2 - 4)
    path.write_bytes(file_bytes)
    started = time.monotonic()
    with pytest.raises(
        DamagedOutputError, match=r"is not what was written: reading it fails"
    ) as raised:
        launch(make_spec(broken, tmp_path / "out", reader="petastorm"), on_progress=lambda _: None)
    assert raised.value.path == str(path)
    # A rank that waits for the failed one would be ended after `stall_seconds`: 300.
    assert time.monotonic() - started < 150


LAUNCHER = """
import signal, sys
from pathlib import Path
from training.launching.launcher import launch, launch_all
from training.launching.rank import RunSpec
# A shell that starts tests in the background has them ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
launch(RunSpec.load(Path(sys.argv[1])), on_progress=lambda progress: None)
"""


@pytest.mark.minutes
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_no_rank_outlives_its_launcher(tmp_path: Path, signal_number: signal.Signals) -> None:
    dataset = write_dataset(
        tmp_path / "set", rows={"train": [20] * 7, "val": [15, 15], "test": [10]}
    )
    run = make_spec(dataset, tmp_path / "out", epochs=100_000)
    run.save(tmp_path / "spec.json")
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path / "spec.json")],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        metrics = run.out_dir / "metrics" / "rank-1.jsonl"
        wait_until(
            lambda: metrics.exists() and metrics.stat().st_size > 0, label="training has begun"
        )
        os.kill(launcher.pid, signal_number)
        try:
            launcher.wait(30)
        except subprocess.TimeoutExpired:
            # Python drops an interrupt that falls into a destructor; the command line has a hook
            # for that, this bare launcher has none.
            os.kill(launcher.pid, signal_number)
            launcher.wait(60)
        wait_until(lambda: not processes_of(run.out_dir), label="all ranks are gone")
    finally:
        # First of all: it would start killed ranks again.
        launcher.kill()
        for process in processes_of(run.out_dir):
            process.kill()
