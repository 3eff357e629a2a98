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
def test_spark_and_ranks_end_with_a_killed_driver(
    finished_run: FinishedRun, provider: SparkProvider, stage: str
) -> None:
    finished_run.restore()
    process = finished_run.start_and_wait_for_work(stage, "--force")
    driver = psutil.Process(process.pid)
    wait_until(lambda: len(driver.children(recursive=True)) > 1, label="Spark or ranks run")
    children = driver.children(recursive=True)

    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)

    _, alive = psutil.wait_procs(children, timeout=120)
    assert alive == []
    result = command(provider, stage, "--config", finished_run.config)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("program", ["java", "pyspark.daemon"])
def test_ctrl_c_while_spark_starts_or_works_is_quiet(
    finished_run: FinishedRun, program: str
) -> None:
    finished_run.restore()
    process = finished_run.start_and_wait_for_work("features", "--force")
    wait_until(lambda: has_started(process.pid, program), label=f"{program} has started")

    os.killpg(process.pid, signal.SIGINT)
    _, output = process.communicate(timeout=120)

    assert process.returncode == Exit.INTERRUPTED, output
    for noise in ("Traceback", "ERROR", "bug"):
        assert noise not in output
