"""Spark with executors in processes of their own: code is shipped; a killed one costs a retry, not
the result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from command_line import CLUSTER, SAMPLES, small_config, version_of
from finished_run import assert_same_version
from lent_spark import command
from ranks import wait_until

from pipeline.machine.spark_session import SparkProvider

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

#: Many small pieces, so that there is work left when an executor dies.
PIECES = {"entries_per_task": 15}


@pytest.fixture(scope="module")
def undisturbed(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    config = small_config(folder, SAMPLES, ingest=PIECES)
    for stage in ("ingest", "features"):
        result = command(provider, stage, "--config", config)
        assert result.exit_code == 0, result.stderr
    return folder / "run"


def executors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    results = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                results.append(child)
    return results


def run_and_kill_executors(config: Path, results: Sequence[str]) -> None:
    """Ingest and make features; each time that a first file of a pattern is there, kill one of its executors."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", "--until", "features", "--config", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=config.parent,
    )
    for result in results:
        # Executors compile the kernels first: their code lies where this application put it.
        wait_until(
            lambda result=result: (
                any((config.parent / "run").glob(result)) or process.poll() is not None
            ),  # type: ignore[misc]
            label=f"{result} has its first part",
            seconds=300,
        )
        assert process.poll() is None, process.communicate()[1]
        # A killed one is started again, which takes seconds; the other one continues.
        victims = executors(process)
        assert len(victims) == 2 or (victims and result != results[0])
        victims[0].kill()
    _, message = process.communicate(timeout=200)
    assert process.returncode == 0, message


def test_killed_executors_cost_a_retry_not_the_result_and_duplicate_no_row(
    undisturbed: Path, tmp_path: Path
) -> None:
    config = small_config(tmp_path, SAMPLES, ingest=PIECES, spark=CLUSTER)
    # While files are read, while kernels run, and while rows are mixed.
    run_and_kill_executors(
        config,
        ["ingest/*/events/*.parquet", "features/kernels/*/*.arrow", "features/*/train/*.parquet"],
    )
    for stage in ("ingest", "features"):
        assert_same_version(
            version_of(tmp_path / "run", stage), version_of(undisturbed, stage), stage, tests=[]
        )
    assert len(list(undisturbed.glob("ingest/*/events/*.parquet"))) == 18
