"""The pipeline as an Airflow DAG (Airflow 3): one task a command, each the same that a person types.

Airflow lives in an environment of its own (`make airflow-setup`), so this file imports nothing of the pipeline. Nothing
but the path of the report travels between the tasks: each finds what the one before it left in the run folder.

**Which files.** A run of the schedule, or by hand, takes all files that are there. A backfill, or a run by hand with
`until`, takes those of before its end; it works in a run folder of its own (`<run_dir>-until/<end>`), and neither
simulates, promotes nor tracks. So no way to start a run removes anything from the events that the run folder has.

**Colours.** Skipped: there was nothing to do, or no files have come. Up for reschedule: it waits for files, or for
another run that holds the run folder, and occupies no slot. Failed: the last lines of the log say why.

The form of the Trigger button asks for the parameters. Environment variables of Airflow's processes give the rest; all
have defaults, and none changes the graph:

    HEP_PIPELINE_DIR            folder that the commands run in; default: the checkout that holds this file
    HEP_PIPELINE_PYTHON         interpreter that has the pipeline installed; default: .venv/bin/python in that folder
    HEP_PIPELINE_CONFIG         default of the parameter `config`; default: demo
    HEP_PIPELINE_TRACK          default of the parameter `track`, yes or no; default: no
    HEP_PIPELINE_KEEP           default of the parameter `keep`; default: none, so that nothing is removed
    HEP_PIPELINE_SCHEDULE       cron expression or preset, in UTC; default: @daily; "none" for runs by hand only
    HEP_PIPELINE_TIMEOUT_HOURS  a command that takes longer is ended and tried again; default: 12
    HEP_PIPELINE_RETRY_MINUTES  until a task is tried again; default: 5
    HEP_PIPELINE_POKE_SECONDS   between two looks of a task that waits; default: 60
    HEP_PIPELINE_CPU_POOL       pool of all tasks but the training, which must exist; default: default_pool
    HEP_PIPELINE_GPU_POOL       pool of the training, which must exist; default: default_pool
    HEP_PIPELINE_OWNER          owner of the tasks; default: hep
    HEP_PIPELINE_CALLBACK       `module:function` that Airflow calls after a run of the DAG; default: none
    HEP_PIPELINE_WEB            web address at which the files of HEP_PIPELINE_DIR are served; default: links are paths
"""

from __future__ import annotations

import datetime as dt
import json
import os
import pkgutil
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import (
    DAG,
    Asset,
    AssetAlias,
    BaseOperatorLink,
    BaseSensorOperator,
    CronDataIntervalTimetable,
    Param,
    PokeReturnValue,
    chain,
)
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException


class Task(NamedTuple):
    """A command of the pipeline as a task."""

    name: str
    words: tuple[str, ...]
    """Of its command line."""
    doc: str
    product: str | None = None
    """The asset alias that what it makes is announced by."""
    folder: str | None = None
    """Where that lies in the run folder; None: in the folder of its name."""


#: `--exit-code` tells by the exit code that there was nothing to do.
TASKS: Final = (
    Task(
        "simulate",
        ("--if-wanted", "--exit-code"),
        "Makes events; skipped unless the config names processes, and in a backfill: such events have no day.",
    ),
    Task(
        "ingest",
        ("--exit-code",),
        "Waits for files, then reads those that are new or changed.",
        "hep_events",
    ),
    Task("features", ("--exit-code",), "Computes, splits and mixes the features.", "hep_features"),
    Task(
        "gridsearch",
        ("--if-wanted", "--exit-code"),
        "Tries perceptrons by cross-validation; skipped unless `model.hlf.from_gridsearch` asks for it.",
    ),
    Task(
        "train",
        ("--exit-code",),
        "Trains the networks; continues a training that was interrupted.",
        "hep_networks",
    ),
    Task("evaluate", ("--exit-code",), "Predicts the test split: metrics and plots."),
    Task("export", ("--exit-code",), "Writes the networks as ONNX, checked.", "hep_onnx"),
    Task(
        "report",
        ("--exit-code",),
        "Writes one HTML page; the button **Report** leads to it.",
        "hep_report",
    ),
    Task(
        "promote",
        ("--exit-code",),
        "Puts a network in use that is better than the one that is, on the same events; skipped if none is.",
        "hep_model_in_use",
        "registry",
    ),
    Task(
        "track",
        (),
        "Logs the networks to MLflow; skipped unless the parameter `track` asks for it.",
    ),
    Task(
        "clean",
        (),
        "Removes old versions that nothing needs; skipped unless the parameter `keep` is given.",
    ),
)
#: Exit codes that another try would not change; 1 (input or machine) and ends by signals may pass.
PERMANENT: Final = {
    2: "the command line or the config is wrong",
    3: "this is a bug of the pipeline",
}
#: Other exit codes: nothing had to be done; another run holds the run folder; what the command reads is not there yet.
IDLE, IN_USE, NOT_THERE = 99, 75, 66
DIR: Final = Path(os.environ.get("HEP_PIPELINE_DIR", Path(__file__).parents[2])).resolve()


