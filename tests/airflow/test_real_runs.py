"""Airflow runs the real pipeline over the bundled sample: one interval by hand, and a backfill by a real scheduler."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from airflow_home import DAG_ID, AirflowHome
from command_line import SAMPLES, pipeline, small_config, versions
from ranks import processes_of

from pipeline.runs.model_registry import Registry

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.end_to_end, pytest.mark.timeout(1500)]

NAMES = ("qcd", "ttbar", "wjets")
#: Days of March 2025, and what arrives at noon.
ARRIVALS = {
    1: [f"{name}_13TeV_PU20_0.root" for name in NAMES],
    2: ["ttbar_13TeV_PU20_1.root"],
    3: ["qcd_13TeV_PU20_1.root"],
    4: ["wjets_13TeV_PU20_1.root"],
}
STAGES = ("ingest", "features", "gridsearch", "train", "evaluate", "export", "promote", "report")


def arrive(folder: Path, day: int) -> None:
    """Put the files of a day in a folder, as old as they are."""
    folder.mkdir(exist_ok=True)
    then = dt.datetime(2025, 3, day, 12, tzinfo=dt.UTC).timestamp()
    for name in ARRIVALS[day]:
        shutil.copyfile(SAMPLES / name, folder / name)
        os.utime(folder / name, (then, then))


def quick_config(folder: Path, incoming: Path) -> Path:
    """One worker, few epochs."""
    folder.mkdir(exist_ok=True)
    train = {"workers": 1, "algorithm": "sgd", "epochs": 2, "batch_size": 16, "learning_rate": 0.005}
    return small_config(folder, incoming, train=train)


def ingested(run_dir: Path) -> list[set[str]]:
    """Names of the files in each version of the events, the oldest version first."""
    manifests = [json.loads(path.read_text()) for path in sorted(run_dir.glob("ingest/0*/manifest.json"))]
    return [{Path(each["path"]).name for each in manifest["inputs"]} for manifest in manifests]


def state(run_dir: Path) -> dict[str, Any]:
    """Everything in use but times and names of versions."""
    now = {stage: run_dir / stage / str(version) for stage, version in versions(run_dir).items()}
    events = pq.read_table(now["ingest"] / "events").sort_by([("file_uuid", "ascending"), ("entry", "ascending")])
    return {
        "events": events,
        "features": [pq.read_table(path) for path in sorted(now["features"].glob("*/part-*.parquet"))],
        "trained": (now["train"] / "hlf" / "model" / "weights.pt").read_bytes(),
        "metrics": json.loads((now["evaluate"] / "metrics.json").read_text()),
        "exported": (now["export"] / "hlf" / "model.onnx").stat().st_size,
    }


def test_one_interval_by_hand_and_again(tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    for day in ARRIVALS:
        arrive(incoming, day)
    config = quick_config(tmp_path, incoming)
    home = AirflowHome(tmp_path / "airflow", HEP_PIPELINE_CONFIG=str(config))
    home.command("db", "migrate")
    # The last interval that had ended by then.
    said = home.command("dags", "test", DAG_ID, "2025-03-05", seconds=400)
    assert "gridsearch: not wanted" in said
    assert "hlf: promoted: there was none in use" in said
    made = versions(tmp_path / "run")
    assert None not in made.values()
    assert ingested(tmp_path / "run") == [{name for names in ARRIVALS.values() for name in names}]

    said = home.command("dags", "test", DAG_ID, "2025-03-05", seconds=400)
    assert versions(tmp_path / "run") == made
    assert [stage for stage in STAGES if f"{stage}: up to date" in said] == list(made)
    assert "hlf: not promoted: it is in use already" in said


class Backfill:
    """A scheduler in its own processes that runs the DAG for three days.

    Args:
        folder: New.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.incoming = folder / "incoming"
        for day in ARRIVALS:
            arrive(self.incoming, day)
        self.run_dir = folder / "run"
        # No runs but those of the backfill: the schedule begins in a far future.
        self.home = AirflowHome(
            folder / "airflow",
            HEP_PIPELINE_CONFIG=str(quick_config(folder, self.incoming)),
            HEP_PIPELINE_START="2100-01-01",
            AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
        )

    def run(self) -> None:
        """From the start of the scheduler to its end; the first training is killed once, as the supervisor does it."""
        standalone = self.home.start_standalone()
        try:
            self._wait_until(
                lambda: bool(self.home.rows(f"select 1 from serialized_dag where dag_id = '{DAG_ID}'")),  # noqa: S608
                seconds=180,
                what="Airflow has read the DAG",
            )
            days = ("--from-date", "2025-03-01", "--to-date", "2025-03-03")
            self.home.command("backfill", "create", "--dag-id", DAG_ID, *days)
            self._wait_until(lambda: any(self.run_dir.glob("train/0*")), seconds=300, what="the training has begun")
            (training,) = [each for each in self._commands() if "train" in each.cmdline()]
            os.kill(training.ppid(), signal.SIGTERM)
            self._wait_until(self._is_over, seconds=900, what="all three runs are over")
        finally:
            self.home.end(standalone)

    def runs(self) -> list[tuple[Any, ...]]:
        """First moment of the interval and state of each run."""
        return self.home.rows("select substr(logical_date, 1, 10), state from dag_run order by logical_date")

    def tries(self, task: str) -> list[tuple[Any, ...]]:
        """How often a task was tried, in the order of the runs."""
        query = "select try_number from task_instance join dag_run using (dag_id, run_id) where task_id = '{}'"
        return self.home.rows(query.format(task) + " order by logical_date")

    def _is_over(self) -> bool:
        found = self.runs()
        return len(found) == 3 and all(each in {"success", "failed"} for _, each in found)

    def _commands(self) -> list[psutil.Process]:
        """Processes of stages, without those that they start."""
        found = [each for each in processes_of(self.folder) if each.cmdline()[1:3] == ["-m", "pipeline"]]
        pids = {each.pid for each in found}
        return [each for each in found if each.ppid() not in pids]

    def _wait_until(self, condition: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Look seldom: two cores are few for Airflow, Spark and us."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                log = (self.home.folder / "standalone.log").read_text()[-6000:]
                raise AssertionError(f"after {seconds} s still not: {what}; runs: {self.runs()}; Airflow said:\n{log}")
            time.sleep(0.2)


@pytest.fixture(scope="module")
def backfill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backfill]:
    made = Backfill(tmp_path_factory.mktemp("backfill"))
    made.run()
    yield made
    assert processes_of(made.folder) == []


