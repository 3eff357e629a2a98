"""The DAG file: it loads quickly, imports nothing of ours, and runs the right commands."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_home import DAG_FILE, DAG_FILES, ROOT, AirflowHome

from pipeline.stages.table import STAGES

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

#: The tasks in their order; the last three run only if a parameter asks for them.
ORDER = [*(stage.name for stage in STAGES), "promote", "track", "clean"]
SCRIPT = Path(__file__).with_name("inspect_dag.py")
OUR_PACKAGES = {
    *("hep_core", "ingestion", "features", "models", "training", "pipeline"),
    *("hep_simulation", "hep_studies"),
}
#: Time of loading the file, beyond importing Airflow.
MAX_SECONDS = 1.0
#: A name of a config with signs that a shell would act on.
NASTY = """a folder/$(touch owned) `touch owned` "quoted" 'config' {{ ds }};.yaml"""
#: The run folder of every config, by the interpreter of these tests.
RUN_DIR = "runs/a night"
#: The words of the interpreter for the stage `ingest`.
INGEST = ["-m", "pipeline", "ingest", "--exit-code", "--config", "demo"]


def write_interpreter(folder: Path, exit_codes: dict[str, int]) -> Path:
    """Write an interpreter that records its calls, and ends with given exit codes.

    Its `status` prints the file `in_use.json`, if there is one, as the models in use.
    """
    path = folder / "interpreter"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "if sys.argv[3] == 'config':\n"
        f"    sys.exit(print(json.dumps({{'run_dir': {{'value': {RUN_DIR!r}}}}})))\n"
        f"in_use = {str(folder / 'in_use.json')!r}\n"
        "if sys.argv[3] == 'status' and os.path.exists(in_use):\n"
        "    print(json.dumps({'in_use': json.load(open(in_use))}))\n"
        f"with open({str(folder / 'calls.jsonl')!r}, 'a') as file:\n"
        "    print(json.dumps({'words': sys.argv[1:], 'env': dict(os.environ), 'cwd': os.getcwd()}), file=file)\n"
        f"sys.exit({exit_codes!r}.get(sys.argv[3], 0))\n"
    )
    path.chmod(0o755)
    return path


class Site:
    """The settings of a site, and the DAG under them.

    Args:
        airflow: The process that loads the DAG and runs tasks.
        folder: Where the interpreter records its calls.
        env: Environment variables.
    """

    def __init__(self, airflow: subprocess.Popen[str], folder: Path, env: dict[str, str]) -> None:
        self._airflow = airflow
        self._folder = folder
        self._env = env

    def dag(self, *runs: dict[str, Any]) -> Any:
        """The loaded file, and the ends of runs of tasks."""
        assert self._airflow.stdin is not None
        assert self._airflow.stdout is not None
        print(json.dumps({"env": self._env, "runs": runs}), file=self._airflow.stdin, flush=True)
        answer = self._airflow.stdout.readline()
        assert answer, "Airflow's interpreter has ended"
        return json.loads(answer)

    def ends(self, *runs: dict[str, Any]) -> list[str]:
        """How tasks end: `done`, or an exception with its message."""
        return [end["end"] for end in self.dag(*runs)["ends"]]

    def calls(self) -> list[Any]:
        """Words, environment and folder of every command."""
        lines = (self._folder / "calls.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """Airflow's interpreter, which takes longer to start than all tests of this file."""
    home = AirflowHome(tmp_path_factory.mktemp("airflow"))
    with (
        (home.folder / "log").open("w") as log,
        subprocess.Popen(
            [str(home.python), str(SCRIPT), str(DAG_FILE)],
            env=home.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        yield process
        assert process.stdin is not None
        process.stdin.close()


MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(airflow: subprocess.Popen[str], tmp_path: Path) -> MakeSite:
    """Makes a site with exit codes by stage, and environment variables."""

    def make(*, exit_codes: dict[str, int] | None = None, **variables: str) -> Site:
        env = {
            "PATH": os.environ["PATH"],
            "HEP_PIPELINE_PYTHON": str(write_interpreter(tmp_path, exit_codes or {})),
            "HEP_PIPELINE_DIR": str(tmp_path),
        }
        return Site(airflow, tmp_path, env | variables)

    return make


@pytest.fixture
def default_dag(make_site: MakeSite) -> Any:
    """The DAG of a site that sets nothing."""
    return make_site().dag()


def values_of_tasks(dag: Any, key: str) -> set[Any]:
    return {task[key] for task in dag["tasks"].values()}


def exceptions(ends: list[str]) -> list[str]:
    return [end.split(":")[0] for end in ends]


def test_the_file_loads_quickly_and_imports_nothing_of_ours(default_dag: Any) -> None:
    imported: set[str] = set()
    for path in DAG_FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))

    assert default_dag["seconds"] < MAX_SECONDS
    assert not OUR_PACKAGES & set(default_dag["modules"])
    top_level = {name.split(".")[0] for name in imported}
    assert top_level <= {"airflow", "hep_pipeline_tasks", *sys.stdlib_module_names}


