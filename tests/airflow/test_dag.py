"""The DAG file by itself: quick to parse, nothing of ours imported, values passed untouched, errors told apart."""

from __future__ import annotations

import ast
import json
import shlex
import sys
from pathlib import Path

import pytest
from airflow_home import DAG_FILE, ROOT, AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

ORDER = ["ingest", "features", "gridsearch", "train", "evaluate", "export", "promote", "report"]
SCRIPT = Path(__file__).with_name("inspect_dag.py")
OURS = {"pipeline", "ingestion", "features", "models", "training"}
#: Beyond importing Airflow.
MAX_SECONDS = 1.0
#: Words that a shell would act on.
NASTY = """a folder/$(touch owned) `touch owned` "quoted" 'config' {{ ds }};.yaml"""


def stand_in(folder: Path, exit_codes: dict[str, int]) -> Path:
    """An interpreter that only writes down its words and environment, and ends as told for each stage."""
    path = folder / "stand-in"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        f"with open({str(folder / 'called.jsonl')!r}, 'a') as file:\n"
        "    print(json.dumps({'words': sys.argv[1:], 'env': dict(os.environ), 'cwd': os.getcwd()}), file=file)\n"
        f"sys.exit({exit_codes!r}.get(sys.argv[3], 0))\n"
    )
    path.chmod(0o755)
    return path


def test_loading_it_is_quick_and_imports_nothing_of_ours(tmp_path: Path) -> None:
    home = AirflowHome(tmp_path)
    found = [home.script(SCRIPT, str(DAG_FILE)) for _ in range(3)]
    assert min(each["seconds"] for each in found) < MAX_SECONDS
    assert not OURS & set(found[0]["modules"])
    nodes = list(ast.walk(ast.parse(DAG_FILE.read_text())))
    names = {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= {"airflow", *sys.stdlib_module_names}


def test_stages_follow_each_other_and_are_tried_again(tmp_path: Path) -> None:
    found = AirflowHome(tmp_path, HEP_PIPELINE_RETRY_MINUTES="7", HEP_PIPELINE_TIMEOUT_HOURS="3").script(
        SCRIPT, str(DAG_FILE)
    )
    assert found["chain"] == {
        name: [after] if after else [] for name, after in zip(ORDER, [*ORDER[1:], ""], strict=True)
    }
    assert set(found["retries"].values()) == {2}
    assert set(found["retry_seconds"].values()) == {7 * 60}
    assert set(found["timeout_hours"].values()) == {3}
    assert set(found["together"].values()) == {1}
    assert found["max_active_runs"] == 1
    assert found["catchup"] is False
    assert found["schedule"] == "0 0 * * *"


def test_logging_to_mlflow_and_removing_old_versions_come_last_where_they_are_wanted(tmp_path: Path) -> None:
    home = AirflowHome(
        tmp_path,
        HEP_PIPELINE_PYTHON=str(stand_in(tmp_path, {})),
        HEP_PIPELINE_TRACK="yes",
        HEP_PIPELINE_KEEP="5",
        MLFLOW_TRACKING_URI="https://mlflow.example.org",
    )
    found = home.script(SCRIPT, str(DAG_FILE), "track", "clean")
    assert list(found["chain"])[-3:] == ["report", "track", "clean"]
    assert found["ends"] == {"track": "done", "clean": "done"}
    track, clean = (json.loads(line) for line in (tmp_path / "called.jsonl").read_text().splitlines())
    assert track["env"]["MLFLOW_TRACKING_URI"] == "https://mlflow.example.org"
    assert clean["words"][2:5] == ["clean", "--keep", "5"]


def test_runs_of_before_a_task_was_added_have_ended(tmp_path: Path) -> None:
    # They have no such task: with HEP_PIPELINE_KEEP set later, all new runs waited for them for ever.
    states = {
        "of before": {"ingest": "success"},
        "ended": {"ingest": "success", "clean": "failed"},
        "under way": {"ingest": "success", "clean": None},
        "not begun": {"ingest": None, "clean": None},
        "mine": {"ingest": "running", "clean": None},
    }
    home = AirflowHome(tmp_path, HEP_PIPELINE_KEEP="5")
    found = home.script(SCRIPT, str(DAG_FILE), "--states", json.dumps(states))
    assert found["under_way"] == ["under way"]


@pytest.mark.parametrize(("schedule", "expression"), [("15 2 * * *", "15 2 * * *"), ("none", "None")])
def test_the_schedule_is_the_users(tmp_path: Path, schedule: str, expression: str) -> None:
    found = AirflowHome(tmp_path, HEP_PIPELINE_SCHEDULE=schedule).script(SCRIPT, str(DAG_FILE))
    assert found["schedule"] == expression


def test_errors_that_stay_are_not_tried_again(tmp_path: Path) -> None:
    codes = {"features": 1, "train": 2, "evaluate": 3, "export": 130}
    home = AirflowHome(tmp_path, HEP_PIPELINE_PYTHON=str(stand_in(tmp_path, codes)))
    ends = home.script(SCRIPT, str(DAG_FILE), "ingest", *codes)["ends"]
    assert {stage: words.split(":")[0] for stage, words in ends.items()} == {
        "ingest": "done",
        "features": "AirflowException",
        "train": "AirflowFailException",
        "evaluate": "AirflowFailException",
        "export": "AirflowException",
    }
    assert (
        ends["train"] == "AirflowFailException: train ended with exit code 2: the command line or the config is wrong"
    )


def test_without_the_interpreter_a_task_says_so(tmp_path: Path) -> None:
    missing = tmp_path / "nothing" / "python"
    home = AirflowHome(tmp_path, HEP_PIPELINE_PYTHON=str(missing))
    ends = home.script(SCRIPT, str(DAG_FILE), "train")["ends"]
    assert ends["train"].startswith(f"AirflowFailException: {missing} cannot be started in {ROOT}: ")


def test_values_reach_the_commands_untouched(tmp_path: Path) -> None:
    config = str(tmp_path / NASTY)
    home = AirflowHome(
        tmp_path,
        HEP_PIPELINE_PYTHON=str(stand_in(tmp_path, {})),
        HEP_PIPELINE_CONFIG=config,
        HEP_PIPELINE_DIR=str(tmp_path),
        PYTHONPATH=str(tmp_path / "of airflow"),
        AIRFLOW__SMTP__SMTP_MAIL_FROM="somebody@example.org",
    )
    home.command("db", "migrate")
    home.command("dags", "test", "hep_pipeline", "2025-03-02")
    called = [json.loads(line) for line in (tmp_path / "called.jsonl").read_text().splitlines()]
    assert [each["words"][2] for each in called] == ORDER
    for each in called:
        stage, words = each["words"][2], each["words"]
        wanted = ["--if-wanted"] if stage == "gridsearch" else []
        until = "ingest.until=2025-03-02T00:00:00+00:00"
        assert words == ["-m", "pipeline", stage, *wanted, "--config", config, "--set", until], shlex.join(words)
        assert each["cwd"] == str(tmp_path)
        assert not [name for name in each["env"] if name.startswith(("AIRFLOW__", "PYTHONPATH"))]
    assert not list(tmp_path.rglob("owned"))