def test_each_day_of_a_backfill_has_what_that_day_had(backfill: Backfill) -> None:
    assert backfill.runs() == [(f"2025-03-0{day}", "success") for day in (1, 2, 3)]
    days = [set(ARRIVALS[1]), {*ARRIVALS[1], *ARRIVALS[2]}, {*ARRIVALS[1], *ARRIVALS[2], *ARRIVALS[3]}]
    assert ingested(backfill.run_dir) == days
    for stage in ("features", "train", "evaluate", "export", "report"):
        assert len(list(backfill.run_dir.glob(f"{stage}/0*"))) == 3, stage


def test_runs_did_not_mix_although_all_were_active(backfill: Backfill) -> None:
    first = [log for log in backfill.home.task_logs("ingest") if "waiting for the end of" in log]
    assert first
    finished = [
        (event["time"], event["stage"], event["version"])
        for path in sorted(backfill.run_dir.glob("logs/*.jsonl"))
        for event in map(json.loads, path.read_text().splitlines())
        if event["event"] == "stage finished"
    ]
    stages = [stage for stage in STAGES if stage not in {"gridsearch", "promote"}]
    assert [stage for _, stage, _ in sorted(finished)] == stages * 3


def test_a_task_that_was_ended_is_tried_again(backfill: Backfill) -> None:
    assert [each for (each,) in backfill.tries("train")] == [2, 1, 1]
    interrupted = [log for log in backfill.home.task_logs("train") if "interrupted; finished stages stay" in log]
    assert len(interrupted) == 1
    assert "train ended with exit code 130" in interrupted[0]


def test_the_end_is_that_of_one_run_by_hand(backfill: Backfill, tmp_path: Path) -> None:
    config = quick_config(tmp_path, backfill.incoming)
    for name in ARRIVALS[4]:
        (backfill.incoming / name).unlink()
    done = pipeline("run", "--config", config)
    assert done.returncode == 0, done.stderr
    found, expected = state(backfill.run_dir), state(tmp_path / "run")
    for key, value in expected.items():
        assert found[key] == value, key
    assert Registry(backfill.run_dir, "hlf").current() is not None
