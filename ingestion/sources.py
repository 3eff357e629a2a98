"""Finds the files that the patterns (paths, globs, URLs) of samples name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hep_core.input_errors import nearest_names
from hep_core.paths import expand_braces, has_wildcards, unescape_pattern
from hep_core.storage import is_remote, matching_files, retry_remote
from hep_core.tokens import advice_on_tokens
from ingestion.errors import FilesToComeError, NoFilesError
from ingestion.settings import SampleSettings


class SourceFile(NamedTuple):
    """A file that the config names, with its sample."""

    sample: SampleSettings
    path: str
    needs_weight: bool = True
    """Whether the file must have the branch of `sample.weight`; else it may be of collision
    data."""
    needs_particles: bool = True
    """Whether the file must have tracks, photons and neutral hadrons."""

    @property
    def sum_branch(self) -> str | None:
        """The branch or bin of the sample's `sum_of_weights`; None for a number."""
        sum_of_weights = self.sample.sum_of_weights
        return sum_of_weights if isinstance(sum_of_weights, str) else None


def expand(
    samples: Iterable[SampleSettings], *, on_unmatched: Callable[[str], None] | None = None
) -> list[SourceFile]:
    """All files of all samples, sorted within each pattern.

    A glob that matches nothing, while its sample has other files, may be of files to come or be
    mistyped: `on_unmatched` is called with a warning. If that is None, such a glob is an error.

    Raises:
        NoFilesError: A named file is missing, or a sample has no files; FilesToComeError, if they
            may come later.
        UnreachableFileError: A server does not answer.
    """
    sources: list[SourceFile] = []
    problems: list[NoFilesError] = []
    for sample in samples:
        try:
            sources += [SourceFile(sample, path) for path in _sample_paths(sample, on_unmatched)]
        except NoFilesError as problem:
            problems.append(problem)
    if problems:
        may_come = all(isinstance(problem, FilesToComeError) for problem in problems)
        error_class = FilesToComeError if may_come else NoFilesError
        raise error_class("\n".join(str(problem) for problem in problems))
    return sources


def _sample_paths(sample: SampleSettings, on_unmatched: Callable[[str], None] | None) -> list[str]:
    """The files of one sample, in the order of its patterns.

    Raises:
        NoFilesError: A pattern matches nothing, and may not match nothing (see `expand`).
    """
    patterns = []
    for pattern in sample.files:
        if not pattern:
            raise NoFilesError(
                f"sample '{sample.name}': a path is empty, such as that of a variable which is not "
                f"set. Name a file, a glob or a URL."
            )
        patterns += expand_braces(pattern)
    matches = {pattern: retry_remote(matching_files, pattern) for pattern in patterns}
    unmatched = [pattern for pattern in patterns if not matches[pattern]]
    # Unmatched globs are excused only if another pattern of the sample matches; paths never are.
    missing = unmatched
    if on_unmatched and len(unmatched) < len(patterns):
        missing = [pattern for pattern in unmatched if not _may_come_later(pattern)]
    if missing:
        raise _no_files_error(sample, missing)
    if on_unmatched:
        for pattern in unmatched:
            on_unmatched(
                f"sample '{sample.name}': no file matches '{_absolute(pattern)}' (yet?); its other "
                f"files are taken"
            )
    return [path for pattern in patterns for path in matches[pattern]]


def _no_files_error(sample: SampleSettings, missing: Sequence[str]) -> NoFilesError:
    """The error about patterns that match nothing; `FilesToComeError` if all may match later."""
    paths = [_absolute(pattern) for pattern in missing]
    alternatives = " or ".join(f"'{path}'" for path in paths)
    may_come = all(_awaits_files(pattern) for pattern in missing)
    error_class = FilesToComeError if may_come else NoFilesError
    return error_class(
        f"sample '{sample.name}': no file matches {alternatives}.{_nearest(paths[0])} Correct the "
        f"path.{advice_on_tokens(paths[0])}"
    )


def _absolute(pattern: str) -> str:
    """A pattern for messages: a local one becomes absolute, and keeps its wildcards."""
    return pattern if is_remote(pattern) else str(Path(unescape_pattern(pattern)).absolute())


def _may_come_later(pattern: str) -> bool:
    """Whether a pattern may match nothing for a while: it needs wildcards."""
    is_web = pattern.startswith(("http://", "https://"))
    if is_web:
        # Here a question mark is no wildcard: it begins the query.
        pattern = pattern.replace("?", "")
    return has_wildcards(pattern)


def _awaits_files(pattern: str) -> bool:
    """Whether only the files of a pattern are missing: the folder before its wildcards exists."""
    names = itertools.takewhile(lambda name: not has_wildcards(name), Path(pattern).parts)
    folder = unescape_pattern(os.path.join("", *names))  # noqa: PTH118 - a pattern is no path
    return _may_come_later(pattern) and (is_remote(pattern) or Path(folder).is_dir())


def _nearest(pattern: str) -> str:
    """A sentence about the nearest names to a local pattern that does not match.

    If a folder of the pattern is a link without a target, the sentence says so. Else it names
    similar files of the nearest folder that exists. It is empty for URLs, or without such names.
    """
    if is_remote(pattern):
        return ""
    parents = Path(pattern).parents
    for folder in parents:
        if folder.is_symlink() and not folder.exists():
            return f" '{folder}' is a link to '{folder.readlink()}', which is not there."
    nearest_folder = next(folder for folder in parents if folder.is_dir())
    paths = [str(path) for path in nearest_folder.iterdir() if not path.name.startswith(".")]
    return nearest_names(pattern, paths)
