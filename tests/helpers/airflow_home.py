"""Airflow in its own environment, with a home, a database and ports of its own under a test's
folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from ranks import processes_of

ROOT = Path(__file__).resolve().parents[2]
DAGS = ROOT / "pipeline" / "airflow"
DAG_FILE = DAGS / "hep_pipeline_dag.py"
#: The file of the DAG, and the module that it imports.
DAG_FILES = (DAG_FILE, DAGS / "hep_pipeline_tasks.py")
DAG_ID = "hep_pipeline"
PAGE = ROOT / "docs" / "operations.md"
#: A site's policy: a task is tried again soon.
POLICY = """
import datetime as dt

def task_policy(task):
    task.retry_delay = dt.timedelta(seconds=3)
    task.poke_interval = 10
"""


def airflow_python() -> Path:
    """The interpreter that has Airflow; fails the test where there is none."""
    python = Path(os.environ.get("HEP_AIRFLOW_PYTHON", ROOT / ".venv-airflow" / "bin" / "python"))
    if not python.exists():
        pytest.fail(
            f"no Airflow: {python} is missing. `make airflow-setup` installs it; HEP_AIRFLOW_PYTHON names another."
        )
    return python


class AirflowHome:
    """Airflow in a new folder, as an administrator sets it up, with environment variables."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.python = airflow_python()
        self.folder = folder
        self.home = folder / "airflow"
        (self.home / "config").mkdir(parents=True)
        (self.home / "config" / "airflow_local_settings.py").write_text(POLICY)
        ports = free_ports(3)
        self._port = ports[0]
        # Neither this process's packages nor anybody's settings of Airflow.
        retained = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "PYTHON"))
        }
        self.env = {
            **retained,
            "PATH": os.pathsep.join([str(self.python.parent), retained["PATH"]]),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{ports[0]}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(ports[0]),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(ports[1]),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports[2]),
            # Else a password would be asked for.
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            "HEP_PIPELINE_DIR": str(ROOT),
            "HEP_PIPELINE_PYTHON": str(pipeline_python(folder)),
            **settings_for_slow_machines(),
            **settings,
        }

    def command(self, *arguments: str, seconds: float = 480) -> str:
        """`airflow ...` to its end; returns what it said."""
        completed = self.finish(*arguments, seconds=seconds)
        assert completed.returncode == 0, completed.stdout[-8000:] + completed.stderr[-4000:]
        return completed.stdout

    def finish(self, *arguments: str, seconds: float = 480) -> subprocess.CompletedProcess[str]:
        """Run `airflow ...` to its end, which may be a failure."""
        return subprocess.run(
            [self.python.parent / "airflow", *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    def start_standalone(self) -> subprocess.Popen[bytes]:
        """`airflow standalone`, which is all of Airflow: end it with `end`."""
        with (self.folder / "standalone.log").open("wb") as log:
            return subprocess.Popen(
                [str(self.python.parent / "airflow"), "standalone"],
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End `airflow standalone`, all that it started, and the commands of its tasks."""
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=30)
        # Airflow's own processes change their titles, which takes their environment with it; their
        # group stays.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for task_process in processes_of(self.folder):
            task_process.kill()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What Airflow's database says; nothing while it has no tables yet."""
        path = self.home / "airflow.db"
        if not path.exists():
            return []
        with contextlib.closing(
            sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        ) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []

    def answers(self) -> bool:
        try:
            return bool(self._api("GET", "/auth/token"))
        except OSError:
            return False

    def trigger(self, run: str, *, logical_date: str | None, conf: dict[str, Any]) -> None:
        token = self._api("GET", "/auth/token")["access_token"]
        body = {"dag_run_id": run, "logical_date": logical_date, "conf": conf}
        self._api("POST", f"/api/v2/dags/{DAG_ID}/dagRuns", body, token)

    def listening(self) -> set[str]:
        """Addresses at which the web server listens."""
        return {connection.laddr.ip for connection in self._connections()}

    def server_processes(self) -> list[psutil.Process]:
        """The processes of the web server, which is the API server too."""
        processes = []
        for pid in {connection.pid for connection in self._connections()}:
            process = psutil.Process(pid)
            processes += [process, *process.children(recursive=True)]
        return list(dict.fromkeys(processes))

    def _connections(self) -> list[Any]:
        """The sockets at which the web server listens."""
        connections = []
        for connection in psutil.net_connections(kind="tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == self._port:
                connections.append(connection)
        return connections

    def _api(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        url = f"http://127.0.0.1:{self._port}{path}"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        body_bytes = None
        if body is not None:
            body_bytes = json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, data=body_bytes, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own address
            return json.load(answer)

    def task_logs(self, task: str, run: str) -> list[str]:
        """Of all tries of a task in a run."""
        run_folder = self.home / "logs" / f"dag_id={DAG_ID}" / f"run_id={run}"
        paths = (run_folder / f"task_id={task}").glob("*.log")
        return [path.read_text() for path in sorted(paths)]


def settings_for_slow_machines() -> dict[str, str]:
    """The settings by which Airflow waits for its own API server, as the page gives them."""
    settings = dict(re.findall(r"(AIRFLOW__WORKERS__\w+)=(\S+)", PAGE.read_text()))
    assert settings
    return settings


def pipeline_python(folder: Path) -> Path:
    """An interpreter that finds this checkout from any folder, like an installed pipeline."""
    path = folder / "python"
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    path.chmod(0o755)
    return path


def write_stand_in(folder: Path, script: str) -> Path:
    """Write an interpreter in place of the pipeline's, which answers `config`; returns its path.

    For all other commands it runs a script in Python, which has `folder`, the `command` and its
    `options`.
    """
    path = folder / "interpreter"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, sys, time\n"
        "from pathlib import Path\n"
        f"folder = Path({str(folder)!r})\n"
        "command, *options = sys.argv[3:]\n"
        "if command == 'config':\n"
        "    sys.exit(print(json.dumps({'run_dir': {'value': str(folder / 'run')}})))\n"
        f"{script}"
    )
    path.chmod(0o755)
    return path


def free_ports(index: int) -> list[int]:
    """Ports of this machine that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(index)
        ]
        return [socket_.getsockname()[1] for socket_ in sockets]
