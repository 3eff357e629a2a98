"""The tasks of the DAG `hep_pipeline`: each runs a command in the pipeline's own interpreter.

This file imports nothing of the pipeline, as that of the DAG. It begins with the name of the DAG:
Airflow imports the modules beside all DAGs under their bare names.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import Asset, AssetAlias, BaseOperator, BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

#: Announces which models are in use, for DAGs that use them.
MODEL_IN_USE: Final = AssetAlias("hep_model_in_use")
#: Tasks that a parameter of their name can switch off, and that runs with an end skip.
OPTIONAL: Final = {"simulate", "promote", "track"}
#: Exit codes that another try would not change; 1 (input or machine) and ends by signals may pass.
PERMANENT: Final = {
    2: "the command line or the config is wrong",
    3: "this is a bug of the pipeline",
}
#: Exit code if there was nothing to do.
NOTHING_TO_DO: Final = 99
#: Exit code if another run holds the run folder, or a Spark cluster does not answer.
MAY_PASS: Final = 75
#: Exit code if the input does not exist yet.
NOT_THERE_YET: Final = 66
SECONDS_PER_HOUR: Final = 3600
#: The checkout of this file, also if Airflow finds the file by a link.
CHECKOUT: Final = Path(__file__).resolve().parents[2]


class Command(NamedTuple):
    """A command of the pipeline that is a task."""

    name: str
    """The command, and the name of its task."""
    options: tuple[str, ...]
    """Its options on the command line."""
    doc: str
    """Its description on the page of Airflow."""


class CommandTask(BaseSensorOperator):
    """A command of the pipeline in its own interpreter; no shell reads its words.

    It is a sensor, a task that Airflow asks again and again whether it is done. Where the command
    must wait, Airflow starts it again later, and nothing is occupied meanwhile.
    """

    def __init__(self, *, command: Command, **options: Any) -> None:
        """Make the task; `options` are those of each Airflow task."""
        super().__init__(task_id=command.name, mode="reschedule", doc_md=command.doc, **options)
        self.command = command
        self._hook: SubprocessHook | None = None
        """The running command; None before it starts."""

    def poke(self, context: Any) -> bool:
        """Run the command; returns True if it is done, and False if it must be started again later.

        Args:
            context: What Airflow knows of this run, such as parameters and dates.

        Raises:
            AirflowSkipException: There was nothing to do.
            AirflowFailException: It failed, and would fail again.
            AirflowException: It failed; another try may help.
        """
        params = context["params"]
        until = end_of_files(context)
        self._skip_if_off(params, until)
        exit_code = self._run(self._command_line(params, until))
        files_hours = params["files_hours"] if self.command.name == "ingest" else 0
        if exit_code == MAY_PASS:
            # Airflow counts from the first wait of a task, and `ingest` may have waited for files
            # before.
            self._limit_wait(params["lock_hours"] + files_hours, skips=False)
            return False
        if exit_code == NOT_THERE_YET and files_hours > 0:
            self._limit_wait(files_hours, skips=True)
            return False
        self._raise_unless_done(exit_code)
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
        name = self.command.name
        if name in OPTIONAL and until is not None:
            raise AirflowSkipException(f"{name}: this run is of {until}")
        # `simulate` has no parameter, so it is never off.
        if name in OPTIONAL and not params.get(name, True):
            raise AirflowSkipException(f"{name}: the parameter `{name}` is off")
        if name == "clean" and params["keep"] is None:
            raise AirflowSkipException("clean: the parameter `keep` is not given")

    def _command_line(self, params: Any, until: dt.datetime | None) -> list[str]:
        """Return the command line as a list of words.

        With `until` the command takes only files from before this time. It then works in a run
        folder of its own, named by the time, and without object storage.
        """
        command_line = [python(), "-m", "pipeline", self.command.name, *self.command.options]
        if self.command.name == "clean":
            command_line += ["--keep", str(params["keep"])]
        command_line += ["--config", params["config"]]
        if until is not None:
            run_dir = read_run_dir(params["config"])
            runs_with_end = run_dir.with_name(f"{run_dir.name}-until")
            end = until.strftime("%Y-%m-%dT%H%M%SZ")
            command_line += ["--set", f"run_dir={runs_with_end / end}"]
            # A storage belongs to one run folder.
            command_line += ["--set", "storage=null"]
            command_line += ["--set", f"ingest.until={until.isoformat()}"]
        return command_line

    def _run(self, command_line: list[str]) -> int:
        """Run a command, whose lines are logged; returns its exit code.

        Raises:
            AirflowFailException: The interpreter or the folder does not exist.
        """
        self._hook = SubprocessHook()
        try:
            result = self._hook.run_command(
                command_line, env=environment(), cwd=str(pipeline_dir())
            )
        except OSError as cause:
            raise AirflowFailException(
                f"{command_line[0]} cannot be started in {pipeline_dir()}: {cause}"
            ) from cause
        except KeyboardInterrupt:
            self.on_kill()
            raise
        exit_code: int = result.exit_code
        return exit_code

    def _limit_wait(self, hours: float, *, skips: bool) -> None:
        """Set when Airflow ends the wait, and whether the task is then skipped or fails.

        These attributes of a sensor tell Airflow so.
        """
        self.timeout = SECONDS_PER_HOUR * hours
        self.soft_fail = skips

    def _raise_unless_done(self, exit_code: int) -> None:
        """Raise the exception that belongs to an exit code; 0 has none."""
        name = self.command.name
        if exit_code == NOTHING_TO_DO:
            raise AirflowSkipException(f"{name}: there was nothing to do")
        if exit_code == NOT_THERE_YET:
            raise AirflowSkipException(f"{name}: what it reads is not there yet")
        if exit_code in PERMANENT:
            raise AirflowFailException(
                f"{name} ended with exit code {exit_code}: {PERMANENT[exit_code]}"
            )
        if exit_code != 0:
            raise AirflowException(
                f"{name} ended with exit code {exit_code}; its last lines above say why"
            )


class Announcement(BaseOperator):
    """An event of `MODEL_IN_USE`, if a network has another model in use than the last event says.

    It is a task of its own, since Airflow keeps the events of a task only if the task succeeds. A
    promotion that fails may have put some of the networks in use before.
    """

    def __init__(self, **options: Any) -> None:
        """Make the task; `options` are those of each Airflow task."""
        super().__init__(
            task_id="announce",
            doc_md="Tells other DAGs that another model is in use.",
            # The earlier events are input.
            inlets=[MODEL_IN_USE],
            outlets=[MODEL_IN_USE],
            **options,
        )

    def execute(self, context: Any) -> None:
        """Compare the models in use with those of the last event, and add an event.

        Args:
            context: What Airflow knows of this run: parameters, dates, events.

        Raises:
            AirflowSkipException: No other model is in use, or the run has an end for its files.
            AirflowFailException: The models cannot be read, also by another try.
            AirflowException: The models cannot be read; another try may help.
        """
        config = context["params"]["config"]
        until = end_of_files(context)
        if until is not None:
            raise AirflowSkipException(f"announce: this run is of {until}")
        run_dir = read_run_dir(config)
        registry = Asset((run_dir / "registry").as_uri())
        models = read_models_in_use(config)
        announced = models_announced(context["inlet_events"][MODEL_IN_USE], registry)
        if not models.items() - announced.items():
            raise AirflowSkipException("announce: no other model is in use than announced")
        details = {"config": config, "run_dir": str(run_dir), "models": models}
        context["outlet_events"][MODEL_IN_USE].add(registry, extra=details)


def models_announced(events: Iterable[Any], registry: Asset) -> dict[str, str]:
    """Return the models by network that the last event of a registry names; none without one."""
    models: dict[str, str] = {}
    for event in events:
        if event.asset.uri == registry.uri:
            # Events of earlier releases name no models.
            models = event.extra.get("models", {})
    return models


def end_of_files(context: Any) -> dt.datetime | None:
    """Return the time before which a run takes files, in UTC; None if it takes all.

    The parameter `until` gives it, read as UTC without a time zone; else only a backfill has one,
    the end of its interval.
    """
    until = context["params"]["until"]
    run = context["dag_run"]
    if until is not None:
        end = dt.datetime.fromisoformat(until)
        return end.replace(tzinfo=dt.UTC) if end.tzinfo is None else end.astimezone(dt.UTC)
    if run.run_type != "backfill":
        return None
    end = run.data_interval_end or run.run_after
    return end.astimezone(dt.UTC)


def read_run_dir(config: str) -> Path:
    """Return the run folder that a config names."""
    return pipeline_dir() / read_json("config", config)["run_dir"]["value"]


def read_models_in_use(config: str) -> dict[str, str]:
    """Return the version in use of each network; networks with a damaged registry are left out."""
    models = read_json("status", config)["in_use"]
    return {
        network: model["version"]
        for network, model in models.items()
        if model is not None and model["version"] is not None
    }


def read_json(name: str, config: str) -> Any:
    """Return what a command of the pipeline prints as JSON.

    Raises:
        AirflowFailException: The config is wrong, or the interpreter does not exist.
        AirflowException: It fails otherwise; another try may help.
    """
    command = [python(), "-m", "pipeline", name, "--json", "--config", config]
    try:
        result = subprocess.run(
            command,
            env=environment(),
            cwd=pipeline_dir(),
            capture_output=True,
            errors="replace",
            check=False,
        )
    except OSError as cause:
        raise AirflowFailException(
            f"{command[0]} cannot be started in {pipeline_dir()}: {cause}"
        ) from cause
    # If files are damaged, `status` ends with exit code 1, but prints what it knows.
    if not result.stdout:
        message = f"{name} ended with exit code {result.returncode}: {result.stderr.strip()}"
        if result.returncode in PERMANENT:
            raise AirflowFailException(message)
        raise AirflowException(message)
    return json.loads(result.stdout)


def pipeline_dir() -> Path:
    """Return the folder that the commands run in."""
    return Path(os.environ.get("HEP_PIPELINE_DIR", CHECKOUT)).resolve()


def python() -> str:
    """Return the path of the interpreter that has the pipeline installed."""
    return os.environ.get("HEP_PIPELINE_PYTHON", str(pipeline_dir() / ".venv" / "bin" / "python"))


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
