"""No task of Spark runs when its job is over."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext
from ranks import wait_until

from pipeline.errors import SparkJobError
from pipeline.machine.spark_jobs import watched


@pytest.mark.spark
def test_no_task_runs_after_an_interrupt(spark: SparkContext, tmp_path: Path) -> None:
    """Ctrl-C may come before Spark knows that the task runs."""
    begun, stop = tmp_path / "begun", tmp_path / "stop"

    def task(_: int) -> None:
        begun.with_suffix(".new").write_text(str(os.getpid()))
        begun.with_suffix(".new").rename(begun)
        while not stop.exists():
            time.sleep(0.01)

    def run() -> None:
        with pytest.raises(Exception, match="cancelled"):
            spark.parallelize([0], 1).foreach(task)

    def interrupted() -> None:
        with watched(lambda *_: None, 1, lambda: 0):
            job.start()
            wait_until(begun.exists, label="the task has begun")
            raise KeyboardInterrupt

    job = threading.Thread(target=run)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not psutil.pid_exists(int(begun.read_text()))
    finally:
        stop.touch()
        job.join()


@pytest.mark.spark
@pytest.mark.parametrize("daemon_works", [True, False])
def test_no_task_writes_after_the_failure_is_known(
    spark: SparkContext, tmp_path: Path, daemon_works: bool
) -> None:
    """Spark asks a daemon to end the processes of tasks, which may come late."""
    written, stop, daemon = tmp_path / "written", tmp_path / "stop", tmp_path / "daemon"

    def task(index: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not stop.exists():
            if index == 0 and written.exists():
                daemon.write_text(str(os.getppid()))
                if not daemon_works:
                    psutil.Process(os.getppid()).suspend()
                raise RuntimeError("one task fails")
            if index == 1:
                written.write_text("a part")
            time.sleep(0.01)

    try:
        with (
            pytest.raises(SparkJobError, match="one task fails"),
            watched(lambda *_: None, 2, lambda: 0),
        ):
            spark.parallelize([0, 1], 2).foreach(task)
        written.unlink()
        time.sleep(1)
        assert not written.exists()
    finally:
        stop.touch()
        psutil.Process(int(daemon.read_text())).resume()
    assert spark.parallelize([1, 2], 2).map(lambda index: index + 1).sum() == 5