class ReportLink(BaseOperatorLink):
    """The button of a task that leads to the report."""

    name = "Report"

    def get_link(self, operator: StageTask, *, ti_key: Any) -> str:  # noqa: ARG002 - the signature of links
        """Address of the report that the task made or found."""
        return _address(operator.report) if operator.report else ""


class StageTask(BaseSensorOperator):
    """A command of the pipeline in its own interpreter, without a shell: its words are never read as code.

    It is a sensor: where it must wait, Airflow starts it again later, and nothing is occupied meanwhile.
    """

    def __init__(self, *, task: Task, **options: Any) -> None:
        super().__init__(task_id=task.name, mode="reschedule", doc_md=task.doc, **options)
        self.task = task
        self.operator_extra_links = (ReportLink(),) if task.name == "report" else ()
        self.report: Path | None = None
        self._hook: SubprocessHook | None = None

    def poke(self, context: Any) -> PokeReturnValue:
        """Run the command; done unless it must wait.

        Raises:
            AirflowSkipException: There was nothing to do.
            AirflowFailException: It failed, and would fail again.
            AirflowException: It failed; another try may help.
        """
        params, until = context["params"], _until(context)
        words = self._words(params, until=until)
        if until is not None:
            run_dir = _run_dir(params["config"])
            own = run_dir.with_name(f"{run_dir.name}-until") / until.strftime("%Y-%m-%dT%H%M%SZ")
            # A storage belongs to one run folder.
            words += [
                "--set",
                f"run_dir={own}",
                "--set",
                "storage=null",
                "--set",
                f"ingest.until={until.isoformat()}",
            ]
        result = self._run(words)
        if result.output.startswith("report: "):
            self.report = DIR / result.output.removeprefix("report: ")
        if self._must_wait(result.exit_code, params):
            return PokeReturnValue(is_done=False)
        self._refuse(result.exit_code)
        if self.task.product and until is None:
            self._announce(
                context["outlet_events"][AssetAlias(self.task.product)], params["config"]
            )
        return PokeReturnValue(is_done=True, xcom_value=str(self.report) if self.report else None)

    def on_kill(self) -> None:
        """End the command as Ctrl-C does: it leaves nothing unfinished. It is in a session of its own."""
        process = self._hook.sub_process if self._hook else None
        if self._hook is not None and process is not None and process.poll() is None:
            self._hook.send_sigterm()

    def _announce(self, events: Any, config: str) -> None:
        """Say what is new, and where."""
        run_dir = _run_dir(config)
        asset = Asset((run_dir / (self.task.folder or self.task.name)).as_uri())
        events.add(asset, extra={"config": config, "run_dir": str(run_dir)})

    def _words(self, params: Any, *, until: dt.datetime | None) -> list[str]:
        """The command line, without what a bounded run adds."""
        name, words = self.task.name, [*self.task.words]
        if name in {"simulate", "promote", "track"} and (
            until is not None or not params.get(name, True)
        ):
            why = f"the parameter `{name}` is off" if until is None else f"this run is of {until}"
            raise AirflowSkipException(f"{name}: {why}")
        if name == "clean":
            if params["keep"] is None:
                raise AirflowSkipException("clean: the parameter `keep` is not given")
            words += ["--keep", str(params["keep"])]
        return [_python(), "-m", "pipeline", name, *words, "--config", params["config"]]

    def _run(self, words: list[str]) -> Any:
        """Exit code and last line of a command, whose lines are logged."""
        self._hook = SubprocessHook()
        try:
            return self._hook.run_command(words, env=_environment(), cwd=str(DIR))
        except OSError as cause:
            raise AirflowFailException(f"{words[0]} cannot be started in {DIR}: {cause}") from cause
        except KeyboardInterrupt:
            self.on_kill()
            raise

    def _must_wait(self, code: int, params: Any) -> bool:
        """Whether to look again later, and how long; a wait for files that is over skips, one for a run fails."""
        if code == IN_USE:
            # Airflow counts from the first wait of a task; `ingest` may have waited for files before.
            waits = params["lock_hours"] + (
                params["files_hours"] if self.task.name == "ingest" else 0
            )
            self.timeout, self.soft_fail = 3600 * waits, False
            return True
        if code == NOT_THERE and self.task.name == "ingest" and params["files_hours"] > 0:
            self.timeout, self.soft_fail = 3600 * params["files_hours"], True
            return True
        return False

    def _refuse(self, code: int) -> None:
        """Raise what an exit code stands for; 0 is fine."""
        name = self.task.name
        if code == IDLE:
            raise AirflowSkipException(f"{name}: there was nothing to do")
        if code == NOT_THERE:
            raise AirflowSkipException(f"{name}: what it reads is not there yet")
        if code in PERMANENT:
            raise AirflowFailException(f"{name} ended with exit code {code}: {PERMANENT[code]}")
        if code != 0:
            raise AirflowException(
                f"{name} ended with exit code {code}; its last lines above say why"
            )


