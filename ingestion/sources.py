"""The files that the patterns of samples name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from glob import has_magic
from pathlib import Path
from typing import NamedTuple

from hep_core.input_errors import nearest_names
from hep_core.paths import expand_braces
from hep_core.storage import is_remote, matching_files, retry_remote
from ingestion.errors import FilesToComeError, NoFilesError
from ingestion.settings import SampleSettings


class SourceFile(NamedTuple):
    """A file that the config names, with the sample it belongs to."""

    sample: SampleSettings
    path: str
    needs_weight: bool = True
    """Whether the file must have the branch of `sample.weight`; else it may be one of collision data."""
    needs_particles: bool = True
    """Whether the file must have tracks, photons and neutral hadrons."""

    @property
    def sum_branch(self) -> str | None:
        """The branch or bin of the sample's `sum_of_weights`, if it is none of the numbers."""
        stated = self.sample.sum_of_weights
        return stated if isinstance(stated, str) else None


def expand(
    samples: Iterable[SampleSettings], *, on_unmatched: Callable[[str], None] | None = None
) -> list[SourceFile]:
    """All files of all samples, sorted within each pattern.

    A glob that matches nothing while its sample has other files may be of files to come, or mistyped: `on_unmatched` is
    called with a warning. Without it, such a glob is an error.

    Raises:
        NoFilesError: A named file is missing, or a sample has no files; FilesToComeError, if they may come later.
        UnreachableFileError: A server does not answer.
    """
    sources: list[SourceFile] = []
    problems: list[NoFilesError] = []
    for sample in samples:
        try:
            sources += [SourceFile(sample, path) for path in _paths_of(sample, on_unmatched)]
        except NoFilesError as problem:
            problems.append(problem)
    if problems:
        may_come = all(isinstance(problem, FilesToComeError) for problem in problems)
        kind = FilesToComeError if may_come else NoFilesError
        raise kind("\n".join(str(problem) for problem in problems))
    return sources


def _paths_of(sample: SampleSettings, on_unmatched: Callable[[str], None] | None) -> list[str]:
    """The files of one sample."""
    patterns = []
    for pattern in sample.files:
        patterns += expand_braces(pattern)
    matches = {pattern: retry_remote(matching_files, pattern) for pattern in patterns}
    unmatched = [pattern for pattern in patterns if not matches[pattern]]
    missing = unmatched
    if on_unmatched and len(unmatched) < len(patterns):
        missing = [pattern for pattern in unmatched if not _may_come_later(pattern)]
    if missing:
        raise _no_files(sample, missing)
    if on_unmatched:
        for name in map(_absolute, unmatched):
            on_unmatched(
                f"sample '{sample.name}': no file matches '{name}' (yet?); its other files are taken"
            )
    return [path for pattern in patterns for path in matches[pattern]]


def _no_files(sample: SampleSettings, missing: Sequence[str]) -> NoFilesError:
    named = " or ".join(f"'{_absolute(pattern)}'" for pattern in missing)
    kind = FilesToComeError if all(map(_awaits_files, missing)) else NoFilesError
    return kind(
        f"sample '{sample.name}': no file matches {named}.{_nearest(_absolute(missing[0]))} Correct the path."
    )


def _absolute(pattern: str) -> str:
    """A pattern for messages; the name of the current folder may have wildcards in it that are none."""
    return pattern if is_remote(pattern) else str(Path(pattern).absolute())


def _may_come_later(pattern: str) -> bool:
    """Whether a pattern may match nothing for a while: it needs wildcards."""
    # In web addresses a question mark is no wildcard: it begins the query.
    is_web = pattern.startswith(("http://", "https://"))
    return has_magic(pattern.replace("?", "") if is_web else pattern)


def _awaits_files(pattern: str) -> bool:
    """Whether a pattern is right, as far as can be seen without files: the folder before its wildcards is there."""
    fixed = Path(*itertools.takewhile(lambda part: not has_magic(part), Path(pattern).parts))
    return _may_come_later(pattern) and (is_remote(pattern) or fixed.is_dir())


def _nearest(pattern: str) -> str:
    """Words about what is in the folder of a local pattern, or in the nearest existing folder above it."""
    if is_remote(pattern):
        return ""
    broken = [path for path in Path(pattern).parents if path.is_symlink() and not path.exists()]
    if broken:
        return f" '{broken[0]}' is a link to '{broken[0].readlink()}', which is not there."
    folder = next(each for each in Path(pattern).parents if each.is_dir())
    return nearest_names(
        pattern, [str(path) for path in folder.iterdir() if not path.name.startswith(".")]
    )
