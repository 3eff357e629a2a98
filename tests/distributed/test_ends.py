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


def test_a_failure_on_one_rank_soon_ends_the_job_with_its_message(tmp_path: Path) -> None:
    rows = {"train": [400, 400], "val": [10, 10], "test": [10]}
    dataset = write_dataset(tmp_path / "data", rows=rows)
    shards = plan_epoch(rows["train"], world_size=2, batch_size=8, seed=1, epoch=0)
    group_of_rank_1 = shards.row_ranges[1][0].group
    path = dataset.files("train")[group_of_rank_1]
    file_bytes = bytearray(path.read_bytes())
    middle = len(file_bytes) // 2
    file_bytes[4:middle] = bytes(middle - 4)
    path.write_bytes(file_bytes)
    run = make_spec(dataset, tmp_path / "out", reader="petastorm")

    started = time.monotonic()
    message = r"is not what was written: reading it fails"
    with pytest.raises(DamagedOutputError, match=message) as error:
        launch(run, on_progress=lambda _: None)

    assert error.value.path == str(path)
    # A rank that waits for the failed one would be ended after `stall_seconds`: 300.
    assert time.monotonic() - started < 150


LAUNCHER = """
import signal, sys
from pathlib import Path
from training.launching.launcher import launch
from training.launching.run_spec import RunSpec

# A shell that starts tests in the background has them ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
launch(RunSpec.load(Path(sys.argv[1])), on_progress=lambda progress: None)
"""


@pytest.mark.minutes
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_no_rank_outlives_its_launcher(tmp_path: Path, signal_number: signal.Signals) -> None:
    rows = {"train": [20] * 7, "val": [15, 15], "test": [10]}
    run = make_spec(write_dataset(tmp_path / "set", rows=rows), tmp_path / "out", epochs=100_000)
    run.save(tmp_path / "spec.json")
    metrics = run.out_dir / "metrics" / "rank-1.jsonl"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path / "spec.json")],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    try:
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, label="a first record")
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
        # The launcher first: it would start killed ranks again.
        launcher.kill()
        for process in processes_of(run.out_dir):
            process.kill()
