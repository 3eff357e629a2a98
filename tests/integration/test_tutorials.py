"""The tutorials, as a reader follows them: files are written, commands run, and their output is as
the page says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
#: A block with the paragraph before it, which names the file that the block is.
BLOCK = re.compile(
    r"^(?P<paragraph>[^\n]*)\n\n```(?P<language>\w+)\n(?P<lines>.*?)^```", re.MULTILINE | re.DOTALL
)
#: A line of a crontab: schedule, user if it is one of the system, command.
CRON = re.compile(r"^ *(?:[\d*]+ ){5} *(?:physics +)?(?P<command>cd .*)$", re.MULTILINE)
#: A line of a crontab that sets a variable, before the schedules.
CRON_VARIABLE = re.compile(r"^    (?P<name>[A-Z_]+)=(?P<value>.*)$", re.MULTILINE)


def output_pattern(lines: list[str]) -> str:
    """A regular expression of lines in this order, with others between them.

    `...` is anything in a line.
    """
    line_patterns = []
    for line in lines:
        pattern = re.escape(line).replace(re.escape("..."), ".*").replace(r"\ ", r"\s+")
        line_patterns.append(rf"(?m:^[ ]*{pattern.strip()})")
    return r"(?s:.*?)".join(line_patterns)


def run_by_cron(page: Path, checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run the line of a page as cron does: by `sh`, from the home folder, with few variables."""
    text = page.read_text(encoding="utf-8")
    (line,) = CRON.findall(text)
    (checkout.parent / "hep-pipeline").symlink_to(checkout)
    variables = dict(CRON_VARIABLE.findall(text.partition(line)[0]))
    environment = {**variables, "HOME": str(checkout.parent), "PATH": os.environ["PATH"]}
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_commands_of_the_cron_line_take_the_config_of_the_page(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    python = checkout / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)

    by_cron = run_by_cron(ROOT / "docs" / "tutorials" / "every-night.md", checkout)

    assert by_cron.returncode == 0, by_cron.stderr
    commands = (checkout / "nightly.log").read_text().splitlines()
    assert [command.split()[2] for command in commands] == ["run", "promote", "clean"]
    for command in commands:
        assert "--config night/nightly.yaml" in command


def write_file(block: re.Match[str], checkout: Path) -> None:
    """Write a block into the file that its paragraph names."""
    (name,) = re.findall(r"^`([\w/.-]+)`", block["paragraph"])
    path = checkout / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block["lines"], encoding="utf-8")


def run_console(block: re.Match[str], checkout: Path) -> int:
    """Run the commands of a block, and compare their output; returns their number."""
    commands = re.split(r"^\$ ", block["lines"], flags=re.MULTILINE)[1:]
    for text in commands:
        command, *expected_lines = text.splitlines()
        completed = subprocess.run(
            ["/bin/bash", "-c", command], cwd=checkout, capture_output=True, text=True, check=False
        )
        # The lines of both streams; a terminal shows them together.
        output = completed.stderr + completed.stdout
        assert completed.returncode == 0, f"{command}\n{output}"
        assert re.search(output_pattern(expected_lines), output), f"{command}\n{output}"
    return len(commands)


@pytest.mark.minutes
@pytest.mark.end_to_end
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("samples", ".venv", "docs"):
        (checkout / name).symlink_to(ROOT / name)

    num_commands = 0
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["language"] == "console":
            num_commands += run_console(block, checkout)
        elif block["language"] == "cron":
            assert run_by_cron(page, checkout).returncode == 0
            assert "run " in (checkout / "nightly.log").read_text()
        else:
            write_file(block, checkout)

    assert num_commands > 3
