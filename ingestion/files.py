"""Finds and checks the input files of all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from hep_core.input_errors import InputFileError
from hep_core.storage import retry_remote, size_and_time
from ingestion.conflicts import (
    assign_unique_ids,
    check_conflicts,
    check_number_of_bad_files,
    check_waiting_samples,
    is_recent,
    local_time,
)
from ingestion.errors import BadFilesError, group_messages
from ingestion.file_info import BadFile, Checked, FileInfo, WaitingFile
from ingestion.inspection import inspect_file
from ingestion.settings import IngestSettings, OnBadFile, SampleSettings
from ingestion.sources import SourceFile, expand

#: Number of threads that open files at the same time.
_INSPECTORS: Final = 8


class Inventory(NamedTuple):
    """The files that can be read, those that are skipped, and those that wait for a later run."""

    infos: list[FileInfo]
    bad: list[BadFile]
    waiting: list[WaitingFile] = []  # noqa: RUF012 - nobody changes it


def find_input_files(
    samples: Iterable[SampleSettings],
    settings: IngestSettings,
    on_message: Callable[[str], None],
    *,
    strict: bool = False,
    known: Mapping[str, Checked] | None = None,
    on_file: Callable[[int, int], None] | None = None,
    needs_particles: bool = True,
    needs_weights: bool = True,
) -> Inventory:
    """Find and check the files of all samples.

    Args:
        samples: The samples, with the patterns of their files.
        settings: Those of the ingestion.
        on_message: Gets a line about each file that waits, and each glob without files.
        strict: Whether every glob must match.
        known: Results of an earlier check, as for `inventory`.
        on_file: Reports the progress, as for `inventory`.
        needs_particles: Whether files must have tracks, photons and neutral hadrons.
        needs_weights: Whether files must have the weights that their sample states.

    Raises:
        InputFileError: As for `expand` and `inventory`; FilesToComeError also if all readable files
            of a sample wait for a later run.
    """
    on_unmatched = None if strict else lambda warning: on_message(f"note: {warning}")
    sources = [
        source._replace(needs_weight=needs_weights, needs_particles=needs_particles)
        for source in expand(samples, on_unmatched=on_unmatched)
    ]
    files = inventory(sources, settings, known=known, on_file=on_file)
    reasons = [(file.path, f"{file.path}: {file.reason}") for file in files.waiting]
    for message in group_messages(reasons):
        on_message(f"left for another run: {message}")
    check_waiting_samples(files.waiting, {info.sample for info in files.infos}, files.bad)
    return files


def inventory(
    sources: Sequence[SourceFile],
    settings: IngestSettings,
    *,
    known: Mapping[str, Checked] | None = None,
    on_file: Callable[[int, int], None] | None = None,
) -> Inventory:
    """Check every file: ROOT header, tree, needed branches, number of entries, no file twice.

    `known` are results of an earlier call by path. A good file with the same size and modification
    time is not opened again. A file that failed these checks is, since a fix of the config may
    change neither. `on_file` is called with the numbers of checked and of all files.

    Raises:
        InputFileError: One file is bad; several, or more than may be skipped, raise BadFilesError.
        ConflictingFilesError: A file is there twice, or some files lack weights (of their class) or
            particles that others have.
    """
    known = known or {}
    files = Inventory([], [], [])
    problems = []
    with ThreadPoolExecutor(_INSPECTORS) as pool:
        results = pool.map(
            lambda source: _check_file(source, settings, known.get(source.path)), sources
        )
        # Results come in the order of the sources, whichever thread is ready first.
        for num_checked, (source, result) in enumerate(zip(sources, results, strict=True), start=1):
            if isinstance(result, FileInfo):
                files.infos.append(result)
            elif isinstance(result, BadFile):
                files.bad.append(result)
            elif isinstance(result, WaitingFile):
                files.waiting.append(result)
            else:
                problems.append((source.path, result))
            if on_file:
                on_file(num_checked, len(sources))
    BadFilesError.raise_any(problems)
    files = files._replace(infos=assign_unique_ids(files.infos, known))
    check_number_of_bad_files(files.bad, settings)
    check_conflicts(files.infos)
    return files


def _check_file(
    source: SourceFile, settings: IngestSettings, earlier: Checked | None
) -> Checked | WaitingFile | InputFileError:
    """Check one file; an error of the file is returned, not raised.

    A file with an error waits for a later run if it changed just now; it is a `BadFile` if the
    config skips bad files; else the error itself is the result.
    """
    size, modified = -1, ""
    try:
        size, modified = retry_remote(size_and_time, source.path)
        return _check_opened(source, settings, earlier, size, modified)
    except InputFileError as problem:
        if is_recent(modified, settings.settle_seconds):
            reason = (
                f"it may still be being written (bad if it is so {settings.settle_seconds:g} s, "
                f"ingest.settle_seconds, after its last change): {problem}"
            )
            return WaitingFile(source.sample.name, source.path, reason)
        if settings.on_bad_file is OnBadFile.FAIL or not problem.may_be_skipped:
            return problem
        error_name = type(problem).__name__
        return BadFile(source.sample.name, source.path, error_name, str(problem), size, modified)


def _check_opened(
    source: SourceFile,
    settings: IngestSettings,
    earlier: Checked | None,
    size: int,
    modified: str,
) -> Checked | WaitingFile:
    """Check one file of this size [bytes] and time; reuse the earlier result if it is unchanged.

    A file waits for a later run if it is newer than `ingest.until`, if it changes during the check,
    or if it changed just now and is not closed.
    """

    def wait(reason: str) -> WaitingFile:
        """The result for a file that waits."""
        return WaitingFile(source.sample.name, source.path, reason)

    if settings.until is not None and local_time(modified) >= settings.until.timestamp():
        return wait(
            f"it was modified at or after ingest.until, {settings.until}; a run with a later one "
            f"takes it"
        )
    # Without a modification time from the server, changes cannot be seen.
    if earlier is not None and modified and (earlier.size, earlier.modified) == (size, modified):
        reused = _reuse(earlier, source, settings)
        if reused is not None:
            return reused
    info = retry_remote(inspect_file, source, settings, size=size, modified=modified)
    if settings.settle_seconds:
        if retry_remote(size_and_time, source.path) != (size, modified):
            return wait("it changed while it was checked")
        if info.is_unclosed and is_recent(modified, settings.settle_seconds):
            return wait("it may still be being written: it is not closed")
    return info


def _reuse(earlier: Checked, source: SourceFile, settings: IngestSettings) -> Checked | None:
    """The earlier result for an unchanged file; None if the file must be checked again.

    A good file keeps its result if its sample still states the same names. A bad file keeps its
    result only if the damage showed while its content was read, which this check does not do.
    """
    sample = source.sample
    if isinstance(earlier, FileInfo):
        if _has_same_names(earlier, source, settings):
            return earlier._replace(sample=sample.name, label=sample.label)
    elif earlier.found_while_reading and settings.on_bad_file is OnBadFile.SKIP:
        return earlier._replace(sample=sample.name)
    return None


def _has_same_names(earlier: FileInfo, source: SourceFile, settings: IngestSettings) -> bool:
    """Whether the sample still states the tree, branches and weights of the earlier check."""
    sample = source.sample
    has_same_branches = (
        earlier.tree == sample.tree
        and earlier.branch_map == sample.branch_map
        and earlier.label_by == sample.label_by
        and earlier.weights == sample.weights
    )
    # A sample that states no weight has that of the layout, or none.
    is_default_weight = earlier.weight in {"", settings.names.scalars["weight"]}
    has_same_weight = sample.weight == earlier.weight or (
        sample.weight is None and is_default_weight
    )
    has_sum = source.sum_branch is None or source.sum_branch in earlier.generated
    return has_same_branches and has_same_weight and has_sum
