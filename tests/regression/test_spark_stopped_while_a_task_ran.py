"""Ctrl-C just after a task began found no task that runs; Spark printed an error when the task reported its end."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext
from ranks import wait_until

from pipeline.machine.spark_session import watched


@pytest.mark.spark
def test_no_task_runs_after_an_interrupt(spark: SparkContext, tmp_path: Path) -> None:
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
            wait_until(begun.exists, what="the task has begun")
            raise KeyboardInterrupt

    job = threading.Thread(target=run)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not psutil.pid_exists(int(begun.read_text()))
    finally:
        stop.touch()
        job.join()
