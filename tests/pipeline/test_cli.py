"""The options that all commands share."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from airflow_home import DAG_FILE
from command_line import SAMPLES, invoke, small_config
from typer.main import get_command

from pipeline.cli import app
from pipeline.command_line import CliOptions
from pipeline.commands.promote import PromotionOutcome
from pipeline.configuration.yaml_text import read_yaml
from pipeline.errors import FolderInUseError
from pipeline.machine.doctor import Finding
from pipeline.run_folder import RunFolder
from pipeline.runs.lock import locked
from pipeline.stages.table import STAGES
from pipeline.terminal.exit_codes import Exit

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
#: They ask for the stage `simulate`.
PROCESSES = ["--set", "simulate.processes=[{name: ttbar}]"]
#: They read only, or write nothing of a run folder.
NEVER_WAIT = {"config", "validate", "status", "doctor", "validate-simulation", "predict"}


def test_airflow_has_a_task_of_each_stage_in_the_same_order() -> None:
    """The file of the DAG imports nothing of ours, so it has names of its own."""
    assert {stage.name for stage in STAGES} <= set(COMMANDS)
    tree = ast.parse(DAG_FILE.read_text(encoding="utf-8"))
    assigned = {
        ast.unparse(node.target): node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
    }
    tasks = [[ast.literal_eval(arg) for arg in task.args[:2]] for task in assigned["TASKS"].elts]  # type: ignore[union-attr]
    assert [name for name, _ in tasks[: len(STAGES)]] == [stage.name for stage in STAGES]
    assert {name for name, _ in tasks} <= set(COMMANDS)
    optional = {name for name, message in tasks if "--if-wanted" in message}
    assert optional == {stage.name for stage in STAGES if stage.wanted_by}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_config_and_changes_and_debug_and_helps(
    name: str, tmp_path: Path
) -> None:
    displayed = {param.opts[0]: param for param in COMMANDS[name].params}
    assert {"--config", "--set", "--debug"} <= displayed.keys()
    assert ("--wait" in displayed) == (name not in NEVER_WAIT)
    assert all(param.help for param in displayed.values())
    result = invoke(name, "-h")
    assert (result.exit_code, result.output) == (Exit.OK, invoke(name, "--help").output)
    needed = [
        word
        for opt, param in displayed.items()
        if param.required
        for word in ([opt] * (opt[0] == "-") + ["there"])
    ]
    options = ["-c", small_config(tmp_path, SAMPLES), "--set", "train.epoch=3"]
    result = invoke(name, *needed, *options)
    assert result.exit_code == Exit.USAGE
    assert "unknown key 'train.epoch'. Did you mean 'epochs'?" in result.stderr
    assert "Traceback" not in result.stderr
    debugged = invoke(name, *needed, *options, "--debug")
    assert debugged.exit_code == Exit.USAGE
    assert "Traceback" in debugged.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "config.yaml"]


def test_workers_set_the_ranks_of_their_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []

    def run(run_folder: RunFolder, *_: object, **__: object) -> None:
        results.append(
            (run_folder.config.train.workers, run_folder.config.compare["train"]["workers"])
        )

    monkeypatch.setattr("pipeline.commands.run.run", run)
    monkeypatch.setattr("hep_studies.compare.compare", run)
    changes = ["--set", "train.workers=2", "--set", "compare.train.workers=3"]
    for command in ("train", "compare"):
        for message in ([], ["--workers", "4"]):
            assert invoke(command, *message, *changes).exit_code == Exit.OK
    assert results == [(2, 3), (4, 3), (2, 3), (2, 4)]


def test_what_was_asked_is_quoted_for_a_shell_and_without_secrets() -> None:
    options = CliOptions(
        "my.yaml", ["report.title=Two words", 'spark.conf={"spark.my.password": "hush"}']
    )
    assert options.with_override("train.workers", None) is options
    assert options.with_override("train.workers", 3).command_line("compare", "thesis") == (
        "python -m pipeline compare thesis --config my.yaml --set 'report.title=Two words' --set 'spark.conf=***' "
        "--set train.workers=3"
    )
    # Once only the values of --set were quoted.
    options = CliOptions("my config.yaml", [])
    assert (
        options.command_line("compare", "a b.yaml")
        == "python -m pipeline compare 'a b.yaml' --config 'my config.yaml'"
    )


def test_the_version_and_completion_of_the_command_line() -> None:
    assert invoke("--version").output.startswith("hep-pipeline 0.")
    displayed = invoke("-h").output
    assert "--install-completion" in displayed
    assert all(len(line) <= 80 for line in displayed.splitlines())


def test_config_shows_every_value_with_its_source_and_no_secret(tmp_path: Path) -> None:
    path = small_config(tmp_path, SAMPLES)
    options = [
        "--config",
        path,
        "--set",
        "train.epochs=7",
        "--set",
        "spark.conf.my.token=hush",
        "--set",
        "report.title=2",
    ]
    result = invoke("config", *options)
    assert result.exit_code == Exit.OK
    assert "  epochs: 7                                  # --set train.epochs=7\n" in result.output
    assert f"  batch_size: 16                             # {path}\n" in result.output
    assert "  learning_rate: 0.003                       # default\n" in result.output
    assert "hush" not in result.output
    # It is a config itself.
    config = (
        CliOptions(str(path), ["train.epochs=7", "spark.conf.my.token='***'", "report.title=2"])
        .run_folder()
        .config
    )
    assert read_yaml(result.output) == config.model_dump(mode="json")
    document = json.loads(invoke("config", "--json", *options).output)
    assert document["train.epochs"] == {"value": 7, "source": "--set train.epochs=7"}
    assert document["spark.conf.my.token"] == {
        "value": "**********",
        "source": "--set spark.conf.my.token=***",
    }
    assert document["samples.0.name"] == {"value": "qcd", "source": str(path)}
    assert document["evaluate.train_events"] == {"value": 20000, "source": "default"}


def test_overrides_of_the_environment_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_config(tmp_path, SAMPLES)
    monkeypatch.setenv("HEP_PIPELINE_SET", "report.title='a  b;c' train.epochs=5 train.seed=3")
    monkeypatch.setenv("HEP_PIPELINE_CONFIG", str(path))
    document = json.loads(invoke("config", "--json", "--set", "train.epochs=6").output)
    assert document["report.title"] == {"value": "a  b;c", "source": "--set report.title=a  b;c"}
    assert [document[f"train.{key}"]["value"] for key in ("epochs", "seed")] == [6, 3]
    monkeypatch.setenv("HEP_PIPELINE_SET", "my.password='hush")
    result = invoke("config")
    assert result.exit_code == Exit.USAGE
    assert "HEP_PIPELINE_SET (SET of make): No closing quotation" in result.stderr
    assert "hush" not in result.stderr


def test_a_dry_run_says_what_plan_says_up_to_a_stage(tmp_path: Path) -> None:
    config = ["--config", small_config(tmp_path, SAMPLES)]
    planned = invoke("plan", *config).output
    assert invoke("run", "--dry-run", *config).output == planned
    cut = invoke("run", "--dry-run", "--until", "train", *config).output
    assert cut.splitlines() == planned.splitlines()[:3]
    assert cut.splitlines()[-1].split() == ["train", "not", "there", "yet", "would", "run"]
    in_json = json.loads(invoke("plan", "--json", *config).output)
    assert [planned_stage["stage"] for planned_stage in in_json] == [
        line.split()[0] for line in planned.splitlines()
    ]
    assert in_json[0] == {
        "stage": "ingest", "state": "not there yet", "would_run": True, "reasons": [], "notes": [], "version": None
    }  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("message", [("compare",), ("compare", "--claims", "docs/studies")])
def test_publishing_to_a_url_made_a_folder_named_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: tuple[str, ...]
) -> None:
    config = small_config(tmp_path, SAMPLES)
    monkeypatch.chdir(tmp_path)
    result = invoke(*message, "--publish", "s3://bucket/pages", "--config", config)
    assert result.exit_code == Exit.USAGE
    assert "--publish: 's3:/bucket/pages' is a URL" in result.stderr
    assert not (tmp_path / "s3:").exists()


def test_run_stops_after_the_stage_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    monkeypatch.setattr(
        "pipeline.runner.Runner.run", lambda _, names, force: results.append((list(names), force))
    )
    config = ["--config", small_config(tmp_path, SAMPLES)]
    assert invoke("run", "--until", "features", "--force", *config).exit_code == Exit.OK
    assert results == [(["ingest", "features"], True)]
    why = "`run` includes no such stage under this config. model.hlf.from_gridsearch does not ask for it."
    for name, message in (("gridsearch", why), ("trian", "Did you mean 'train'?")):
        result = invoke("run", "--until", name, *config)
        assert result.exit_code == Exit.USAGE
        assert message in result.stderr
    assert len(results) == 1


def test_doctor_tells_machines_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = Finding("disk", "error", "The disk is full.", "Make room.")
    monkeypatch.setattr(RunFolder, "examine", lambda *_: [error])
    result = invoke("doctor", "--json", "--config", small_config(tmp_path, SAMPLES))
    assert result.exit_code == Exit.USER_ERROR
    document = json.loads(result.stdout)
    assert (document["is_well"], document["findings"]) == (False, [error._asdict()])


@pytest.mark.slow
def test_a_command_waits_for_the_run_folder_as_long_as_it_is_asked_to(tmp_path: Path) -> None:
    config = small_config(tmp_path, SAMPLES)
    run_folder = CliOptions(str(config), [], wait=0.2).run_folder()
    begun = time.monotonic()
    with (
        locked(tmp_path / "run"),
        pytest.raises(FolderInUseError, match="in use by another run"),
        run_folder.locked(),
    ):
        pytest.fail("two commands hold the run folder")
    assert time.monotonic() - begun >= 0.2
    holds, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "run"):
            holds.set()
            let_go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(10)
    threading.Timer(0.1, let_go.set).start()
    with CliOptions(str(config), [], wait=10).run_folder().locked():
        assert let_go.is_set()
    thread.join()


def test_side_jobs_and_the_nightly_run_do_not_wait_for_each_other(tmp_path: Path) -> None:
    run_folder = CliOptions(str(small_config(tmp_path, SAMPLES)), []).run_folder()
    with (
        run_folder.locked("track"),
        run_folder.locked(),
        pytest.raises(FolderInUseError),
        run_folder.locked("track"),
    ):
        pytest.fail("the job runs twice at once")


@pytest.mark.slow
def test_commands_that_only_read_work_beside_a_run(tmp_path: Path) -> None:
    options = ["--config", small_config(tmp_path, SAMPLES)]
    with locked(tmp_path / "run"):
        for message in (
            ["status"],
            ["status", "--verify"],
            ["plan"],
            ["run", "--dry-run"],
            ["clean", "--dry-run"],
        ):
            result = invoke(*message, *options)
            assert result.exit_code == Exit.OK, result.stderr
        for message in (["clean"], ["ingest"], ["promote"]):
            result = invoke(*message, *options)
            assert result.exit_code == Exit.MAY_PASS
            assert "in use by another run" in result.stderr
        # Each needs what is not there, and not the lock.
        for message in (
            ["compare"],
            ["evaluate-files"],
            ["track", "--set", f"mlflow.uri={tmp_path}"],
        ):
            result = invoke(*message, *options)
            assert result.exit_code in {Exit.USER_ERROR, Exit.NOT_THERE_YET}
            assert "in use" not in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("message", "files", "code"),
    [
        (["ingest"], "incoming/*.root", Exit.NOT_THERE_YET),
        (["validate"], "incoming/*.root", Exit.NOT_THERE_YET),
        # Nobody waits for a name that is mistyped.
        (["ingest"], "incomming/*.root", Exit.USER_ERROR),
        (["ingest"], "incoming/qcd.root", Exit.USER_ERROR),
    ],
)
def test_the_exit_code_tells_what_has_not_come_yet_from_what_is_wrong(
    tmp_path: Path, message: list[str], files: str, code: Exit
) -> None:
    (tmp_path / "incoming").mkdir()
    options = ["--set", f"samples.0.files=[{tmp_path / files}]"]
    result = invoke(*message, *options, "--config", small_config(tmp_path, SAMPLES))
    assert result.exit_code == code, result.stderr


@pytest.mark.parametrize(
    ("message", "ran", "code"),
    [
        (["train", "--exit-code"], [], Exit.NOTHING_TO_DO),
        (["report", "--exit-code"], [], Exit.NOTHING_TO_DO),
        (["train", "--exit-code"], ["train"], Exit.OK),
        (["train"], [], Exit.OK),
        (["gridsearch", "--if-wanted"], [], Exit.OK),
        (["gridsearch", "--if-wanted", "--exit-code"], [], Exit.NOTHING_TO_DO),
        (["simulate", "--if-wanted", "--exit-code"], ["simulate"], Exit.NOTHING_TO_DO),
        (["simulate", "--if-wanted", "--exit-code", *PROCESSES], ["simulate"], Exit.OK),
        (["promote", "--exit-code"], [], Exit.NOTHING_TO_DO),
        (["promote", "--exit-code"], ["hlf"], Exit.OK),
    ],
)
def test_where_it_is_asked_for_the_exit_code_tells_that_there_was_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: list[str], ran: list[str], code: Exit
) -> None:
    verdicts = [PromotionOutcome("hlf", promoted="hlf" in ran, reason="")]
    monkeypatch.setattr("pipeline.commands.run.run", lambda *_, **__: bool(ran))
    monkeypatch.setattr("pipeline.commands.promote.promote", lambda *_, **__: verdicts)
    result = invoke(*message, "--config", small_config(tmp_path, SAMPLES))
    assert result.exit_code == code, result.stderr


@pytest.mark.slow
def test_a_limit_of_the_address_space_is_named(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "ingest",
        "--config",
        str(small_config(tmp_path, SAMPLES)),
    ]
    limited = ["sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh", *command]
    completed = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert completed.returncode == Exit.USER_ERROR, completed.stderr
    assert "`ulimit -v` allows 976 MiB" in completed.stderr
    assert "fix: This limit counts addresses" in completed.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["plan", "--accept", "--json"], "--accept and --json"),
        (["status", "--verify", "--json"], "--verify and --json"),
        (["compare", "--list", "--study", "mine.yaml"], "--study and --list"),
        (["compare", "--list", "--force"], "--force and --list"),
    ],
    ids=str,
)
def test_an_option_without_effect_beside_another_was_ignored(text: list[str], message: str) -> None:
    result = invoke(*text)
    assert (result.exit_code, f"{message}: one of them would have no effect" in result.output) == (
        Exit.USAGE,
        True,
    )


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, "mpirun"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "mpirun"),
        ({"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}, "srun"),
    ],
)
def test_a_command_under_mpirun_was_said_to_wait_for_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], launcher: str
) -> None:
    """As the second of several copies, one for each rank."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with locked(tmp_path / "run"):
        result = invoke("train", "--config", small_config(tmp_path, SAMPLES))
    assert result.exit_code == Exit.USER_ERROR
    assert f"{launcher} started this command as one of" in result.stderr
    assert f"without {launcher}: `train` starts its own" in result.stderr
