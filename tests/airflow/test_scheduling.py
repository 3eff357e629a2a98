"""A scheduler with a stand-in for the pipeline: a backfill of several nights that share a pool of one
slot, while the API server of Airflow starts and answers late."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from airflow_home import DAG_ID, AirflowHome, write_stand_in
from ranks import processes_of

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2400)]

#: Ends of the nights of the backfill, as names of run folders.
NIGHTS: Final = ("2025-03-02T000000Z", "2025-03-03T000000Z")
STAGES: Final = ("ingest", "features", "gridsearch", "train", "evaluate", "export", "report")
SKIPPED: Final = {"simulate", "promote", "announce", "track", "clean"}
#: How long the API server is silent [s]. Without the settings of the page, Airflow gives a task up
#: after about 30 s.
SILENT_SECONDS: Final = 45
#: A command of a stage takes so long [s].
COMMAND_SECONDS: Final = 1.0


#: It records when each command began and ended.
STAND_IN: Final = f"""
begin = time.time()
time.sleep({COMMAND_SECONDS})
with open(folder / "calls.jsonl", "a") as file:
    call = {{"words": [command, *options], "begin": begin, "end": time.time()}}
    print(json.dumps(call), file=file)
"""


class Nights:
    """A backfill of nights that may run at the same time.

    Args:
        folder: New.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.silent_seconds = 0.0
        self.home = AirflowHome(
            folder / "airflow",
            HEP_PIPELINE_PYTHON=str(write_stand_in(folder, STAND_IN)),
            HEP_PIPELINE_CPU_POOL="one_slot",
            HEP_PIPELINE_GPU_POOL="one_slot",
            AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
            AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE="False",
        )

    def run(self) -> None:
        """From the creation of the backfill to the end of its runs.

        It is created before Airflow starts: SQLite has one writer. So the first task starts before
        the API server does.
        """
        self.home.command("db", "migrate")
        self.home.command("dags", "reserialize")
        self.home.command("pools", "set", "one_slot", "1", "one command at a time")
        days = ("--from-date", "2025-03-01", "--to-date", "2025-03-02")
        at_once = ("--max-active-runs", str(len(NIGHTS)))
        self.home.command("backfill", "create", "--dag-id", DAG_ID, *days, *at_once)
        standalone = self.home.start_standalone()
        try:
            self._wait_until_rows(
                "select 1 from task_instance where task_id = 'ingest' and state = 'success'", 600
            )
            self._silence_server()
            self._wait_until_rows(
                "select 1 where 0 = (select count(*) from dag_run "
                "where state not in ('success', 'failed'))",
                1200,
            )
        finally:
            self.home.end(standalone)

    def _silence_server(self) -> None:
        """Stop the API server for a while; then it answers what came meanwhile."""
        processes = self.home.server_processes()
        assert processes
        started = time.monotonic()
        try:
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            time.sleep(SILENT_SECONDS)
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)
        self.silent_seconds = time.monotonic() - started

    def _wait_until_rows(self, query: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.home.rows(query):
            if time.monotonic() > deadline:
                log = (self.home.folder / "standalone.log").read_text()[-6000:]
                states = self.home.rows("select task_id, state, try_number from task_instance")
                raise AssertionError(f"no row of {query}; {states}; Airflow said:\n{log}")
            time.sleep(0.5)

    def calls(self) -> list[dict[str, Any]]:
        """The commands in the order of their begin."""
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        calls: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return sorted(calls, key=lambda call: call["begin"])


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    created = Nights(tmp_path_factory.mktemp("nights"))
    created.run()
    yield created
    assert processes_of(created.folder) == []


def night_of(call: dict[str, Any]) -> str:
    """The name of the run folder of a command."""
    (run_dir,) = [word for word in call["words"] if word.startswith("run_dir=")]
    return Path(run_dir).name


def test_each_night_of_a_backfill_runs_each_stage_once(nights: Nights) -> None:
    calls = nights.calls()

    for night in NIGHTS:
        stages = [call["words"][0] for call in calls if night_of(call) == night]
        assert tuple(stages) == STAGES
    states = set(nights.home.rows("select task_id, state from task_instance"))
    assert states == {(stage, "success") for stage in STAGES} | {
        (task, "skipped") for task in SKIPPED
    }
    assert nights.home.rows("select distinct state from dag_run") == [("success",)]


def test_nights_that_share_a_pool_of_one_slot_run_one_command_at_a_time(nights: Nights) -> None:
    calls = nights.calls()

    for earlier, later in itertools.pairwise(calls):
        assert earlier["end"] <= later["begin"]
    # The nights took turns: else the pool would not have kept them apart.
    first_of_last_night = min(call["begin"] for call in calls if night_of(call) == NIGHTS[-1])
    last_of_first_night = max(call["begin"] for call in calls if night_of(call) == NIGHTS[0])
    assert first_of_last_night < last_of_first_night


def test_a_late_api_server_takes_no_try(nights: Nights) -> None:
    assert nights.silent_seconds >= SILENT_SECONDS
    tries = nights.home.rows(
        "select distinct try_number from task_instance where state = 'success'"
    )
    assert tries == [(1,)]
