"""The pipeline as an Airflow DAG (Airflow 3): one task for each command that a person types.

Another task, `announce`, tells other DAGs that another model is in use.

Airflow lives in an environment of its own (`make airflow-setup`), so this file, and
`hep_pipeline_tasks.py` beside it, import nothing of the pipeline. The tasks exchange no data: each
finds in the run folder what the earlier ones left there.

**Which files.** A run of the schedule, or by hand, takes all files that are there. A backfill, or a
run by hand with `until`, takes the files from before its end. It works in a run folder of its own
(`<run_dir>-until/<end>`), and neither simulates, promotes, announces nor tracks. So no way to start
a run removes anything from the events that the run folder has.

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
import os
from typing import Any, Final

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, chain
from hep_pipeline_tasks import Announcement, Command, CommandTask

#: The commands in their order. With `--exit-code` a command ends with 99 if there was nothing to do.
COMMANDS: Final = (
    Command(
        "simulate",
        ("--if-wanted", "--exit-code"),
        "Makes events; skipped in a backfill, and unless the config names processes.",
    ),
    Command(
        "ingest", ("--exit-code",), "Waits for files, then reads those that are new or changed."
    ),
    Command("features", ("--exit-code",), "Computes, splits and mixes the features."),
    Command(
        "gridsearch",
        ("--if-wanted", "--exit-code"),
        "Tries perceptrons by cross-validation; skipped unless `model.hlf.from_gridsearch` is set.",
    ),
    Command("train", ("--exit-code",), "Trains the networks, or continues a training."),
    Command("evaluate", ("--exit-code",), "Predicts the test split: metrics and plots."),
    Command("export", ("--exit-code",), "Writes the networks as ONNX, checked."),
    Command("report", ("--exit-code",), "Writes one HTML page; the log says where."),
    Command(
        "promote", ("--exit-code",), "Puts a network in use if it is better on the same events."
    ),
    Command("track", (), "Logs the networks to MLflow; skipped unless `track` is set."),
    Command("clean", (), "Removes old versions that nothing needs; skipped without `keep`."),
)


def read_flag(variable: str) -> bool:
    """Return the value of a variable that is yes or no; no if it is not set."""
    value = os.environ.get(variable, "no").strip().lower()
    if value in {"yes", "true", "on", "1"}:
        return True
    if value in {"no", "false", "off", "0", ""}:
        return False
    raise ValueError(f"{variable}={value}: write yes or no")


def make_schedule() -> CronDataIntervalTimetable | None:
    """Return the schedule of the runs, intervals without gaps; None for runs by hand only.

    A bare cron expression may mean points in time or intervals, as a site sets it; this class fixes
    it.
    """
    expression = os.environ.get("HEP_PIPELINE_SCHEDULE", "@daily")
    return None if expression == "none" else CronDataIntervalTimetable(expression, timezone="UTC")


def make_params() -> dict[str, Param]:
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
            read_flag("HEP_PIPELINE_TRACK"),
            type="boolean",
            description="Log each training to MLflow.",
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
    schedule=make_schedule(),
    # Airflow makes no tasks for a run before this date, and calls that a success. Intervals since
    # then are not caught up.
    start_date=dt.datetime(2000, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    params=make_params(),
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
    command_tasks = {
        command.name: CommandTask(command=command, **pool_options(command.name))
        for command in COMMANDS
    }
    chain(*command_tasks.values())
    chain(
        command_tasks["promote"],
        Announcement(trigger_rule="all_done", **pool_options("announce")),
    )