def test_each_task_follows_the_one_before_it(default_dag: Any) -> None:
    upstream = {name: task["after"] for name, task in default_dag["tasks"].items()}

    assert upstream == {"simulate": [], "announce": ["promote"]} | {
        name: [previous] for previous, name in itertools.pairwise(ORDER)
    }
    # What had nothing to do stops nothing; what failed does, but no announcement.
    rules = {name: task["rule"] for name, task in default_dag["tasks"].items()}
    assert rules == dict.fromkeys(ORDER, "none_failed") | {"announce": "all_done"}
    assert values_of_tasks(default_dag, "retries") == {2}
    assert default_dag["max_active_runs"] == 1
    assert default_dag["catchup"] is False
    assert default_dag["schedule"] == "0 0 * * *"


def test_the_environment_sets_values_and_never_the_graph(
    make_site: MakeSite, default_dag: Any
) -> None:
    site = make_site(
        HEP_PIPELINE_CONFIG="nightly.yaml",
        HEP_PIPELINE_TRACK="yes",
        HEP_PIPELINE_KEEP="5",
        HEP_PIPELINE_SCHEDULE="15 2 * * *",
        HEP_PIPELINE_CPU_POOL="cores",
        HEP_PIPELINE_GPU_POOL="gpus",
    )

    dag = site.dag()

    for name, task in default_dag["tasks"].items():
        assert dag["tasks"][name]["after"] == task["after"]
    default_params = {
        "config": "demo",
        "until": None,
        "promote": True,
        "track": False,
        "keep": None,
        "files_hours": 0,
        "lock_hours": 12,
    }
    assert default_dag["params"] == default_params
    assert dag["params"] == default_params | {"config": "nightly.yaml", "track": True, "keep": 5}
    assert dag["schedule"] == "15 2 * * *"


def test_pools_say_how_many_tasks_run_at_once(make_site: MakeSite, default_dag: Any) -> None:
    dag = make_site(HEP_PIPELINE_CPU_POOL="cores", HEP_PIPELINE_GPU_POOL="gpus").dag()

    pools = {name: task["pool"] for name, task in dag["tasks"].items()}
    assert pools == dict.fromkeys([*ORDER, "announce"], "cores") | {"train": "gpus"}
    assert values_of_tasks(dag, "together") == {None}
    # Where there is none, no two of a task run.
    assert values_of_tasks(default_dag, "pool") == {"default_pool"}
    assert values_of_tasks(default_dag, "together") == {1}


def test_all_settings_of_a_site_are_documented(default_dag: Any, tmp_path: Path) -> None:
    prefixes = ("AIRFLOW__API__", "AIRFLOW__CORE__EXECUTION")
    settings = {name for name in AirflowHome(tmp_path).env if name.startswith(prefixes)}
    for path in DAG_FILES:
        settings |= set(re.findall(r"HEP_PIPELINE_[A-Z_]+", path.read_text()))
    settings |= set(default_dag["params"])

    page = (ROOT / "docs" / "operations.md").read_text()
    assert {name for name in settings if name not in page} == set()


@pytest.mark.parametrize("run_type", ["scheduled", "manual", "asset_triggered"])
def test_a_run_takes_all_files(make_site: MakeSite, run_type: str) -> None:
    site = make_site()

    assert site.ends({"task": "ingest", "run_type": run_type}) == ["done"]
    assert [call["words"] for call in site.calls()] == [INGEST]


@pytest.mark.parametrize(
    ("run", "folder_name", "until"),
    [
        ({"run_type": "backfill"}, "2025-03-02T000000Z", "2025-03-02T00:00:00+00:00"),
        (
            {"run_type": "manual", "params": {"until": "2025-03-01T12:00:00+02:00"}},
            "2025-03-01T100000Z",
            "2025-03-01T10:00:00+00:00",
        ),
    ],
    ids=["backfill", "until"],
)
def test_a_run_with_an_end_leaves_files_out_in_a_folder_of_its_own(
    make_site: MakeSite, tmp_path: Path, run: dict[str, Any], folder_name: str, until: str
) -> None:
    site = make_site()
    tasks = ("ingest", "simulate", "promote", "announce", "track")

    ends = site.ends(*[{"task": task, **run} for task in tasks])

    assert exceptions(ends) == ["done", *["AirflowSkipException"] * 4]
    (call,) = site.calls()
    run_dir = f"{tmp_path / RUN_DIR}-until/{folder_name}"
    overrides = [f"run_dir={run_dir}", "storage=null", f"ingest.until={until}"]
    words = list(INGEST)
    for override in overrides:
        words += ["--set", override]
    assert call["words"] == words


