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
#: Asks for the stage `simulate`.
PROCESSES = ["--set", "simulate.processes=[{name: ttbar}]"]
#: Commands that only read, or write nothing of a run folder.
NEVER_WAIT = {"config", "validate", "status", "doctor", "validate-simulation", "predict"}


def test_airflow_has_a_task_of_each_stage_in_the_same_order() -> None:
    """The file of the DAG imports nothing of ours, so it has names of its own."""
    tree = ast.parse(DAG_FILE.read_text(encoding="utf-8"))
    values = {
        ast.unparse(node.target): node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
    }
    options_of_tasks = {}
    for task in values["TASKS"].elts:  # type: ignore[union-attr]
        name, options, _ = map(ast.literal_eval, task.args)
        options_of_tasks[name] = options

    stages = [stage.name for stage in STAGES]
    assert list(options_of_tasks)[: len(stages)] == stages
    assert {*stages, *options_of_tasks} <= set(COMMANDS)
    optional_tasks = [name for name, words in options_of_tasks.items() if "--if-wanted" in words]
    assert optional_tasks == [stage.name for stage in STAGES if stage.wanted_by]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_for_the_common_options(name: str) -> None:
    params = {param.opts[0]: param for param in COMMANDS[name].params}

    result = invoke(name, "-h")

    assert {"--config", "--set", "--debug"} <= params.keys()
    assert ("--wait" in params) == (name not in NEVER_WAIT)
    assert all(param.help for param in params.values())
    assert (result.exit_code, result.output) == (Exit.OK, invoke(name, "--help").output)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_an_unknown_key_and_writes_nothing(name: str, tmp_path: Path) -> None:
    arguments = [name, "-c", small_config(tmp_path, SAMPLES), "--set", "train.epoch=3"]
    for param in COMMANDS[name].params:
        if param.required:
            option = [param.opts[0]] if param.opts[0].startswith("-") else []
            arguments += [*option, "there"]

    result = invoke(*arguments)
    debugged = invoke(*arguments, "--debug")

    assert result.exit_code == debugged.exit_code == Exit.USAGE
    assert "unknown key 'train.epoch'. Did you mean 'epochs'?" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in debugged.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "config.yaml"]


@pytest.mark.parametrize(
    ("command", "option", "workers"),
    [
        ("train", [], (2, 3)),
        ("train", ["--workers", "4"], (4, 3)),
        ("compare", [], (2, 3)),
        ("compare", ["--workers", "4"], (2, 4)),
    ],
)
def test_workers_set_the_ranks_of_their_own_command(
    monkeypatch: pytest.MonkeyPatch, command: str, option: list[str], workers: tuple[int, int]
) -> None:
    configs = []

    def run(run_folder: RunFolder, *_: object, **__: object) -> None:
        configs.append(run_folder.config)

    monkeypatch.setattr("pipeline.commands.run.run", run)
    monkeypatch.setattr("hep_studies.compare.compare", run)
    overrides = ["--set", "train.workers=2", "--set", "compare.train.workers=3"]

    result = invoke(command, *option, *overrides)

    assert result.exit_code == Exit.OK
    (config,) = configs
    assert (config.train.workers, config.compare["train"]["workers"]) == workers


def test_the_command_line_is_quoted_for_a_shell_and_without_secrets() -> None:
    overrides = ["report.title=Two words", 'spark.conf={"spark.my.password": "hush"}']
    options = CliOptions("my config.yaml", overrides)

    assert options.with_override("train.workers", None) is options
    assert options.with_override("train.workers", 3).command_line("compare", "a b.yaml") == (
        "python -m pipeline compare 'a b.yaml' --config 'my config.yaml' --set 'report.title=Two "
        "words' --set 'spark.conf=***' --set train.workers=3"
    )


def test_the_version_and_completion_of_the_command_line() -> None:
    help_text = invoke("-h").output

    assert invoke("--version").output.startswith("hep-pipeline 0.")
    assert "--install-completion" in help_text
    assert all(len(line) <= 80 for line in help_text.splitlines())


def test_config_shows_every_value_with_its_source_and_no_secret(tmp_path: Path) -> None:
    path = small_config(tmp_path, SAMPLES)
    options = ["--config", path, "--set", "train.epochs=7"]
    options += ["--set", "spark.conf.my.token=hush", "--set", "report.title=2"]

    result = invoke("config", *options)
    entries = json.loads(invoke("config", "--json", *options).output)

    assert result.exit_code == Exit.OK
    assert "  epochs: 7                                  # --set train.epochs=7\n" in result.output
    assert f"  batch_size: 16                             # {path}\n" in result.output
    assert "  learning_rate: 0.003                       # default\n" in result.output
    assert "hush" not in result.output
    assert entries["train.epochs"] == {"value": 7, "source": "--set train.epochs=7"}
    assert entries["spark.conf.my.token"] == {
        "value": "**********",
        "source": "--set spark.conf.my.token=***",
    }
    assert entries["samples.0.name"] == {"value": "qcd", "source": str(path)}
    assert entries["evaluate.train_events"] == {"value": 20000, "source": "default"}


