"""The options that all commands share."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow_home import DAG_FILE
from command_line import SAMPLES, invoke, small_config
from typer.main import get_command

from pipeline.cli import app
from pipeline.command_line import CliOptions
from pipeline.configuration.yaml_text import read_yaml
from pipeline.machine.doctor import Finding
from pipeline.run_folder import RunFolder
from pipeline.stages.table import STAGES
from pipeline.terminal.exit_codes import Exit

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
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
    for command in values["COMMANDS"].elts:  # type: ignore[union-attr]
        name, options, _ = map(ast.literal_eval, command.args)
        options_of_tasks[name] = options

    stages = [stage.name for stage in STAGES]
    assert list(options_of_tasks)[: len(stages)] == stages
    assert {*stages, *options_of_tasks} <= set(COMMANDS)
    optional_tasks = [
        name for name, options in options_of_tasks.items() if "--if-wanted" in options
    ]
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
        ("compare --list --study mine.yaml", "--study and --list"),
        ("compare --list --force", "--force and --list"),
    ],
)
def test_an_option_without_effect_beside_another_is_refused(command: str, options: str) -> None:
    result = invoke(*command.split())

    assert result.exit_code == Exit.USAGE
    assert f"{options}: one of them would have no effect" in result.output