def _until(context: Any) -> dt.datetime | None:
    """The end of a run's data, in UTC; None: it takes all that is there, whatever its logical date is."""
    given = context["params"]["until"]
    if given is not None:
        end = dt.datetime.fromisoformat(given)
        return end.replace(tzinfo=dt.UTC) if end.tzinfo is None else end.astimezone(dt.UTC)
    run = context["dag_run"]
    return (
        (run.data_interval_end or run.run_after).astimezone(dt.UTC)
        if run.run_type == "backfill"
        else None
    )


def _run_dir(config: str) -> Path:
    """The run folder that a config names."""
    words = [_python(), "-m", "pipeline", "config", "--json", "--config", config]
    try:
        done = subprocess.run(
            words, env=_environment(), cwd=DIR, capture_output=True, text=True, check=False
        )
    except OSError as cause:
        raise AirflowFailException(f"{words[0]} cannot be started in {DIR}: {cause}") from cause
    if done.returncode != 0:
        raise AirflowFailException(f"{config}: {done.stderr.strip()}")
    return DIR / json.loads(done.stdout)["run_dir"]["value"]


def _address(report: Path) -> str:
    """Of a file, on the web where it is served."""
    web = os.environ.get("HEP_PIPELINE_WEB", "").rstrip("/")
    if web and report.is_relative_to(DIR):
        return f"{web}/{quote(report.relative_to(DIR).as_posix())}"
    return report.as_uri()


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


def _flag(name: str) -> bool:
    """A variable that is yes or no, in the words that people write."""
    value = os.environ.get(name, "no").strip().lower()
    if value in {"yes", "true", "on", "1"}:
        return True
    if value in {"no", "false", "off", "0", ""}:
        return False
    raise ValueError(f"{name}={value}: write yes or no")


def _schedule() -> CronDataIntervalTimetable | None:
    """Intervals that follow each other, whatever the site's settings make of a bare cron expression."""
    text = os.environ.get("HEP_PIPELINE_SCHEDULE", "@daily")
    return None if text == "none" else CronDataIntervalTimetable(text, timezone="UTC")


def _params() -> dict[str, Param]:
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
            description="Take only files of before this time, in a run folder of its own; nothing is promoted. "
            "Empty: take all that is there.",
        ),
        "promote": Param(True, type="boolean", description="Put a better network in use."),
        "track": Param(
            _flag("HEP_PIPELINE_TRACK"), type="boolean", description="Log each training to MLflow."
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


def _pool(task: Task) -> dict[str, Any]:
    """A pool says how many run at once; without one, no two of the same task do."""
    name = os.environ.get(
        "HEP_PIPELINE_GPU_POOL" if task.name == "train" else "HEP_PIPELINE_CPU_POOL"
    )
    return {"pool": name} if name else {"max_active_tis_per_dag": 1}


def _callback() -> Any:
    name = os.environ.get("HEP_PIPELINE_CALLBACK")
    return pkgutil.resolve_name(name) if name else None


with DAG(
    dag_id="hep_pipeline",
    description="ROOT files to trained, evaluated and promoted trigger classifiers",
    doc_md=__doc__,
    schedule=_schedule(),
    # Long ago, but nothing is caught up. Of a run of before it Airflow makes no tasks, and calls it a success.
    start_date=dt.datetime(2000, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    params=_params(),
    default_args={
        "owner": os.environ.get("HEP_PIPELINE_OWNER", "hep"),
        "retries": 2,
        "retry_delay": dt.timedelta(minutes=_number("HEP_PIPELINE_RETRY_MINUTES", 5)),
        "execution_timeout": dt.timedelta(hours=_number("HEP_PIPELINE_TIMEOUT_HOURS", 12)),
        "poke_interval": _number("HEP_PIPELINE_POKE_SECONDS", 60),
        # What was skipped stops nothing: a later task finishes what an earlier night could not.
        "trigger_rule": "none_failed",
    },
    tags=["hep"],
    on_success_callback=_callback(),
    on_failure_callback=_callback(),
) as dag:
    chain(
        *(
            StageTask(
                task=each, outlets=[AssetAlias(each.product)] if each.product else [], **_pool(each)
            )
            for each in TASKS
        )
    )
