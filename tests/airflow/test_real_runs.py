"""Airflow runs the real pipeline: a click on Trigger, an empty folder, a backfill."""

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
import pytest
from airflow_home import DAG_ID, AirflowHome
from command_line import SAMPLES, small_config, versions
from ranks import processes_of

from pipeline.runs.lock import locked
from pipeline.runs.model_registry import Registry

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.end_to_end,
    pytest.mark.timeout(1500),
]

NAMES = ("qcd", "ttbar", "wjets")
#: Days of March 2025, and what arrives at noon.
ARRIVALS = {1: [f"{name}_13TeV_PU20_0.root" for name in NAMES], 2: ["ttbar_13TeV_PU20_1.root"]}
TODAY = ["qcd_13TeV_PU20_1.root"]
STAGES = ("ingest", "features", "train", "evaluate", "export", "report")
ALWAYS_SKIPPED = {"simulate", "gridsearch", "track", "clean"}


def arrive(folder: Path) -> None:
    """Put files in a folder: those of March as old as they are, one as of now."""
    folder.mkdir()
    for day, names in ARRIVALS.items():
        then = dt.datetime(2025, 3, day, 12, tzinfo=dt.UTC).timestamp()
        for name in names:
            shutil.copyfile(SAMPLES / name, folder / name)
            os.utime(folder / name, (then, then))
    for name in TODAY:
        shutil.copyfile(SAMPLES / name, folder / name)


def quick_config(folder: Path, incoming: Path) -> Path:
    """One worker, few epochs."""
    folder.mkdir(exist_ok=True)
    train = {
        "workers": 1,
        "algorithm": "sgd",
        "epochs": 2,
        "batch_size": 16,
        "learning_rate": 0.005,
    }
    return small_config(folder, incoming, train=train)


def ingested(run_dir: Path) -> list[set[str]]:
    """Names of the files in each version of the events, the oldest version first."""
    manifests = [
        json.loads(path.read_text()) for path in sorted(run_dir.glob("ingest/0*/manifest.json"))
    ]
    return [
        {Path(file_input["path"]).name for file_input in manifest["inputs"]}
        for manifest in manifests
    ]


