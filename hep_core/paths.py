"""Expands paths as users write them, with `~`, `$NAME` and the patterns of a shell."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from glob import escape, glob, has_magic
from pathlib import Path
from typing import Final, NoReturn

from hep_core.environment import IGNORED_EVERYWHERE, ignored_names
from hep_core.input_errors import InputFileError, nearest_names

_VARIABLE: Final = re.compile(r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[^}]*)\}?)", re.ASCII)
#: As the name of a folder in a pattern, it stands for any number of folders.
_ANY_DEPTH: Final = "**"
#: A character of a name that would be one of a pattern, as `escape_pattern` writes it.
_ESCAPED: Final = re.compile(r"\[([*?\[{])\]")
#: The innermost braces with several choices, or with a range of numbers. Escaped ones are none.
_BRACES: Final = re.compile(
    r"(?!(?<=\[)\{\])\{(?:(?P<choices>[^{}]*,[^{}]*)|(?P<first>\d+)\.\.(?P<last>\d+))\}"
)


class PathError(InputFileError):
    """A path with an unknown variable or user, or with characters that no message can show."""


class ExpandedPath(str):
    """A path that is expanded already: `~` and `$` in it are plain characters of names."""

    __slots__ = ()


def expand_path(text: str, folder: str | Path = "") -> ExpandedPath:
    """Replace `~` and variables in a path; a relative one starts in `folder`.

    A variable is `$NAME` or `${NAME}`. The path of an existing file keeps its dollar signs. In a
    URL, `~` is a plain letter, and `folder` has no effect.

    Raises:
        PathError: A variable is not set, or commands ignore it; or a user of `~NAME` has no home
            folder.
    """
    return _expanded(text, folder, str(folder))


def expand_pattern(text: str, folder: str | Path = "") -> ExpandedPath:
    """Like `expand_path` for a pattern; the name of `folder` is none.

    Raises:
        PathError: As for `expand_path`.
    """
    return _expanded(text, folder, escape_pattern(str(folder)))


def _expanded(text: str, folder: str | Path, start: str) -> ExpandedPath:
    """Expand a path or pattern in a folder, which is written as `start`; see `expand_path`."""
    if isinstance(text, ExpandedPath):
        return text
    path = text
    if not os.path.lexists(os.path.join(folder, text)):  # noqa: PTH118 - patterns keep their signs
        path = _VARIABLE.sub(_variable_value, text)
    if "://" in path:
        return ExpandedPath(path)
    if path.startswith("~"):
        path = os.path.expanduser(path)  # noqa: PTH111 - keeps `//` and `.`
        if path.startswith("~"):
            user = path.split("/")[0]
            raise PathError(f"'{text}': there is no home folder of '{user}'; write the whole path")
    return ExpandedPath(os.path.join(start, path))  # noqa: PTH118 - as above


def pattern_in(folder: str | Path, pattern: str) -> ExpandedPath:
    """A pattern that starts in a folder, whose name is no pattern."""
    return ExpandedPath(os.path.join(escape_pattern(str(folder)), pattern))  # noqa: PTH118 - as above


def escape_pattern(name: str) -> str:
    """The pattern that matches only a name, which may have wildcards and braces.

    Examples:
        >>> escape_pattern("run[1]/{a,b}")
        'run[[]1]/[{]a,b}'
    """
    return re.sub(r"([*?\[{])", r"[\1]", name)


def unescape_pattern(pattern: str) -> str:
    """A pattern with the characters of names as they are; see `escape_pattern`."""
    return _ESCAPED.sub(r"\1", pattern)


def has_wildcards(pattern: str) -> bool:
    """Whether a pattern has wildcards beside the escaped characters of names."""
    return has_magic(_ESCAPED.sub("", pattern))


def _variable_value(variable: re.Match[str]) -> str:
    """The value of a variable in a path, from its match."""
    name = variable["name"] or variable["braced"]
    if name in os.environ:
        return os.environ[name]
    if any(ignored_names(IGNORED_EVERYWHERE, [name])):
        raise PathError(
            f"'{variable.string}': commands ignore the variable '{name}', since programs read it "
            f"as a setting. Use a variable of another name, or write the whole path"
        )
    raise PathError(
        f"'{variable.string}': the environment has no variable '{name}'."
        f"{nearest_names(name, list(os.environ))} A variable is $NAME or ${{NAME}}"
    )


def expand_braces(pattern: str) -> list[str]:
    """The patterns that braces stand for, as in a shell; an existing name stands for itself.

    It replaces the innermost braces by each of their choices, then the braces of the results.

    Examples:
        >>> expand_braces("run{1..3}/{a,b}.root")[:3]
        ['run1/a.root', 'run1/b.root', 'run2/a.root']
    """
    braces = _BRACES.search(pattern)
    if braces is None or os.path.lexists(unescape_pattern(pattern)):
        return [pattern]
    choices = (braces["choices"] or "").split(",")
    if braces["first"]:
        choices = _number_range(braces["first"], braces["last"])
    start, end = braces.span()
    # Other braces of the pattern are expanded by the call; two may give the same pattern.
    patterns = []
    for choice in choices:
        patterns += expand_braces(pattern[:start] + choice + pattern[end:])
    return list(dict.fromkeys(patterns))


def _number_range(first: str, last: str) -> list[str]:
    """Numbers from `first` to `last`, up or down; as wide as the first if that begins with 0.

    Examples:
        >>> _number_range("08", "10"), _number_range("2", "1")
        (['08', '09', '10'], ['2', '1'])
    """
    step = 1 if int(first) <= int(last) else -1
    width = len(first) if first.startswith("0") else 0
    integers = range(int(first), int(last) + step, step)
    return [f"{integer:0{width}d}" for integer in integers]


def local_matches(pattern: str) -> list[str]:
    """Sorted local files that match a pattern as in a shell.

    `**` as a whole name stands for any number of folders, without links to folders. Hidden names
    match only patterns that begin with a dot.

    Raises:
        PathError: A name is no text in UTF-8.
    """
    files = sorted({path for path in _matches(pattern) if not os.path.isdir(path)})  # noqa: PTH112
    for path in files:
        # Python holds bytes that are no UTF-8 as surrogates of this range.
        if re.search("[\ud800-\udfff]", path):
            raise PathError(
                f"{path!a} is no text in UTF-8, so no message or table can name it; rename the "
                f"file."
            )
    return files


def _matches(pattern: str) -> Iterator[str]:
    """Paths that match a pattern; a path may come twice.

    It splits the pattern at its first `**`. Below each folder that matches the part before, it
    walks through all folders and matches the part after in each.
    """
    names = pattern.split("/")
    if _ANY_DEPTH not in names:
        yield from glob(pattern)  # noqa: PTH207 - the pattern may be absolute
        return
    depth = names.index(_ANY_DEPTH)
    top_pattern = "/".join(names[:depth])
    if not top_pattern:
        top_pattern = "/" if depth else "."
    pattern_below = "/".join(names[depth + 1 :]) or "*"
    for top in glob(top_pattern):  # noqa: PTH207 - as above
        for folder, subfolders, _ in os.walk(top, onerror=_raise):
            # os.walk goes only to the folders that stay in this list.
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            if folder == ".":
                yield from _matches(pattern_below)
                continue
            start = f"{escape(folder.removeprefix('./'))}/".replace("//", "/")
            yield from _matches(start + pattern_below)


def _raise(error: OSError) -> NoReturn:
    raise error
