"""Ctrl-C and kill -9 in the middle of each stage, then the same command again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, STAGES, pipeline, small_config, version_folders, versions
from ranks import processes_of, wait_until

from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_config(tmp_path_factory.mktemp("interrupted"), SAMPLES)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    config = small_config(folder, SAMPLES)
    for stage in ("ingest", "features", "train"):
        done = pipeline(stage, "--config", config)
        assert done.returncode == 0, done.stderr
    return folder / "run"


def start_and_wait_for_work(config: Path, stage: str, *options: str) -> subprocess.Popen[str]:
    """Start a stage; return when its version folder is there, those of killed runs are gone, and the work has begun."""
    folder = config.parent / "run" / stage
    before = set(folder.glob("0*"))

    def has_begun() -> bool:
        unfinished = [path for path in folder.glob("0*") if not (path / "manifest.json").exists()]
        return len(unfinished) == 1 and unfinished[0] not in before

    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", stage, "--config", str(config), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(has_begun, what=f"{stage} has begun")
    return process


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_stage_leaves_nothing_and_the_next_run_finishes(config: Path, stage: str) -> None:
    run_dir = config.parent / "run"
    for number in (signal.SIGKILL, signal.SIGINT):
        # The group, as a terminal or a batch system does; the kill takes Spark's JVM and the ranks along.
        process = start_and_wait_for_work(config, stage)
        os.killpg(process.pid, number)
        _, words = process.communicate(timeout=120)
        assert versions(run_dir)[stage] is None
        if number == signal.SIGINT:
            assert process.returncode == Exit.INTERRUPTED, words
            assert "interrupted" in words
            assert "Traceback" not in words
            assert version_folders(run_dir, [stage]) == []
    done = pipeline(stage, "--config", config)
    assert done.returncode == 0, done.stderr
    assert version_folders(run_dir, [stage]) == [f"{stage}/{versions(run_dir)[stage]}"]
    wait_until(lambda: not processes_of(config), what="all processes are gone")


def test_after_all_interruptions_the_result_is_that_of_an_undisturbed_run(config: Path, undisturbed: Path) -> None:
    run_dir = config.parent / "run"
    paths = sorted(path.relative_to(undisturbed) for path in undisturbed.glob("*/*/*/part-*.parquet"))
    assert paths
    for path in paths:
        stage, _, *rest = path.parts
        here = run_dir / stage / str(versions(run_dir)[stage]) / Path(*rest)
        assert pq.read_table(here).equals(pq.read_table(undisturbed / path))
    models = [next(folder.glob("train/*/hlf/model/weights.pt")).read_bytes() for folder in (run_dir, undisturbed)]
    assert models[0] == models[1]


@pytest.mark.parametrize("stage", ["ingest", "train"])
def test_killing_only_the_driver_takes_spark_and_ranks_along(config: Path, stage: str) -> None:
    process = start_and_wait_for_work(config, stage, "--force")
    driver = psutil.Process(process.pid)
    wait_until(lambda: len(driver.children(recursive=True)) > 1, what="Spark or the ranks have started")
    children = driver.children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    assert pipeline(stage, "--config", config).returncode == 0


@pytest.mark.parametrize("seconds", [0.5, 2.0, 3.5])
def test_ctrl_c_while_spark_starts_or_works_is_quiet(config: Path, seconds: float) -> None:
    process = start_and_wait_for_work(config, "features", "--force")
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, words = process.communicate(timeout=120)
    assert process.returncode == Exit.INTERRUPTED, words
    for noise in ("Traceback", "ERROR", "bug"):
        assert noise not in words
