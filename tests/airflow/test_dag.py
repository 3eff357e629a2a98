"""The DAG file by itself: quick to parse, nothing of ours imported, values passed untouched, errors told apart."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_home import DAG_FILE, ROOT, AirflowHome

from pipeline.stages.table import STAGES

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

#: In this order; the last three run only if a parameter says so.
ORDER = [*(stage.name for stage in STAGES), "promote", "track", "clean"]
SCRIPT = Path(__file__).with_name("inspect_dag.py")
OURS = {
    "hep_core",
    "ingestion",
    "features",
    "models",
    "training",
    "pipeline",
    "hep_simulation",
    "hep_studies",
}
#: Beyond importing Airflow.
MAX_SECONDS = 1.0
#: Words that a shell would act on.
NASTY = """a folder/$(touch owned) `touch owned` "quoted" 'config' {{ ds }};.yaml"""
#: What the interpreter of these tests says that a run folder is.
RUN_DIR = "runs/a night"


def stand_in(folder: Path, exit_codes: dict[str, int] | None = None) -> Path:
    """An interpreter that only writes down its words and environment, and ends as told for each stage."""
    path = folder / "stand-in"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "if sys.argv[3] == 'config':\n"
        f"    sys.exit(print(json.dumps({{'run_dir': {{'value': {RUN_DIR!r}}}}})))\n"
        f"with open({str(folder / 'called.jsonl')!r}, 'a') as file:\n"
        "    print(json.dumps({'words': sys.argv[1:], 'env': dict(os.environ), 'cwd': os.getcwd()}), file=file)\n"
        f"sys.exit({exit_codes or {}!r}.get(sys.argv[3], 0))\n"
    )
    path.chmod(0o755)
    return path


class Site:
    """A site's settings, and what the DAG is and does under them.

    Args:
        airflow: Answers.
        folder: Of the stand-in.
        env: Environment variables.
    """

    def __init__(self, airflow: subprocess.Popen[str], folder: Path, env: dict[str, str]) -> None:
        self._airflow = airflow
        self._folder = folder
        self._env = env

    def dag(self, *runs: dict[str, Any]) -> Any:
        """What the file is once loaded, and how tasks end."""
        assert self._airflow.stdin is not None
        assert self._airflow.stdout is not None
        print(json.dumps({"env": self._env, "runs": runs}), file=self._airflow.stdin, flush=True)
        answer = self._airflow.stdout.readline()
        assert answer, "Airflow's interpreter has ended"
        return json.loads(answer)

    def ends(self, *runs: dict[str, Any]) -> list[str]:
        """How tasks end, in words."""
        return [task_end["end"] for task_end in self.dag(*runs)["ends"]]

    def called(self) -> list[Any]:
        """Words and environment of every command."""
        return [
            json.loads(line) for line in (self._folder / "called.jsonl").read_text().splitlines()
        ]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """Airflow's interpreter, which takes longer to start than all tests of this file."""
    home = AirflowHome(tmp_path_factory.mktemp("airflow"))
    command = [str(home.python), str(SCRIPT), str(DAG_FILE)]
    with (
        (home.folder / "log").open("w") as log,
        subprocess.Popen(
            command,
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
    """Makes a site of exit codes by stage, and environment variables."""

    def make(*, exit_codes: dict[str, int] | None = None, **settings: str) -> Site:
        own_value = {
            "HEP_PIPELINE_PYTHON": str(stand_in(tmp_path, exit_codes)),
            "HEP_PIPELINE_DIR": str(tmp_path),
        }
        return Site(airflow, tmp_path, {"PATH": os.environ["PATH"], **own_value, **settings})

    return make


@pytest.fixture
def default(make_site: MakeSite) -> Any:
    """The DAG of a site that sets nothing."""
    return make_site().dag()


def each_task(actual: Any, key: str) -> set[Any]:
    return {task[key] for task in actual["tasks"].values()}


def test_loading_it_is_quick_and_imports_nothing_of_ours(default: Any) -> None:
    assert default["seconds"] < MAX_SECONDS
    assert not OURS & set(default["modules"])
    nodes = list(ast.walk(ast.parse(DAG_FILE.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= {"airflow", *sys.stdlib_module_names}


def test_the_report_comes_whatever_promote_says(default: Any) -> None:
    assert {name: task["after"] for name, task in default["tasks"].items()} == {
        name: [state_before] if state_before else []
        for state_before, name in zip(["", *ORDER], ORDER, strict=False)
    }
    # What had nothing to do stops nothing; what failed does.
    assert each_task(default, "rule") == {"none_failed"}
    assert default["max_active_runs"] == 1
    assert default["catchup"] is False
    assert default["schedule"] == "0 0 * * *"


def test_the_environment_sets_values_and_never_the_graph(make_site: MakeSite, default: Any) -> None:
    site = make_site(
        HEP_PIPELINE_CONFIG="nightly.yaml",
        HEP_PIPELINE_TRACK="yes",
        HEP_PIPELINE_KEEP="5",
        HEP_PIPELINE_SCHEDULE="15 2 * * *",
        HEP_PIPELINE_CPU_POOL="cores",
        HEP_PIPELINE_GPU_POOL="gpus",
    )
    found = site.dag()
    assert {name: task["after"] for name, task in found["tasks"].items()} == {
        name: task["after"] for name, task in default["tasks"].items()
    }
    asked = {"config": "demo", "until": None, "promote": True, "track": False, "keep": None}
    assert default["params"] == {**asked, "files_hours": 0, "lock_hours": 12}
    assert found["params"] == {
        **default["params"],
        "config": "nightly.yaml",
        "track": True,
        "keep": 5,
    }
    assert found["schedule"] == "15 2 * * *"
    assert each_task(found, "retries") == {2}
    assert {task["pool"] for name, task in found["tasks"].items() if name != "train"} == {"cores"}
    assert found["tasks"]["train"]["pool"] == "gpus"
    # A pool says how many run at once; where there is none, no two of a task do.
    assert each_task(found, "together") == {None}
    assert each_task(default, "together") == {1}
    assert each_task(default, "pool") == {"default_pool"}


def test_all_that_a_site_can_set_is_documented(default: Any, tmp_path: Path) -> None:
    documented = (ROOT / "docs" / "operations.md").read_text()
    of_ports = ("AIRFLOW__API__", "AIRFLOW__CORE__EXECUTION", "AIRFLOW__LOGGING__")
    needed = {name for name in AirflowHome(tmp_path).env if name.startswith(of_ports)}
    needed |= set(re.findall(r"HEP_PIPELINE_[A-Z_]+", DAG_FILE.read_text())) | set(
        default["params"]
    )
    assert {name for name in needed if name not in documented} == set()


def test_only_a_backfill_and_a_given_end_leave_files_out_and_they_do_so_in_a_folder_of_their_own(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site()
    options = {"until": "2025-03-01T12:00:00+02:00"}
    types = ("scheduled", "manual", "asset_triggered", "backfill")
    results = site.dag(
        *({"task": "ingest", "run_type": type_} for type_ in types),
        {"task": "ingest", "run_type": "manual", "params": options},
        *({"task": result, "run_type": "backfill"} for result in ("simulate", "promote", "track")),
        {"task": "promote", "run_type": "manual", "params": options},
    )["ends"]
    asked = ["-m", "pipeline", "ingest", "--exit-code", "--config", "demo"]
    own_value = [
        [
            "--set",
            f"run_dir={tmp_path / RUN_DIR}-until/{day}Z",
            "--set",
            "storage=null",
            "--set",
            f"ingest.until={until}",
        ]
        for day, until in (
            ("2025-03-02T000000", "2025-03-02T00:00:00+00:00"),
            ("2025-03-01T100000", "2025-03-01T10:00:00+00:00"),
        )
    ]
    assert [result["words"] for result in site.called()] == [asked] * 3 + [
        [*asked, *result] for result in own_value
    ]
    assert [result["end"].split(":")[0] for result in results] == ["done"] * 5 + [
        "AirflowSkipException"
    ] * 4


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
    assert [end.split(":")[0] for end in ends] == [
        "AirflowSkipException",
        "AirflowRescheduleException",
        "AirflowSkipException",
        "AirflowRescheduleException",
        "AirflowSensorTimeout",
    ]


def test_errors_that_stay_are_not_tried_again(make_site: MakeSite) -> None:
    codes = {"features": 1, "train": 2, "evaluate": 3, "export": 130}
    site = make_site(exit_codes=codes)
    ends = dict(zip(codes, site.ends(*({"task": name} for name in codes)), strict=True))
    assert {stage: message.split(":")[0] for stage, message in ends.items()} == {
        "features": "AirflowException",
        "train": "AirflowFailException",
        "evaluate": "AirflowFailException",
        "export": "AirflowException",
    }
    assert (
        ends["train"]
        == "AirflowFailException: train ended with exit code 2: the command line or the config is wrong"
    )


def test_a_promotion_is_announced_and_a_stage_that_was_up_to_date_is_skipped(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site(exit_codes={"report": 99})

    report, promotion = site.dag({"task": "report"}, {"task": "promote"})["ends"]

    assert report["end"] == "AirflowSkipException: report: there was nothing to do"
    assert report["assets"] == {}
    registry = (tmp_path / RUN_DIR / "registry").as_uri()
    assert promotion == {"end": "done", "assets": {"hep_model_in_use": [registry]}}


def test_values_reach_the_commands_untouched(make_site: MakeSite, tmp_path: Path) -> None:
    config = str(tmp_path / NASTY)
    site = make_site(
        PYTHONPATH=str(tmp_path / "of airflow"), AIRFLOW__SMTP__SMTP_MAIL_FROM="me@example.org"
    )
    assert (
        site.ends(*({"task": name, "params": {"config": config}} for name in ORDER[:9]))
        == ["done"] * 9
    )
    for stage, call in zip(ORDER, site.called(), strict=False):
        expected = ["--if-wanted"] if stage in {"simulate", "gridsearch"} else []
        assert call["words"] == [
            "-m",
            "pipeline",
            stage,
            *expected,
            "--exit-code",
            "--config",
            config,
        ]
        assert call["cwd"] == str(tmp_path)
        assert not [name for name in call["env"] if name.startswith(("AIRFLOW__", "PYTHONPATH"))]
    assert not list(tmp_path.rglob("owned"))