def test_it_waits_for_files_and_for_another_run_and_then_skips_or_fails(
    make_site: MakeSite,
) -> None:
    site = make_site(exit_codes={"ingest": 66, "train": 75})
    hours = {"files_hours": 1, "lock_hours": 2}

    ends = site.ends(
        {"task": "ingest"},
        {"task": "ingest", "params": hours},
        {"task": "ingest", "params": hours, "waited": 3700},
        {"task": "train", "params": hours, "waited": 3700},
        {"task": "train", "params": hours, "waited": 7300},
    )

    assert exceptions(ends) == [
        "AirflowSkipException",
        "AirflowRescheduleException",
        "AirflowSkipException",
        "AirflowRescheduleException",
        "AirflowSensorTimeout",
    ]


def test_errors_that_stay_are_not_tried_again(make_site: MakeSite) -> None:
    exit_codes = {"features": 1, "train": 2, "evaluate": 3, "export": 130}
    site = make_site(exit_codes=exit_codes)

    ends = site.ends(*[{"task": task} for task in exit_codes])

    may_pass, is_permanent = "AirflowException", "AirflowFailException"
    assert exceptions(ends) == [may_pass, is_permanent, is_permanent, may_pass]
    message = "train ended with exit code 2: the command line or the config is wrong"
    assert ends[1] == f"AirflowFailException: {message}"


def test_a_stage_that_was_up_to_date_is_skipped(make_site: MakeSite) -> None:
    site = make_site(exit_codes={"report": 99})

    ends = site.ends({"task": "report"})

    assert ends == ["AirflowSkipException: report: there was nothing to do"]


@pytest.mark.parametrize(
    ("announced", "is_added"),
    [
        ([], True),
        ([{"hlf": "0001-aa"}], True),
        ([{"hlf": "0002-bb"}], False),
        ([{"hlf": "0002-bb", "cnn": "0001-cc"}], False),
        # The model was rolled back since.
        ([{"hlf": "0002-bb"}, {"hlf": "0003-dd"}], True),
    ],
    ids=["first", "promoted", "unchanged", "other damaged", "rolled back"],
)
def test_models_in_use_are_announced_unless_the_last_event_names_them(
    make_site: MakeSite, tmp_path: Path, announced: list[dict[str, str]], is_added: bool
) -> None:
    # Damage is an error of `status`.
    site = make_site(exit_codes={"status": 1})
    in_use = {"hlf": {"version": "0002-bb"}, "cnn": {"version": None}, "particles": None}
    (tmp_path / "in_use.json").write_text(json.dumps(in_use))
    run_dir = tmp_path / RUN_DIR
    registry = (run_dir / "registry").as_uri()
    details = {"config": "demo", "run_dir": str(run_dir)}
    events = [(registry, {**details, "models": models}) for models in announced]
    # An event of another run folder, and one of an earlier release.
    others = [((tmp_path / "registry").as_uri(), {"models": {"hlf": "0002-bb"}})]
    others += [(registry, details)]

    (end,) = site.dag({"task": "announce", "events": [*others, *events]})["ends"]

    if is_added:
        added = [[registry, {**details, "models": {"hlf": "0002-bb"}}]]
        assert end == {"end": "done", "events": {"hep_model_in_use": added}}
    else:
        message = "announce: no other model is in use than announced"
        assert end == {"end": f"AirflowSkipException: {message}", "events": {}}


@pytest.mark.parametrize(
    ("exit_code", "exception"), [(1, "AirflowException"), (2, "AirflowFailException")]
)
def test_models_in_use_that_cannot_be_read_are_no_announcement(
    make_site: MakeSite, exit_code: int, exception: str
) -> None:
    site = make_site(exit_codes={"status": exit_code})

    (end,) = site.dag({"task": "announce"})["ends"]

    message = f"{exception}: status ended with exit code {exit_code}: "
    assert end == {"end": message, "events": {}}


def test_values_reach_the_commands_untouched(make_site: MakeSite, tmp_path: Path) -> None:
    config = str(tmp_path / NASTY)
    site = make_site(
        PYTHONPATH=str(tmp_path / "of airflow"), AIRFLOW__SMTP__SMTP_MAIL_FROM="me@example.org"
    )
    tasks = ORDER[:9]

    ends = site.ends(*[{"task": task, "params": {"config": config}} for task in tasks])

    assert ends == ["done"] * len(tasks)
    for task, call in zip(tasks, site.calls(), strict=True):
        options = ["--if-wanted"] if task in {"simulate", "gridsearch"} else []
        options += ["--exit-code", "--config", config]
        assert call["words"] == ["-m", "pipeline", task, *options]
        assert call["cwd"] == str(tmp_path)
        assert not any(name.startswith(("AIRFLOW__", "PYTHONPATH")) for name in call["env"])
    assert not list(tmp_path.rglob("owned"))
