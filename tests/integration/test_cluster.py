"""Spark with executors in processes of their own: code is shipped; a killed one costs a retry, not the result."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, pipeline, small_config, versions
from ranks import wait_until

from features.columns import PARTICLE_COLUMNS
from features.schema import SPLITS

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

CLUSTER = "local-cluster[2,1,1024]"
#: Many small pieces, so that there is work left when an executor dies.
PIECES = {"entries_per_task": 15}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    config = small_config(folder, SAMPLES, ingest=PIECES)
    for stage in ("ingest", "features"):
        done = pipeline(stage, "--config", config)
        assert done.returncode == 0, done.stderr
    return folder / "run"


def current(run_dir: Path, stage: str) -> Path:
    return run_dir / stage / str(versions(run_dir)[stage])


def executors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def run_and_kill_an_executor(config: Path, stage: str, first_result: str) -> str:
    """Run a stage; once the first file of the pattern is there, kill one executor."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", stage, "--config", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=config.parent,
    )
    folder = config.parent / "run" / stage
    # Executors compile the kernels first: their code lies where this application put it.
    wait_until(
        lambda: bool(list(folder.glob(first_result))) or process.poll() is not None,
        what=f"{stage} has its first part",
        seconds=300,
    )
    assert process.poll() is None, process.communicate()[1]
    victims = executors(process)
    assert len(victims) == 2
    victims[0].kill()
    _, words = process.communicate(timeout=200)
    assert process.returncode == 0, words
    return words


def rows(folder: Path) -> dict[str, list[str]]:
    return {
        str(path.relative_to(folder)): [
            str(row) for row in pq.read_table(path).drop(list(PARTICLE_COLUMNS)).to_pylist()
        ]
        for split in SPLITS
        for path in sorted((folder / split).glob("*.parquet"))
    }


def test_a_killed_executor_costs_a_retry_not_the_result(undisturbed: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, SAMPLES, ingest=PIECES, spark={"master": CLUSTER})
    run_and_kill_an_executor(config, "ingest", "*/events/*.parquet")
    there, here = current(undisturbed, "ingest"), current(tmp_path / "run", "ingest")
    expected = {path.name: path for path in (there / "events").iterdir()}
    assert expected.keys() == {path.name for path in (here / "events").iterdir()}
    assert len(expected) == 18
    for name, path in expected.items():
        assert pq.read_table(path).equals(pq.read_table(here / "events" / name))
    run_and_kill_an_executor(config, "features", "kernels/*/*.arrow")
    there, here = current(undisturbed, "features"), current(tmp_path / "run", "features")
    names = [{str(path.relative_to(folder)) for path in folder.rglob("*")} for folder in (here, there)]
    assert names[0] == names[1]
    assert rows(here) == rows(there)
    scalers = [json.loads((folder / "scaler.json").read_text()) for folder in (here, there)]
    assert scalers[0]["hlf"] == scalers[1]["hlf"]


def test_an_executor_killed_while_rows_are_mixed_duplicates_none(undisturbed: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, SAMPLES, ingest=PIECES, spark={"master": CLUSTER})
    # What a cluster ingests is the same (the test above).
    shutil.copytree(undisturbed / "ingest", tmp_path / "run" / "ingest")
    run_and_kill_an_executor(config, "features", "*/train/*.parquet")
    assert rows(current(tmp_path / "run", "features")) == rows(current(undisturbed, "features"))
