"""The pipeline as an Airflow DAG (Airflow 3): one task for each command that a person types.

Airflow lives in an environment of its own (`make airflow-setup`), so this file imports nothing of
the pipeline. The tasks exchange no data: each finds in the run folder what the earlier ones left
there.

**Which files.** A run of the schedule, or by hand, takes all files that are there. A backfill, or a
run by hand with `until`, takes the files from before its end. It works in a run folder of its own
(`<run_dir>-until/<end>`), and neither simulates, promotes nor tracks. So no way to start a run
removes anything from the events that the run folder has.

**Colours.** Skipped: there was nothing to do, or no files have come. Up for reschedule: it waits
for files, or for another run that holds the run folder, and occupies no slot. Failed: the last
lines of the log say why.

The form of the Trigger button asks for the parameters. Environment variables of Airflow's processes
give the rest; all have defaults, and none changes the graph:

    HEP_PIPELINE_DIR        folder that the commands run in; default: the checkout of this file
    HEP_PIPELINE_PYTHON     interpreter that has the pipeline; default: .venv/bin/python there
    HEP_PIPELINE_CONFIG     default of the parameter `config`; default: demo
    HEP_PIPELINE_TRACK      default of the parameter `track`, yes or no; default: no
    HEP_PIPELINE_KEEP       default of the parameter `keep`; default: none, nothing is removed
    HEP_PIPELINE_SCHEDULE   cron expression or preset in UTC, or "none"; default: @daily
    HEP_PIPELINE_CPU_POOL   existing pool of all tasks but the training; default: default_pool
    HEP_PIPELINE_GPU_POOL   existing pool of the training; default: default_pool

A cluster policy of Airflow (`airflow_local_settings.py`) changes retries, timeouts or the owner for
a site.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import (
    DAG,
    Asset,
    AssetAlias,
    BaseSensorOperator,
    CronDataIntervalTimetable,
    Param,
    chain,
)
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException


class Task(NamedTuple):
    """A command of the pipeline as a task."""

    name: str
    """The command, and the name of the task."""
    options: tuple[str, ...]
    """Its options on the command line."""
    doc: str
    """Its description on the page of Airflow."""


#: The tasks in their order. With `--exit-code` a command ends with 99 if there was nothing to do.
TASKS: Final = (
    Task(
        "simulate",
        ("--if-wanted", "--exit-code"),
        "Makes events; skipped in a backfill, and unless the config names processes.",
    ),
    Task("ingest", ("--exit-code",), "Waits for files, then reads those that are new or changed."),
    Task("features", ("--exit-code",), "Computes, splits and mixes the features."),
    Task(
        "gridsearch",
        ("--if-wanted", "--exit-code"),
        "Tries perceptrons by cross-validation; skipped unless `model.hlf.from_gridsearch` is set.",
    ),
    Task("train", ("--exit-code",), "Trains the networks, or continues a training."),
    Task("evaluate", ("--exit-code",), "Predicts the test split: metrics and plots."),
    Task("export", ("--exit-code",), "Writes the networks as ONNX, checked."),
    Task("report", ("--exit-code",), "Writes one HTML page; the log says where."),
    Task("promote", ("--exit-code",), "Puts a network in use if it is better on the same events."),
    Task("track", (), "Logs the networks to MLflow; skipped unless `track` is set."),
    Task("clean", (), "Removes old versions that nothing needs; skipped without `keep`."),
)
#: Announces that a model was promoted, for DAGs that use it.
MODEL_IN_USE: Final = AssetAlias("hep_model_in_use")
#: Tasks that a parameter of their name can switch off, and that runs with an end skip.
OPTIONAL: Final = {"simulate", "promote", "track"}
#: Exit codes that another try would not change; 1 (input or machine) and ends by signals may pass.
PERMANENT: Final = {
    2: "the command line or the config is wrong",
    3: "this is a bug of the pipeline",
}
#: Exit codes that are no failures: there was nothing to do; another run holds the run folder; the
#: input does not exist yet.
IDLE, IN_USE, NOT_THERE = 99, 75, 66
SECONDS_PER_HOUR: Final = 3600
#: The folder that the commands run in.
DIR: Final = Path(os.environ.get("HEP_PIPELINE_DIR", Path(__file__).parents[2])).resolve()


class StageTask(BaseSensorOperator):
    """A command of the pipeline in its own interpreter; no shell reads its words.

    It is a sensor, a task that Airflow asks again and again whether it is done. Where the command
    must wait, Airflow starts it again later, and nothing is occupied meanwhile.
    """

    def __init__(self, *, task: Task, **options: Any) -> None:
        """Make the task; `options` are those of each Airflow task."""
        super().__init__(task_id=task.name, mode="reschedule", doc_md=task.doc, **options)
        self.task = task
        self._hook: SubprocessHook | None = None
        """The running command; None before it starts."""

    def poke(self, context: Any) -> bool:
        """Run the command; returns True if it is done, and False if it must be started again later.

        A promotion also announces the asset of the model in use, for other DAGs.

        Args:
            context: What Airflow knows of this run: parameters, dates, assets.

        Raises:
            AirflowSkipException: There was nothing to do.
            AirflowFailException: It failed, and would fail again.
            AirflowException: It failed; another try may help.
        """
        params = context["params"]
        until = end_of_files(context)
        self._skip_if_off(params, until)
        exit_code = self._run(self._command(params, until))
        if self._must_wait(exit_code, params):
            return False
        self._raise_failure(exit_code)
        if self.task.name == "promote":
            events = context["outlet_events"][MODEL_IN_USE]
            run_dir = run_dir_of(params["config"])
            details = {"config": params["config"], "run_dir": str(run_dir)}
            events.add(Asset((run_dir / "registry").as_uri()), extra=details)
        return True

    def on_kill(self) -> None:
        """End the command as Ctrl-C does: it leaves nothing unfinished.

        The command is in a session of its own, so a signal to Airflow's process does not reach it.
        """
        if self._hook is None:
            return
        process = self._hook.sub_process
        if process is not None and process.poll() is None:
            self._hook.send_sigterm()

    def _skip_if_off(self, params: Any, until: dt.datetime | None) -> None:
        """Skip an optional task whose parameter is off, or whose run has an end for its files.

        Raises:
            AirflowSkipException: The task is skipped.
        """
        name = self.task.name
        if name in OPTIONAL and until is not None:
            raise AirflowSkipException(f"{name}: this run is of {until}")
        # `simulate` has no parameter, so it is never off.
        if name in OPTIONAL and not params.get(name, True):
            raise AirflowSkipException(f"{name}: the parameter `{name}` is off")
        if name == "clean" and params["keep"] is None:
            raise AirflowSkipException("clean: the parameter `keep` is not given")

    def _command(self, params: Any, until: dt.datetime | None) -> list[str]:
        """Return the command line as a list of words.

        With `until` the command takes only files from before this time. It then works in a run
        folder of its own, named by the time, and without object storage.
        """
        command = [python(), "-m", "pipeline", self.task.name, *self.task.options]
        if self.task.name == "clean":
            command += ["--keep", str(params["keep"])]
        command += ["--config", params["config"]]
        if until is not None:
            run_dir = run_dir_of(params["config"])
            end = until.strftime("%Y-%m-%dT%H%M%SZ")
            command += ["--set", f"run_dir={run_dir.with_name(f'{run_dir.name}-until') / end}"]
            # A storage belongs to one run folder.
            command += ["--set", "storage=null"]
            command += ["--set", f"ingest.until={until.isoformat()}"]
        return command

    def _run(self, command: list[str]) -> int:
        """Run a command, whose lines are logged; returns its exit code.

        Raises:
            AirflowFailException: The interpreter or the folder does not exist.
        """
        self._hook = SubprocessHook()
        try:
            result = self._hook.run_command(command, env=environment(), cwd=str(DIR))
        except OSError as cause:
            raise AirflowFailException(
                f"{command[0]} cannot be started in {DIR}: {cause}"
            ) from cause
        except KeyboardInterrupt:
            self.on_kill()
            raise
        exit_code: int = result.exit_code
        return exit_code

    def _must_wait(self, exit_code: int, params: Any) -> bool:
        """Return whether the task must wait, and set for how long it may.

        It waits if another run holds the run folder, or if `ingest` has no files yet. When the time
        is over, a wait for files skips the task, and a wait for a run fails it. Attributes of this
        sensor, `timeout` [s] and `soft_fail`, tell Airflow so.
        """
        files_hours = params["files_hours"] if self.task.name == "ingest" else 0
        if exit_code == IN_USE:
            # Airflow counts from the first wait of a task, and `ingest` may have waited for files
            # before.
            self.timeout = SECONDS_PER_HOUR * (params["lock_hours"] + files_hours)
            self.soft_fail = False
            return True
        if exit_code == NOT_THERE and files_hours > 0:
            self.timeout = SECONDS_PER_HOUR * files_hours
            self.soft_fail = True
            return True
        return False

    def _raise_failure(self, exit_code: int) -> None:
        """Raise the exception that belongs to an exit code; 0 is success."""
        name = self.task.name
        if exit_code == IDLE:
            raise AirflowSkipException(f"{name}: there was nothing to do")
        if exit_code == NOT_THERE:
            raise AirflowSkipException(f"{name}: what it reads is not there yet")
        if exit_code in PERMANENT:
            raise AirflowFailException(
                f"{name} ended with exit code {exit_code}: {PERMANENT[exit_code]}"
            )
        if exit_code != 0:
            raise AirflowException(
                f"{name} ended with exit code {exit_code}; its last lines above say why"
            )


def end_of_files(context: Any) -> dt.datetime | None:
    """Return the time before which a run takes files, in UTC; None if it takes all.

    The parameter `until` gives it, read as UTC without a time zone; else only a backfill has one,
    the end of its interval.
    """
    until, run = context["params"]["until"], context["dag_run"]
    if until is not None:
        end = dt.datetime.fromisoformat(until)
        return end.replace(tzinfo=dt.UTC) if end.tzinfo is None else end.astimezone(dt.UTC)
    if run.run_type != "backfill":
        return None
    end = run.data_interval_end or run.run_after
    return end.astimezone(dt.UTC)


def run_dir_of(config: str) -> Path:
    """Return the run folder that a config names; the command `config` prints it.

    Raises:
        AirflowFailException: The config is wrong, or the interpreter does not exist.
    """
    command = [python(), "-m", "pipeline", "config", "--json", "--config", config]
    try:
        result = subprocess.run(
            command, env=environment(), cwd=DIR, capture_output=True, errors="replace", check=False
        )
    except OSError as cause:
        raise AirflowFailException(f"{command[0]} cannot be started in {DIR}: {cause}") from cause
    if result.returncode != 0:
        raise AirflowFailException(f"{config}: {result.stderr.strip()}")
    return DIR / json.loads(result.stdout)["run_dir"]["value"]


def python() -> str:
    """Return the path of the interpreter that has the pipeline installed."""
    return os.environ.get("HEP_PIPELINE_PYTHON", str(DIR / ".venv" / "bin" / "python"))


def environment() -> dict[str, str]:
    """Return the environment for a command: ours without Airflow's settings and Python's paths.

    Some of the settings are secret, and the paths lead to other packages. The folder of the
    interpreter comes first in PATH, so programs beside it, such as mpirun, are found.
    """
    foreign = ("AIRFLOW", "_AIRFLOW", "__AIRFLOW", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = os.environ.get("PATH", os.defpath)
    variables["PATH"] = os.pathsep.join([str(Path(python()).parent), path])
    return variables


def flag(variable: str) -> bool:
    """Return the value of a variable that is yes or no; no if it is not set."""
    value = os.environ.get(variable, "no").strip().lower()
    if value in {"yes", "true", "on", "1"}:
        return True
    if value in {"no", "false", "off", "0", ""}:
        return False
    raise ValueError(f"{variable}={value}: write yes or no")


def schedule() -> CronDataIntervalTimetable | None:
    """Return the schedule of the runs, intervals without gaps; None for runs by hand only.

    A bare cron expression may mean points in time or intervals, as a site sets it; this class fixes
    it.
    """
    expression = os.environ.get("HEP_PIPELINE_SCHEDULE", "@daily")
    return None if expression == "none" else CronDataIntervalTimetable(expression, timezone="UTC")


def dag_params() -> dict[str, Param]:
    """Return the parameters of the Trigger button, with the defaults of a scheduled run."""
    keep = os.environ.get("HEP_PIPELINE_KEEP")
    return {
        "config": Param(
            os.environ.get("HEP_PIPELINE_CONFIG", "demo"),
            type="string",
            minLength=1,
            description="A YAML file, or the name of a shipped config.",
        ),
        "until": Param(
            None,
            type=["null", "string"],
            format="date-time",
            description="Take only files of before this time, in a run folder of its own; nothing "
            "is promoted. Empty: take all that is there.",
        ),
        "promote": Param(True, type="boolean", description="Put a better network in use."),
        "track": Param(
            flag("HEP_PIPELINE_TRACK"), type="boolean", description="Log each training to MLflow."
        ),
        "keep": Param(
            int(keep) if keep else None,
            type=["null", "integer"],
            minimum=1,
            description="Versions of each stage to keep in the end. Empty: all.",
        ),
        "files_hours": Param(
            0,
            type="number",
            minimum=0,
            description="How long to wait for files of a sample that has none; then skip.",
        ),
        "lock_hours": Param(
            12,
            type="number",
            minimum=0,
            description="How long to wait for another run on the run folder; then fail.",
        ),
    }


def pool_options(task_name: str) -> dict[str, Any]:
    """Return the options that limit how many tasks of this name run at once.

    A pool of Airflow has a number of slots. Without a pool, one task of each name runs at a time.
    """
    variable = "HEP_PIPELINE_GPU_POOL" if task_name == "train" else "HEP_PIPELINE_CPU_POOL"
    pool = os.environ.get(variable)
    return {"pool": pool} if pool else {"max_active_tis_per_dag": 1}


with DAG(
    dag_id="hep_pipeline",
    description="ROOT files to trained, evaluated and promoted trigger classifiers",
    doc_md=__doc__,
    schedule=schedule(),
    # Airflow makes no tasks for a run before this date, and calls that a success. Intervals since
    # then are not caught up.
    start_date=dt.datetime(2000, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    params=dag_params(),
    default_args={
        "owner": "hep",
        "retries": 2,
        "retry_delay": dt.timedelta(minutes=5),
        "execution_timeout": dt.timedelta(hours=12),
        "poke_interval": 60,
        # What was skipped stops nothing: a later task finishes what an earlier night could not.
        "trigger_rule": "none_failed",
    },
    tags=["hep"],
) as dag:
    stage_tasks = [
        StageTask(
            task=task,
            outlets=[MODEL_IN_USE] if task.name == "promote" else [],
            **pool_options(task.name),
        )
        for task in TASKS
    ]
    chain(*stage_tasks)
