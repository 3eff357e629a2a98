"""Errors of input files; each message says what is wrong, where, the nearest valid name and what to do.

Every exception takes its finished message as the only argument, so that Spark can send it from a task to the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

from hep_core.input_errors import InputFileError, nearest_names, shortened_list
from hep_core.secrets import redact
from ingestion.known_layouts import LAYOUTS
from ingestion.schema import PARTICLE_COLLECTIONS


class NoFilesError(InputFileError):
    """A sample has no files, or one of its named files is missing."""


class FilesToComeError(NoFilesError):
    """A sample has no files yet: globs match nothing in folders that are there, or all files wait for a later run."""


class TruncatedFileError(InputFileError):
    """The file is shorter than its own header says."""


class UnclosedFileError(InputFileError):
    """The job that wrote the file ended before it saved a tree."""


def _layout_of(available: Collection[str]) -> str:
    """A sentence about the layout whose tree a file holds; empty without one."""
    for layout, names in LAYOUTS.items():
        if names.tree in available:
            return f"For the tree '{names.tree}' there is `ingest: {{layout: {layout}}}`. "
    return ""


class MissingTreeError(InputFileError):
    """The configured tree is not in the file."""

    @classmethod
    def at(cls, path: str, tree: str, available: Mapping[str, str]) -> Self:
        """List the keys that the file holds instead, each with its class."""
        if tree in available:
            return cls(
                f"{path}: '{tree}' is a {available[tree]}; a TTree or an RNTuple is read. Name another tree, or write "
                f"the file again with ROOT 6.34 or later if it is an experimental RNTuple."
            )
        held = sorted(f"{name} ({kind})" for name, kind in available.items())
        if not held:
            return cls(
                f"{path} has no tree '{tree}': the file is empty. Take it out of the sample's files."
            )
        return cls(
            f"{path} has no tree '{tree}'. It holds: {shortened_list(held)}.{nearest_names(tree, held)} "
            f"{_layout_of(available)}Set ingest.tree, or take the file out of the sample's files."
        )


class MissingBranchError(InputFileError):
    """A needed branch is not in the tree."""

    @classmethod
    def at(
        cls,
        path: str,
        tree: str,
        missing: dict[str, str],
        available: Iterable[str],
        to_paste: str = "",
    ) -> Self:
        """Name each missing branch with the field (`muons.pt`) that needs it and the nearest branches of the tree.

        `to_paste` are lines of a config that names the branches of the file.
        """
        held = sorted(set(available))
        lines = [
            f"  '{branch}' (for {field}).{nearest_names(branch, held)}"
            for field, branch in missing.items()
        ]
        without = " Files without particles need features.particles: false."
        return cls(
            f"{path}: tree '{tree}' lacks {len(missing)} needed branch{'es' if len(missing) > 1 else ''}:\n"
            + "\n".join(lines)
            + "\nIf they have other names in your files, set these in ingest.branch_map (for example `muons: Muon`), "
            "or under the key in brackets. Branches of friend trees are not read; write all into one tree."
            + (without if any(field.startswith(PARTICLE_COLLECTIONS) for field in missing) else "")
            + (f"\n{to_paste}" if to_paste else "")
        )


class WrongBranchTypeError(InputFileError):
    """A branch holds values of another type than its field needs."""


class ConflictingFilesError(InputFileError):
    """Good files cannot be read together: an event is there twice, or some lack weights or particles of others."""


class EmptySampleError(InputFileError):
    """No event of a sample is left; the message holds its cutflow."""


class BadFilesError(InputFileError):
    """Several files are bad; each is listed."""

    @classmethod
    def raise_any(cls, problems: Sequence[tuple[str, InputFileError]]) -> None:
        """Raise the problem itself if it is the only one, or one error that lists them; nothing without any.

        A problem is given with the path of its file.
        """
        if len(problems) == 1:
            raise problems[0][1]
        if problems:
            raise cls(
                f"{len(problems)} input files are bad:\n{list_messages((path, str(each)) for path, each in problems)}"
            )


def list_messages(messages: Iterable[tuple[str, str]]) -> str:
    """The first twenty of `group_messages` messages, each on a line."""
    found = group_messages(messages)
    more = f"\n... and {len(found) - 20} more" if len(found) > 20 else ""
    return "\n".join(f"- {message}" for message in found[:20]) + more


def group_messages(messages: Iterable[tuple[str, str]]) -> list[str]:
    r"""Messages about files, each given with the path: those that differ in the path alone are one, with a count.

    Examples:
        >>> group_messages([("a", "a is empty."), ("b", "b is empty."), ("c", "c is gone.")])
        ['a is empty.\n  The same of 1 more: b', 'c is gone.']
    """
    alike: dict[str, list[str]] = {}
    for path, message in messages:
        shown = redact(path)
        alike.setdefault(message.replace(shown, "\0") if shown else message, []).append(shown)
    return [
        words.replace("\0", first)
        + (f"\n  The same of {len(others)} more: {shortened_list(others)}" if others else "")
        for words, (first, *others) in alike.items()
    ]
