"""The pipeline as an Airflow DAG (Airflow 3): one task a stage, each the same command that a person types.

Airflow lives in an environment of its own (`make airflow-setup`), so this file imports nothing of the pipeline. Nothing
travels between the tasks: each finds what the one before it left in the run folder. Environment variables of Airflow's
processes say what to run; all have defaults:

    HEP_PIPELINE_DIR            folder that the commands run in; default: the checkout that holds this file
    HEP_PIPELINE_PYTHON         interpreter that has the pipeline installed; default: .venv/bin/python in that folder
    HEP_PIPELINE_CONFIG         a YAML file, or the name of a shipped config; default: demo
    HEP_PIPELINE_SCHEDULE       cron expression or preset, in UTC; default: @daily; "none" for runs by hand only
    HEP_PIPELINE_START          first day of the schedule, YYYY-MM-DD; default: long ago, but nothing is caught up
    HEP_PIPELINE_TIMEOUT_HOURS  a task that takes longer is ended and tried again; default: 12
    HEP_PIPELINE_RETRY_MINUTES  until a task is tried again; default: 5
    HEP_PIPELINE_TRACK          "yes": log each training to MLflow, see `track`; default: no
    HEP_PIPELINE_KEEP           number of versions of each stage to keep at the end; default: all

A run takes the files that were there at the end of its data interval. All tasks are idempotent: a stage that is up to
date does nothing, one that was killed finishes the work. So there is no sensor for new files: a night without any costs
a few seconds a stage, and finishes what an earlier night could not.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import Any, Final

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import DAG, BaseOperator, CronDataIntervalTimetable, chain
from airflow.sdk.exceptions import AirflowException, AirflowFailException

COMMANDS: Final[dict[str, list[str]]] = {
    "ingest": [],
    "features": [],
    "gridsearch": ["--if-wanted"],
    "train": [],
    "evaluate": [],
    "export": [],
    "promote": [],
    "report": [],
}
if os.environ.get("HEP_PIPELINE_TRACK", "no") != "no":
    COMMANDS["track"] = []
if os.environ.get("HEP_PIPELINE_KEEP"):
    COMMANDS["clean"] = ["--keep", os.environ["HEP_PIPELINE_KEEP"]]
FIRST, LAST = "ingest", [*COMMANDS][-1]
#: Exit codes that another try would not change; 1 (input or machine) and ends by signals may pass.
PERMANENT: Final = {2: "the command line or the config is wrong", 3: "this is a bug of the pipeline"}
FINISHED: Final = {"success", "failed", "upstream_failed", "skipped", "removed"}
SECONDS_BETWEEN_LOOKS: Final = 5.0
DIR: Final = Path(os.environ.get("HEP_PIPELINE_DIR", Path(__file__).parents[2])).resolve()


class StageTask(BaseOperator):
    """A command of the pipeline in its own interpreter, without a shell: its words are never read as code."""

    def __init__(self, *, arguments: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.arguments = arguments
        self._hook: SubprocessHook | None = None

    def execute(self, context: Any) -> None:
        """Run the command.

        Raises:
            AirflowFailException: It failed, and would fail again.
            AirflowException: It failed; another try may help.
        """
        if self.task_id == FIRST:
            self._wait_for_other_runs(context)
        # A run by hand may have no interval.
        until = context.get("data_interval_end") or context["dag_run"].run_after
        config = os.environ.get("HEP_PIPELINE_CONFIG", "demo")
        words = [_python(), "-m", "pipeline", self.task_id, *self.arguments, "--config", config]
        # For all of them: later stages would call what came since then a reason to run ingest again.
        words += ["--set", f"ingest.until={until.isoformat()}"]
        self._hook = SubprocessHook()
        try:
            code = self._hook.run_command(words, env=_environment(), cwd=str(DIR)).exit_code
        except OSError as cause:
            raise AirflowFailException(f"{words[0]} cannot be started in {DIR}: {cause}") from cause
        except KeyboardInterrupt:
            self.on_kill()
            raise
        if code in PERMANENT:
            raise AirflowFailException(f"{self.task_id} ended with exit code {code}: {PERMANENT[code]}")
        if code != 0:
            raise AirflowException(f"{self.task_id} ended with exit code {code}; its last lines above say why")

    def on_kill(self) -> None:
        """End the command as Ctrl-C does: it leaves nothing unfinished. It is in a session of its own."""
        process = self._hook.sub_process if self._hook else None
        if self._hook is not None and process is not None and process.poll() is None:
            self._hook.send_sigterm()

    def _wait_for_other_runs(self, context: Any) -> None:
        """Start only when no other run is between its first and its last stage: they share the run folder.

        `max_active_runs` does not do that: runs of a backfill count apart from those of the schedule, and up to ten of
        them are active at once.
        """
        said: list[str] = []
        while others := _under_way(context["ti"]):
            if others != said:
                self.log.info("waiting for the end of %s; if that was given up, mark it failed", ", ".join(others))
                said = others
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _under_way(task_instance: Any) -> list[str]:
    """Names of other runs that have begun and not ended. Of those that begin, only one at a time gets here."""
    states = task_instance.get_task_states(dag_id=task_instance.dag_id, task_ids=[FIRST, LAST])
    return sorted(
        run
        for run, tasks in states.items()
        # Runs of before LAST was added to the DAG do not have it.
        if run != task_instance.run_id and tasks.get(FIRST) == "success" and tasks.get(LAST, "removed") not in FINISHED
    )


def _python() -> str:
    return os.environ.get("HEP_PIPELINE_PYTHON", str(DIR / ".venv" / "bin" / "python"))


def _environment() -> dict[str, str]:
    """Ours without Airflow's settings (some are secret) and packages; programs beside the interpreter are found."""
    foreign = ("AIRFLOW", "_AIRFLOW", "__AIRFLOW", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = os.environ.get("PATH", os.defpath)
    return {**kept, "PATH": os.pathsep.join([str(Path(_python()).parent), path])}


def _number(name: str, default: float) -> float:
    return float(os.environ.get(name, default))


def _schedule() -> CronDataIntervalTimetable | None:
    """Intervals that follow each other, whatever the site's settings make of a bare cron expression."""
    text = os.environ.get("HEP_PIPELINE_SCHEDULE", "@daily")
    return None if text == "none" else CronDataIntervalTimetable(text, timezone="UTC")


with DAG(
    dag_id="hep_pipeline",
    description="ROOT files to trained, evaluated and promoted trigger classifiers",
    doc_md=__doc__,
    schedule=_schedule(),
    start_date=dt.datetime.fromisoformat(os.environ.get("HEP_PIPELINE_START", "2000-01-01")).replace(tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    max_active_tasks=1,
    default_args={
        "retries": 2,
        "retry_delay": dt.timedelta(minutes=_number("HEP_PIPELINE_RETRY_MINUTES", 5)),
        "execution_timeout": dt.timedelta(hours=_number("HEP_PIPELINE_TIMEOUT_HOURS", 12)),
        # Of all runs together.
        "max_active_tis_per_dag": 1,
    },
    tags=["hep"],
) as dag:
    chain(*(StageTask(task_id=name, arguments=arguments) for name, arguments in COMMANDS.items()))