def test_the_output_of_config_is_a_config(tmp_path: Path) -> None:
    path = small_config(tmp_path, SAMPLES)

    output = invoke("config", "--config", path, "--set", "report.title=2").output

    config = CliOptions(str(path), ["report.title=2"]).run_folder().config
    assert read_yaml(output) == config.model_dump(mode="json")


def test_overrides_of_the_environment_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEP_PIPELINE_SET", "report.title='a  b;c' train.epochs=5 train.seed=3")
    monkeypatch.setenv("HEP_PIPELINE_CONFIG", str(small_config(tmp_path, SAMPLES)))

    entries = json.loads(invoke("config", "--json", "--set", "train.epochs=6").output)

    assert entries["report.title"] == {"value": "a  b;c", "source": "--set report.title=a  b;c"}
    assert entries["train.epochs"]["value"] == 6
    assert entries["train.seed"]["value"] == 3


def test_a_mistake_in_overrides_of_the_environment_hides_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEP_PIPELINE_SET", "my.password='hush")

    result = invoke("config")

    assert result.exit_code == Exit.USAGE
    assert "HEP_PIPELINE_SET (SET of make): No closing quotation" in result.stderr
    assert "hush" not in result.stderr


def test_a_dry_run_says_what_plan_says_up_to_a_stage(tmp_path: Path) -> None:
    config = ["--config", small_config(tmp_path, SAMPLES)]

    plan = invoke("plan", *config).output
    dry_run = invoke("run", "--dry-run", *config).output
    until_train = invoke("run", "--dry-run", "--until", "train", *config).output
    stages = json.loads(invoke("plan", "--json", *config).output)

    assert dry_run == plan
    assert until_train.splitlines() == plan.splitlines()[:3]
    assert until_train.splitlines()[-1].split() == ["train", "not", "there", "yet", "would", "run"]
    assert [stage["stage"] for stage in stages] == [line.split()[0] for line in plan.splitlines()]
    assert stages[0] == {
        "stage": "ingest",
        "state": "not there yet",
        "would_run": True,
        "reasons": [],
        "notes": [],
        "version": None,
        # The file that a workflow tool watches.
        "target": str(tmp_path / "run" / "ingest" / "current.json"),
    }
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [("compare",), ("compare", "--claims", "docs/studies")])
def test_publishing_to_a_url_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    config = small_config(tmp_path, SAMPLES)
    monkeypatch.chdir(tmp_path)

    result = invoke(*command, "--publish", "s3://bucket/pages", "--config", config)

    assert result.exit_code == Exit.USAGE
    assert "--publish: 's3:/bucket/pages' is a URL" in result.stderr
    assert not (tmp_path / "s3:").exists()