class Site:
    """A scheduler in its own processes, and three runs, one after the other.

    Args:
        folder: New.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        arrive(folder / "incoming")
        (folder / "empty").mkdir()
        self.run_dir = folder / "run"
        self.before_backfill: dict[str, str | None] = {}
        self.listening: set[str] = set()
        self.home = AirflowHome(
            folder / "airflow",
            HEP_PIPELINE_CONFIG=str(quick_config(folder, folder / "incoming")),
            AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
            # No runs but those that are asked for.
            AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE="False",
        )

    def run(self) -> None:
        """From the start of the scheduler to its end."""
        standalone = self.home.start_standalone()
        try:
            self._wait_until(
                lambda: bool(
                    self.home.rows(f"select 1 from serialized_dag where dag_id = '{DAG_ID}'")  # noqa: S608
                ),
                seconds=180,
                label="Airflow has read the DAG",
            )
            self._wait_until(self.home.answers, seconds=60, label="its web server answers")
            self.listening = self.home.listening()
            self._click()
            self._end_of("click")
            self.before_backfill = versions(self.run_dir)
            days = ("--from-date", "2025-03-02", "--to-date", "2025-03-02")
            self.home.command("backfill", "create", "--dag-id", DAG_ID, *days)
            second = quick_config(self.folder / "other", self.folder / "empty")
            self.home.trigger("empty", logical_date=None, conf={"config": str(second)})
            self._end_of("empty")
            self._end_of("backfill")
        finally:
            self.home.end(standalone)

    def _click(self) -> None:
        """Trigger as the web page does, while another command holds the run folder.

        The training is killed once.
        """
        with locked(self.run_dir):
            self.home.trigger("click", logical_date=dt.datetime.now(dt.UTC).isoformat(), conf={})
            waits = ("up_for_reschedule", "click")
            self._wait_until(
                lambda: waits in self.states("ingest"), seconds=120, label="ingest waits"
            )
        self._wait_until(
            lambda: any(self.run_dir.glob("train/0*")), seconds=300, label="the training has begun"
        )
        (training,) = [command for command in self._commands() if "train" in command.cmdline()]
        os.kill(training.ppid(), signal.SIGTERM)

    def states(self, task: str) -> list[tuple[Any, ...]]:
        """State of a task and name of its run."""
        return self.home.rows(f"select state, run_id from task_instance where task_id = '{task}'")  # noqa: S608

    def ends(self, run: str) -> dict[str, str]:
        """State of each task of a run that is over."""
        query = f"select task_id, state from task_instance where run_id like '{run}%'"  # noqa: S608
        return dict(self.home.rows(query))

    def _end_of(self, run: str) -> None:
        ended = (
            f"select 1 from dag_run where run_id like '{run}%' and state in ('success', 'failed')"  # noqa: S608
        )
        self._wait_until(lambda: bool(self.home.rows(ended)), seconds=600, label=f"{run} is over")

    def _commands(self) -> list[psutil.Process]:
        """Processes of stages, without those that they start."""
        results = [
            result
            for result in processes_of(self.folder)
            if result.cmdline()[1:3] == ["-m", "pipeline"]
        ]
        pids = {result.pid for result in results}
        return [result for result in results if result.ppid() not in pids]

    def _wait_until(self, condition: Callable[[], bool], *, seconds: float, label: str) -> None:
        """Look seldom: two cores are few for Airflow, Spark and us."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                log = (self.home.folder / "standalone.log").read_text()[-6000:]
                runs = self.home.rows("select run_id, state from dag_run")
                raise AssertionError(
                    f"after {seconds} s still not: {label}; runs: {runs}; Airflow said:\n{log}"
                )
            time.sleep(0.2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    created = Site(tmp_path_factory.mktemp("site"))
    created.run()
    yield created
    assert processes_of(created.folder) == []


def test_a_click_takes_what_came_today(site: Site) -> None:
    # The page fills in now as logical date: of a daily schedule, an interval that ended last
    # midnight.
    assert site.ends("click") == dict.fromkeys(ALWAYS_SKIPPED, "skipped") | dict.fromkeys(
        (*STAGES, "promote", "announce"), "success"
    )
    assert ingested(site.run_dir) == [{*ARRIVALS[1], *ARRIVALS[2], *TODAY}]
    assert Registry(site.run_dir, "hlf").current() is not None


def test_a_task_that_waits_for_another_run_is_started_again(site: Site) -> None:
    (waited,) = [
        log for log in site.home.task_logs("ingest", "click") if "in use by another run" in log
    ]
    assert "UP_FOR_RESCHEDULE" in waited
    assert "ingest: first run" in waited


def test_a_task_that_was_ended_is_tried_again(site: Site) -> None:
    interrupted = [
        log
        for log in site.home.task_logs("train", "click")
        if "interrupted; finished stages stay" in log
    ]
    assert len(interrupted) == 1
    assert "train ended with exit code 130" in interrupted[0]
    assert site.home.rows(
        "select try_number from task_instance where task_id = 'train' and run_id = 'click'"
    ) == [(2,)]


def test_where_no_files_came_a_run_is_skipped_and_not_failed(site: Site) -> None:
    assert set(site.ends("empty").values()) == {"skipped"}
    assert site.home.rows("select state from dag_run where run_id = 'empty'") == [("success",)]


def test_a_backfill_has_what_its_day_had_and_touches_nothing_else(site: Site) -> None:
    assert site.ends("backfill") == dict.fromkeys(
        {*ALWAYS_SKIPPED, "promote", "announce"}, "skipped"
    ) | dict.fromkeys(STAGES, "success")
    own_value = site.run_dir.with_name("run-until") / "2025-03-03T000000Z"
    assert ingested(own_value) == [{*ARRIVALS[1], *ARRIVALS[2]}]
    assert None not in versions(own_value).values()
    assert not (own_value / "registry").exists()
    assert versions(site.run_dir) == site.before_backfill


def test_a_promotion_announces_the_registry_of_the_run_folder(site: Site) -> None:
    query = "select uri, asset_event.extra from asset_event join asset on asset.id = asset_id"

    ((uri, details),) = site.home.rows(query)
    model = Registry(site.run_dir, "hlf").current()
    assert model is not None
    assert uri == (site.run_dir / "registry").as_uri()
    assert json.loads(details)["models"] == {"hlf": model.name}


def test_the_web_page_is_of_this_machine_only(site: Site) -> None:
    assert site.listening == {"127.0.0.1"}
