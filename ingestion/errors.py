"""Errors of input files; a message says what is wrong, where and what to do.

Every exception takes its finished message, and a remedy in the config if there is one, as its
arguments, so that Spark can send it from a task to the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Self

from hep_core.input_errors import InputFileError, nearest_names, shortened_list
from hep_core.secrets import redact
from ingestion.known_layouts import LAYOUTS
from ingestion.schema import PARTICLE_COLLECTIONS

#: Number of messages about files that one error lists.
_MAX_LISTED: Final = 20


class NoFilesError(InputFileError):
    """A sample has no files, or one of its named files is missing."""


class FilesToComeError(NoFilesError):
    """A sample has no files yet: its globs match nothing, or all files wait for a later run."""


class TruncatedFileError(InputFileError):
    """The file is shorter than its own header says."""


class UnclosedFileError(InputFileError):
    """The job that wrote the file ended before it saved a tree."""


def _layout_hint(available: Collection[str]) -> str:
    """A sentence about the layout whose tree a file holds; empty without one."""
    for layout, names in LAYOUTS.items():
        if names.tree in available:
            return f"For the tree '{names.tree}' there is `ingest: {{layout: {layout}}}`. "
    return ""


class MissingTreeError(InputFileError):
    """The configured tree is not in the file."""

    @classmethod
    def at(cls, path: str, tree: str, classes: Mapping[str, str]) -> Self:
        """The error that lists the keys of the file.

        `classes` has the ROOT class of the object of each key, such as TTree or TH1F.
        """
        if tree in classes:
            return cls(
                f"{path}: '{tree}' is a {classes[tree]}; a TTree or an RNTuple is read.",
                "Name another tree, or write the file again with ROOT 6.34 or later if it is an "
                "experimental RNTuple.",
            )
        keys = sorted(f"{name} ({class_name})" for name, class_name in classes.items())
        if not keys:
            return cls(
                f"{path} has no tree '{tree}': the file is empty. Take it out of the sample's "
                f"files."
            )
        return cls(
            f"{path} has no tree '{tree}'. It holds: {shortened_list(keys)}."
            f"{nearest_names(tree, keys)}",
            f"{_layout_hint(classes)}Set ingest.tree, or take the file out of the sample's files.",
        )


class MissingBranchError(InputFileError):
    """A needed branch is not in the tree."""

    @classmethod
    def at(
        cls,
        path: str,
        tree: str,
        missing: Mapping[str, str],
        available: Iterable[str],
        to_paste: str = "",
    ) -> Self:
        """The error that names each missing branch, its field and the nearest branches of the tree.

        `missing` has the branches by field (`muons.pt`). `to_paste` are lines of a config that
        names the branches of the file.
        """
        branches = sorted(set(available))
        lines = [f"{path}: tree '{tree}' lacks {len(missing)} needed branches:"]
        if len(missing) == 1:
            lines = [f"{path}: tree '{tree}' lacks 1 needed branch:"]
        for field, branch in missing.items():
            lines.append(f"  '{branch}' (for {field}).{nearest_names(branch, branches)}")
        advice = (
            "If they have other names in your files, set these in ingest.branch_map (for example "
            "`muons: Muon`), or under the key in brackets. Branches of friend trees are not read; "
            "write all into one tree."
        )
        if any(field.startswith(PARTICLE_COLLECTIONS) for field in missing):
            advice += " Files without particles need features.particles: false."
        config_remedy = f"{advice}\n{to_paste}" if to_paste else advice
        return cls("\n".join(lines), config_remedy)


class WrongBranchTypeError(InputFileError):
    """A branch holds values of another type than its field needs."""


class ConflictingFilesError(InputFileError):
    """Good files cannot be read together, such as files with and without weights."""


class EmptySampleError(InputFileError):
    """No event of a sample is left; the message holds its cutflow."""


class BadFilesError(InputFileError):
    """Several files are bad; each is listed."""

    problems: Sequence[tuple[str, InputFileError]] = ()
    """Pairs of the path of a file and its error; empty if only the message names them."""

    @classmethod
    def listing(cls, problems: Sequence[tuple[str, InputFileError]]) -> Self:
        """The error that lists several problems."""
        messages = list_messages((path, str(problem)) for path, problem in problems)
        error = cls(f"{len(problems)} input files are bad:\n{messages}")
        error.problems = problems
        return error

    def with_remedy(self, remedy: str) -> Self:
        """Return the error in which each problem has another remedy; see `InputFileError`."""
        if not self.problems:
            return super().with_remedy(remedy)
        return self.listing([(path, error.with_remedy(remedy)) for path, error in self.problems])

    @classmethod
    def raise_any(cls, problems: Sequence[tuple[str, InputFileError]]) -> None:
        """Raise the only problem itself, or one error that lists several; none raises nothing.

        `problems` are pairs of the path of a file and its error.
        """
        if len(problems) == 1:
            _, problem = problems[0]
            raise problem
        if problems:
            raise cls.listing(problems)


def list_messages(messages: Iterable[tuple[str, str]]) -> str:
    """The first twenty messages about files, grouped, each on a line."""
    groups = group_messages(messages)
    lines = [f"- {message}" for message in groups[:_MAX_LISTED]]
    if len(groups) > _MAX_LISTED:
        lines.append(f"... and {len(groups) - _MAX_LISTED} more")
    return "\n".join(lines)


def group_messages(messages: Iterable[tuple[str, str]]) -> list[str]:
    r"""Messages about files, without repetition: messages that differ only in the path become one.

    `messages` are pairs of path and message.

    Examples:
        >>> group_messages([("a", "a is empty."), ("b", "b is empty."), ("c", "c is gone.")])
        ['a is empty.\n  The same of 1 more: b', 'c is gone.']
    """
    paths_by_template: dict[str, list[str]] = {}
    for path, message in messages:
        # Messages show paths without their secrets. The character \0 marks the place of the path.
        shown_path = redact(path)
        template = message.replace(shown_path, "\0") if shown_path else message
        paths = paths_by_template.setdefault(template, [])
        paths.append(shown_path)
    groups = []
    for template, paths in paths_by_template.items():
        first_path, *more_paths = paths
        text = template.replace("\0", first_path)
        if more_paths:
            text += f"\n  The same of {len(more_paths)} more: {shortened_list(more_paths)}"
        groups.append(text)
    return groups