def test_run_stops_after_the_stage_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    monkeypatch.setattr(
        "pipeline.runner.Runner.run", lambda _, names, force: runs.append((list(names), force))
    )

    result = invoke(
        *("run", "--until", "features", "--force"), "--config", small_config(tmp_path, SAMPLES)
    )

    assert result.exit_code == Exit.OK
    assert runs == [(["ingest", "features"], True)]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            "gridsearch",
            (
                "`run` includes no such stage under this config. model.hlf.from_gridsearch does not "
                "ask for it."
            ),
        ),
        ("trian", "Did you mean 'train'?"),
    ],
)
def test_a_stage_that_run_does_not_include_is_refused(
    tmp_path: Path, stage: str, message: str
) -> None:
    result = invoke("run", "--until", stage, "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code == Exit.USAGE
    assert message in result.stderr


def test_doctor_gives_its_findings_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = Finding("disk", "error", "The disk is full.", "Make room.")
    monkeypatch.setattr(RunFolder, "examine", lambda *_: [error])

    result = invoke("doctor", "--json", "--config", small_config(tmp_path, SAMPLES))

    diagnosis = json.loads(result.stdout)
    assert result.exit_code == Exit.USER_ERROR
    assert (diagnosis["is_well"], diagnosis["findings"]) == (False, [error._asdict()])


@pytest.mark.slow
def test_a_command_waits_for_the_run_folder_and_then_gives_up(tmp_path: Path) -> None:
    run_folder = CliOptions(str(small_config(tmp_path, SAMPLES)), [], wait=0.2).run_folder()

    start = time.monotonic()
    with (
        locked(tmp_path / "run"),
        pytest.raises(FolderInUseError, match="in use by another run"),
        run_folder.locked(),
    ):
        pytest.fail("two commands hold the run folder")

    assert time.monotonic() - start >= 0.2


@pytest.mark.slow
def test_a_command_that_waits_gets_the_run_folder_when_it_is_free(tmp_path: Path) -> None:
    run_folder = CliOptions(str(small_config(tmp_path, SAMPLES)), [], wait=10).run_folder()
    is_held, is_released = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "run"):
            is_held.set()
            is_released.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(10)
    threading.Timer(0.1, is_released.set).start()

    with run_folder.locked():
        assert is_released.is_set()
    holder.join()


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
@pytest.mark.parametrize(
    ("command", "exit_codes", "needs_lock"),
    [
        ("status", {Exit.OK}, False),
        ("status --verify", {Exit.OK}, False),
        ("plan", {Exit.OK}, False),
        ("run --dry-run", {Exit.OK}, False),
        ("clean --dry-run", {Exit.OK}, False),
        ("clean", {Exit.MAY_PASS}, True),
        ("ingest", {Exit.MAY_PASS}, True),
        ("promote", {Exit.MAY_PASS}, True),
        # Their input does not exist, and they do not need the lock.
        ("compare", {Exit.USER_ERROR, Exit.NOT_THERE_YET}, False),
        ("evaluate-files", {Exit.USER_ERROR, Exit.NOT_THERE_YET}, False),
        ("track --set mlflow.uri=runs", {Exit.USER_ERROR, Exit.NOT_THERE_YET}, False),
    ],
)
def test_only_commands_that_write_stages_or_models_need_the_run_folder(
    tmp_path: Path, command: str, exit_codes: set[Exit], needs_lock: bool
) -> None:
    with locked(tmp_path / "run"):
        result = invoke(*command.split(), "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code in exit_codes, result.stderr
    assert ("in use by another run" in result.stderr) == needs_lock


@pytest.mark.parametrize(
    ("command", "files", "exit_code"),
    [
        ("ingest", "incoming/*.root", Exit.NOT_THERE_YET),
        ("validate", "incoming/*.root", Exit.NOT_THERE_YET),
        # Nobody waits for a name that is mistyped.
        ("ingest", "incomming/*.root", Exit.USER_ERROR),
        ("ingest", "incoming/qcd.root", Exit.USER_ERROR),
    ],
)
def test_files_that_may_still_come_have_an_exit_code_of_their_own(
    tmp_path: Path, command: str, files: str, exit_code: Exit
) -> None:
    (tmp_path / "incoming").mkdir()
    override = f"samples.0.files=[{tmp_path / files}]"

    result = invoke(command, "--set", override, "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code == exit_code, result.stderr


@pytest.mark.parametrize(
    ("command", "did_something", "exit_code"),
    [
        (["train", "--exit-code"], False, Exit.NOTHING_TO_DO),
        (["report", "--exit-code"], False, Exit.NOTHING_TO_DO),
        (["train", "--exit-code"], True, Exit.OK),
        (["train"], False, Exit.OK),
        (["gridsearch", "--if-wanted"], False, Exit.OK),
        (["gridsearch", "--if-wanted", "--exit-code"], False, Exit.NOTHING_TO_DO),
        (["simulate", "--if-wanted", "--exit-code"], True, Exit.NOTHING_TO_DO),
        (["simulate", "--if-wanted", "--exit-code", *PROCESSES], True, Exit.OK),
        (["promote", "--exit-code"], False, Exit.NOTHING_TO_DO),
        (["promote", "--exit-code"], True, Exit.OK),
    ],
)
def test_with_exit_code_a_command_that_had_nothing_to_do_ends_with_99(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    did_something: bool,
    exit_code: Exit,
) -> None:
    outcomes = [PromotionOutcome("hlf", promoted=did_something, reason="")]
    monkeypatch.setattr("pipeline.commands.run.run", lambda *_, **__: did_something)
    monkeypatch.setattr("pipeline.commands.promote.promote", lambda *_, **__: outcomes)

    result = invoke(*command, "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code == exit_code, result.stderr


@pytest.mark.slow
def test_a_limit_of_the_address_space_is_named(tmp_path: Path) -> None:
    config = str(small_config(tmp_path, SAMPLES))
    command = [sys.executable, "-m", "pipeline", "ingest", "--config", config]
    limited = ["sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh", *command]

    completed = subprocess.run(limited, capture_output=True, text=True, check=False)

    assert completed.returncode == Exit.USER_ERROR, completed.stderr
    assert "`ulimit -v` allows 976 MiB" in completed.stderr
    assert "fix: This limit counts addresses" in completed.stderr


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("plan --accept --json", "--accept and --json"),
        ("status --verify --json", "--verify and --json"),
        ("compare --list --study mine.yaml", "--study and --list"),
        ("compare --list --force", "--force and --list"),
    ],
)
def test_an_option_without_effect_beside_another_is_refused(command: str, options: str) -> None:
    result = invoke(*command.split())

    assert result.exit_code == Exit.USAGE
    assert f"{options}: one of them would have no effect" in result.output


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, "mpirun"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "mpirun"),
        ({"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}, "srun"),
    ],
)
def test_a_command_that_a_launcher_starts_several_times_is_refused_before_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], launcher: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    with locked(tmp_path / "run"):
        result = invoke("train", "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code == Exit.USER_ERROR
    assert f"{launcher} started this command as one of" in result.stderr
    assert f"without {launcher}: `train` starts its own" in result.stderr
