"""Commands that pages show: command, options, config keys, studies and variables of make exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from page_commands import CHECKOUT, PageCommand, make_commands, pipeline_commands
from typer.main import get_command

from hep_studies.study_files import shipped_studies
from pipeline.cli import app
from pipeline.config import load_config

PAGES = [
    *(CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md", "samples/README.md")),
    *sorted((CHECKOUT / "docs").glob("*.md")),
    *sorted((CHECKOUT / "docs" / "clusters").glob("*.md")),
    *sorted((CHECKOUT / "docs" / "tutorials").glob("*.md")),
]
#: Shipped configs, and configs that readers write themselves by the text of the page.
CONFIGS = {
    "my.yaml",
    "nightly.yaml",
    "large.yaml",
    "compare-particles.yaml",
    *(path.stem for path in (CHECKOUT / "pipeline/configs").iterdir()),
}
STUDIES = {"mine.yaml", *shipped_studies()}
COMMANDS = [
    command for page in PAGES for command in pipeline_commands(page) if command.arguments[0] != "X"
]
MAKEFILE = (CHECKOUT / "Makefile").read_text(encoding="utf-8")


def options_of(command: PageCommand) -> dict[str, Any]:
    """The parsed options of a command; a wrong option is an error."""
    name, *options = command.arguments
    # Typer has its own copy of click, without types.
    group: Any = get_command(app)
    values: dict[str, Any] = group.commands[name].make_context(name, options).params
    return values


def exists(name: str | Path, expected: set[str]) -> bool:
    """Whether a name is known, or is that of a file of the checkout."""
    return str(name) in expected or (CHECKOUT / name).is_file()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}: {command.line}")
def test_a_command_of_a_page_has_valid_options(command: PageCommand) -> None:
    options = options_of(command)
    is_of_tutorial = command.page.startswith("docs/tutorials/")
    # Tutorials write their own configs; tests/integration/test_tutorials.py runs them.
    if is_of_tutorial or command.may_fail:
        return
    config, study = options.get("config"), options.get("study")
    assert config is None or exists(config, CONFIGS)
    assert study is None or exists(study, STUDIES)
    if options.get("overrides"):
        load_config("demo", list(options["overrides"]))


def test_a_wrong_option_is_noticed() -> None:
    """Else the test above could not fail."""
    wrong = PageCommand("README.md", "", ("status", "--verfy"), may_fail=False)
    with pytest.raises(Exception, match="No such option: --verfy"):
        options_of(wrong)
    assert any(
        command.arguments == ("run",) or "--study" in command.arguments for command in COMMANDS
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_variables_of_make_exist(page: Path) -> None:
    users_line = re.search(r"^USERS := (.+)$", MAKEFILE, re.MULTILINE)
    assert users_line
    variables = set()
    for command in make_commands(page):
        variables |= {word.partition("=")[0] for word in command.arguments if "=" in word}
    assert variables <= set(users_line[1].split())
