"""Paths as users write them, in the config and on the command line: `~`, `$NAME`, and patterns as in a shell."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from glob import escape, glob, has_magic
from pathlib import Path
from typing import Final, NoReturn

from hep_core.input_errors import InputFileError, nearest_names

_VARIABLE: Final = re.compile(r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[^}]*)\}?)", re.ASCII)
_ANY_DEPTH: Final = "**"
#: The innermost braces with several choices, or with a range of numbers.
_BRACES: Final = re.compile(r"\{(?:(?P<choices>[^{}]*,[^{}]*)|(?P<first>\d+)\.\.(?P<last>\d+))\}")


class PathError(InputFileError):
    """A path with an unknown variable or user, or with what no message can show."""


class ExpandedPath(str):
    """A path without `~` and variables; signs in it are letters."""

    __slots__ = ()


def expand_path(words: str, folder: str | Path = "") -> ExpandedPath:
    """A path or pattern with `~` and variables replaced, from a folder on if it is relative.

    A variable is `$NAME` or `${NAME}`. A name with a dollar sign that is there stands for itself. In a URL, `~` is a
    letter.
    """
    if isinstance(words, ExpandedPath):
        return words
    path = words if os.path.lexists(os.path.join(folder, words)) else _VARIABLE.sub(_value, words)  # noqa: PTH118
    if "://" in path:
        return ExpandedPath(path)
    if path.startswith("~"):
        path = os.path.expanduser(path)  # noqa: PTH111 - keeps `//` and `.`
        if path.startswith("~"):
            raise PathError(
                f"'{words}': there is no home folder of '{path.split('/')[0]}'; write the whole path"
            )
    # In a pattern the name of the folder is no pattern.
    start = escape(str(folder)) if has_magic(path) else str(folder)
    return ExpandedPath(os.path.join(start, path))  # noqa: PTH118 - patterns keep their signs


def _value(variable: re.Match[str]) -> str:
    name = variable["name"] or variable["braced"]
    if name in os.environ:
        return os.environ[name]
    raise PathError(
        f"'{variable.string}': the environment has no variable '{name}'.{nearest_names(name, list(os.environ))} A "
        f"variable is $NAME or ${{NAME}}"
    )


def expand_braces(pattern: str) -> list[str]:
    """The patterns that braces stand for, as in a shell; a name with braces that is there stands for itself.

    Examples:
        >>> expand_braces("run{1..3}/{a,b}.root")[:3]
        ['run1/a.root', 'run1/b.root', 'run2/a.root']
    """
    braces = _BRACES.search(pattern)
    if braces is None or os.path.lexists(pattern):
        return [pattern]
    choices = (braces["choices"] or "").split(",")
    if braces["first"]:
        first, last = int(braces["first"]), int(braces["last"])
        step = 1 if first <= last else -1
        width = len(braces["first"]) if braces["first"].startswith("0") else 0
        choices = [f"{number:0{width}d}" for number in range(first, last + step, step)]
    start, end = braces.span()
    patterns = []
    for choice in choices:
        patterns += expand_braces(pattern[:start] + choice + pattern[end:])
    return list(dict.fromkeys(patterns))


def local_matches(pattern: str) -> list[str]:
    """Sorted local files that match a pattern as in a shell.

    `**` as a whole name stands for any number of folders, links to folders are not followed there; hidden names match
    only patterns that begin with a dot.
    """
    found = sorted({path for path in _matches(pattern) if not os.path.isdir(path)})  # noqa: PTH112
    for path in found:
        if re.search("[\ud800-\udfff]", path):
            raise PathError(
                f"{path!a} is no text in UTF-8, so no message or table can name it; rename the file."
            )
    return found


def _matches(pattern: str) -> Iterator[str]:
    names = pattern.split("/")
    if _ANY_DEPTH not in names:
        yield from glob(pattern)  # noqa: PTH207 - the pattern may be absolute
        return
    place = names.index(_ANY_DEPTH)
    before, after = "/".join(names[:place]), "/".join(names[place + 1 :])
    start = before or ("/" if place else ".")
    for top in glob(start):  # noqa: PTH207 - as above
        for folder, inside, _ in os.walk(top, onerror=_raise):
            inside[:] = [name for name in inside if not name.startswith(".")]
            below = (
                "" if folder == "." else f"{escape(folder.removeprefix('./'))}/".replace("//", "/")
            )
            yield from _matches(f"{below}{after or '*'}")


def _raise(error: OSError) -> NoReturn:
    raise error
