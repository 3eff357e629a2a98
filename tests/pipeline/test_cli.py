"""What every command has in common, and what is said of options that have moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES, small_config
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from pipeline.cli import Asked, app
from pipeline.errors import ConfigError
from pipeline.run_folder import RunFolder
from pipeline.stages.table import STAGES
from pipeline.terminal.exit_codes import Exit

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
#: Options and arguments that a command has besides those of every command.
OWN: dict[str, set[str]] = {
    **{name: {"--force"} for name in ("run", "ingest", "features", "evaluate", "export", "report")},
    "gridsearch": {"--force", "--if-wanted"},
    "train": {"--force", "--workers"},
    "compare": {"name", "--force", "--workers"},
    "evaluate-files": {"--model", "--inputs", "--out"},
    "promote": {"--force"},
    "rollback": {"network"},
    "clean": {"--keep", "--dry-run"},
    "load-test": {"folder", "--events", "--seed"},
    "plan": {"--accept"},
    "status": {"--json", "--verify"},
    **{name: set() for name in ("track", "validate", "doctor")},
}


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_each_stage_is_a_command_of_its_name() -> None:
    assert {stage.name for stage in STAGES} <= set(COMMANDS)
    assert set(COMMANDS) == set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_every_command_has_the_options_of_all_beside_its_own(name: str) -> None:
    shown = {param.opts[0] for param in COMMANDS[name].params if not getattr(param, "hidden", False)}
    assert shown == {"--config", "--set", "--debug"} | OWN[name]
    (config,) = (param for param in COMMANDS[name].params if param.name == "config")
    assert (config.default, config.envvar, config.secondary_opts) == ("demo", "HEP_PIPELINE_CONFIG", [])
    assert "-c" in config.opts


@pytest.mark.parametrize("name", OWN)
def test_every_command_helps_with_words_on_each_option(name: str) -> None:
    done = invoke(name, "--help")
    assert done.exit_code == Exit.OK
    assert COMMANDS[name].help.strip().endswith(".")
    assert all(param.help for param in COMMANDS[name].params if not getattr(param, "hidden", False))
    for option in ("--config", "--set", "--debug"):
        assert option in done.output


@pytest.mark.parametrize("name", OWN)
def test_every_command_takes_config_and_changes_and_debug(name: str, tmp_path: Path) -> None:
    needed = ["there"] if OWN[name] & {"network", "folder"} else []
    options = ["--config", small_config(tmp_path, SAMPLES), "--set", "train.epoch=3"]
    done = invoke(name, *needed, *options)
    assert done.exit_code == Exit.USAGE
    assert "unknown key 'train.epoch'. Did you mean 'epochs'?" in done.stderr
    assert "Traceback" not in done.stderr
    debugged = invoke(name, *needed, *options, "--debug")
    assert debugged.exit_code == Exit.USAGE
    assert "Traceback" in debugged.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "config.yaml"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["train", "--compare", "thesis"], "compare thesis"),
        (["evaluate", "--model", "x=a model"], "evaluate-files --model 'x=a model'"),
        (["evaluate", "--inputs", "[a]*.root"], "evaluate-files --inputs '[a]*.root'"),
        (["evaluate", "--out", "z"], "evaluate-files --out z"),
    ],
)
def test_an_option_that_has_moved_is_a_usage_error_with_the_new_spelling(
    old: list[str], new: str, tmp_path: Path
) -> None:
    done = invoke(*old, "--config", small_config(tmp_path, SAMPLES))
    assert done.exit_code == Exit.USAGE
    said = f"error: `{old[0]} {old[1]}` has moved. Type `python -m pipeline {new}`, with the same options."
    assert done.stderr == said + "\n"
    assert old[1] not in invoke(old[0], "--help").output


def test_workers_set_the_ranks_of_their_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def run(run_folder: RunFolder, *_: object, **__: object) -> None:
        found.append((run_folder.config.train.workers, run_folder.config.compare.workers))

    monkeypatch.setattr("pipeline.commands.run.run", run)
    monkeypatch.setattr("pipeline.commands.compare.compare", run)
    changes = ["--set", "train.workers=2", "--set", "compare.workers=3"]
    for command in ("train", "compare"):
        for words in ([], ["--workers", "4"]):
            assert invoke(command, *words, *changes).exit_code == Exit.OK
    assert found == [(2, 3), (4, 3), (2, 3), (2, 4)]


def test_what_was_asked_is_quoted_for_a_shell_and_without_secrets() -> None:
    asked = Asked("my.yaml", ["report.title=Two words", 'spark.conf={"spark.my.password": "hush"}'])
    assert asked.plus("train.workers", None) is asked
    assert asked.plus("train.workers", 3).typed("compare", "thesis") == (
        "python -m pipeline compare thesis --config my.yaml --set 'report.title=Two words' --set 'spark.conf=***' "
        "--set train.workers=3"
    )


def test_a_run_folder_is_made_of_the_config_that_was_asked_for(tmp_path: Path) -> None:
    asked = Asked(str(small_config(tmp_path, SAMPLES)), ["train.epochs=7"])
    run_folder = asked.run_folder()
    assert (run_folder.config.run_dir, run_folder.config.train.epochs) == (tmp_path / "run", 7)
    assert isinstance(run_folder.console, Console)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="unknown key"):
        asked.plus("no_such", 1).run_folder()
