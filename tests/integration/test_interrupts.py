"""Ctrl-C while Spark starts or works, and a driver killed alone; Ctrl-C of each stage:
`test_killed_runs`."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from finished_run import FinishedRun
from lent_spark import command
from ranks import has_started, wait_until

from pipeline.machine.spark_session import SparkProvider
from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]


@pytest.mark.parametrize("stage", ["ingest", "train"])
def test_killing_only_the_driver_takes_spark_and_ranks_along(
    finished_run: FinishedRun, provider: SparkProvider, stage: str
) -> None:
    finished_run.restore()
    process = finished_run.start_and_wait_for_work(stage, "--force")
    driver = psutil.Process(process.pid)
    wait_until(
        lambda: len(driver.children(recursive=True)) > 1, label="Spark or the ranks have started"
    )
    children = driver.children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    _, alive = psutil.wait_procs(children, timeout=120)
    assert alive == []
    result = command(provider, stage, "--config", finished_run.config)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("started", ["java", "pyspark.daemon"])
def test_ctrl_c_while_spark_starts_or_works_is_quiet(
    finished_run: FinishedRun, started: str
) -> None:
    finished_run.restore()
    process = finished_run.start_and_wait_for_work("features", "--force")
    wait_until(lambda: has_started(process.pid, started), label=f"{started} has started")
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == Exit.INTERRUPTED, message
    for noise in ("Traceback", "ERROR", "bug"):
        assert noise not in message
