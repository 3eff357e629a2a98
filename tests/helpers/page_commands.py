"""The commands that the pages of the documentation show, as they stand there."""

from __future__ import annotations

import re
import shlex
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

CHECKOUT: Final = Path(__file__).resolve().parents[2]
#: The page that says how the pipeline runs on the clusters of a site.
SITE_PAGE: Final = CHECKOUT / "docs" / "site.md"
_PIPELINE: Final = re.compile(r"(?:\$ )?(?:\S*python -m pipeline|(?:\S*/)?hep-pipeline) (.+)")
_MAKE: Final = re.compile(r"(?:\$ )?make ([a-z].*)")
#: Indentation of a code block without a fence.
_INDENT: Final = "    "
#: Where a shell ends a command.
_ENDS: Final = frozenset({"|", "||", "&&", ";", ">", ">>"})


class PageCommand(NamedTuple):
    """A command of a page."""

    page: str
    line: str
    arguments: tuple[str, ...]
    """Without the program."""
    may_fail: bool
    """Whether `|| true` follows."""


def code_blocks(page: Path) -> list[list[str]]:
    """Lines of each code block of a page, without the indentation of the block.

    Blocks are fenced or indented.
    """
    blocks: list[list[str]] = [[]]
    is_fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
            blocks.append([])
        elif is_fenced:
            blocks[-1].append(line.rstrip())
        elif line.startswith(_INDENT):
            blocks[-1].append(line.removeprefix(_INDENT).rstrip())
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def block_with(page: Path, words: str) -> list[str]:
    """Lines of the only code block of a page that holds some words.

    Raises:
        ValueError: None holds them, or several do.
    """
    (block,) = [block for block in code_blocks(page) if words in "\n".join(block)]
    return block


def pipeline_commands(page: Path) -> list[PageCommand]:
    """Commands of the pipeline, in code blocks and in the text."""
    return _commands(page, _PIPELINE)


def make_commands(page: Path) -> list[PageCommand]:
    """Commands of make, in code blocks and in the text."""
    return _commands(page, _MAKE)


def _commands(page: Path, pattern: re.Pattern[str]) -> list[PageCommand]:
    in_blocks = [line.strip() for line in chain.from_iterable(code_blocks(page))]
    inline = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    commands = []
    for line in in_blocks + inline:
        match = pattern.fullmatch(line)
        if match is None:
            continue
        tokens = shlex.split(match[1], comments=True)
        ends = [index for index, token in enumerate(tokens) if token in _ENDS]
        arguments = tuple(tokens[: min(ends, default=len(tokens))])
        name = str(page.relative_to(CHECKOUT))
        commands.append(PageCommand(name, line, arguments, may_fail="||" in tokens))
    return commands
