"""The tutorials, as a reader follows them: files are written, commands run, and their output is as the page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
#: A block with the paragraph before it, which names the file that the block is.
BLOCK = re.compile(r"^(?P<before>[^\n]*)\n\n```(?P<kind>\w+)\n(?P<lines>.*?)^```", re.MULTILINE | re.DOTALL)


def shown(lines: list[str]) -> str:
    """Expected lines as a regular expression: in this order, others between them; `...` is anything in a line."""
    kept = [re.escape(line).replace(re.escape("..."), ".*").replace(r"\ ", r"\s+") for line in lines]
    return r"(?s:.*?)".join(rf"(?m:^[ ]*{line.strip()})" for line in kept)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    for name in ("samples", ".venv", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    ran = 0
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["kind"] != "console":
            (name,) = re.findall(r"^`([\w/.-]+)`", block["before"])
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(block["lines"], encoding="utf-8")
            continue
        for part in re.split(r"^\$ ", block["lines"], flags=re.MULTILINE)[1:]:
            command, *expected = part.splitlines()
            done = subprocess.run(
                ["/bin/bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            # The lines of both streams; a terminal shows them together.
            assert re.search(shown(expected), done.stderr + done.stdout), f"{command}\n{done.stderr}{done.stdout}"
            ran += 1
    assert ran > 3
