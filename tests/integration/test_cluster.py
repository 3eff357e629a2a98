"""Spark with executors in processes of their own: code is shipped; a killed one costs a retry, not
the result."""

from __future__ import annotations

import subprocess
import sys
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

#: Many small tasks, so that there is work left when an executor dies.
SMALL_TASKS = {"entries_per_task": 15}
#: An executor is killed when the first file of each is there: while files are read, while kernels
#: run, and while rows are mixed.
FIRST_FILES = (
    "ingest/*/events/*.parquet",
    "features/kernels/*/*.arrow",
    "features/*/train/*.parquet",
)


@pytest.fixture(scope="module")
def undisturbed(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a run on the lent Spark, of which no executor is killed."""
    folder = tmp_path_factory.mktemp("local")
    config = small_config(folder, SAMPLES, ingest=SMALL_TASKS)
    for stage in ("ingest", "features"):
        result = command(provider, stage, "--config", config)
        assert result.exit_code == 0, result.stderr
    return folder / "run"


def executors_of(driver: subprocess.Popen[str]) -> list[psutil.Process]:
    executors = []
    for child in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                executors.append(child)
    return executors


def run_and_kill_executors(config: Path, run_dir: Path) -> None:
    """Ingest and make features; kill an executor at the first file of each pattern."""
    arguments = ["run", "--until", "features", "--config", str(config)]
    driver = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=config.parent,
    )

    def wait_for_file(pattern: str) -> None:
        def is_there() -> bool:
            return driver.poll() is not None or any(run_dir.glob(pattern))

        # Executors compile the kernels first: their code lies where this application put it.
        wait_until(is_there, label=f"{pattern} is there", seconds=300)
        assert driver.poll() is None, driver.communicate()[1]

    for pattern in FIRST_FILES:
        wait_for_file(pattern)
        executors = executors_of(driver)
        # A killed one is started again, which takes seconds; the other one continues.
        assert executors
        if pattern == FIRST_FILES[0]:
            assert len(executors) == 2
        executors[0].kill()
    _, errors = driver.communicate(timeout=200)
    assert driver.returncode == 0, errors


def test_killed_executors_cost_retries_and_neither_lose_nor_duplicate_rows(
    undisturbed: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    config = small_config(tmp_path, SAMPLES, ingest=SMALL_TASKS, spark=CLUSTER)

    run_and_kill_executors(config, run_dir)

    for stage in ("ingest", "features"):
        version = version_of(run_dir, stage)
        assert_same_version(version, version_of(undisturbed, stage), stage, tests=[])
    assert len(list(undisturbed.glob("ingest/*/events/*.parquet"))) == 18
