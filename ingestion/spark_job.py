"""The Spark job: tasks read ranges of entries with uproot and write events Parquet with pyarrow.

Spark only schedules. Measured on 2 cores, sending nested events through the JVM costs nine times
the CPU of writing them in the task that makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark import Accumulator, SparkContext

from hep_core.atomic_files import link_or_copy
from hep_core.input_errors import DamagedFileError, InputFileError
from hep_core.storage import is_remote, make_folder, retry_remote
from ingestion.changes import content_digest, has_changed_since_check
from ingestion.conflicts import check_number_of_bad_files
from ingestion.errors import (
    BadFilesError,
    ConflictingFilesError,
    EmptySampleError,
    WrongBranchTypeError,
)
from ingestion.expressions import sample_labels
from ingestion.file_info import BadFile, FileInfo
from ingestion.notes import unusual_content
from ingestion.range_output import EntryRange, EventsPart, ingest_range, keys_folder, split_entries
from ingestion.ranges_with_copies import ranges_with_copies
from ingestion.settings import IngestSettings, OnBadFile, SampleSettings
from ingestion.tally import sum_counts


class EarlierParts(NamedTuple):
    """Parts of the last version of the output that this version may reuse."""

    folder: Path
    """Events folder of the last version."""
    parts: Mapping[str, Sequence[EventsPart]]
    """All parts of a ROOT file, by its UUID."""


class IngestResult(NamedTuple):
    """All parts, their ROOT files (with digests of the content), and the skipped files."""

    parts: list[EventsPart]
    infos: list[FileInfo]
    bad: list[BadFile]
    num_read: int
    """Number of files that this run read, also those only read again for new copies; the parts of
    the others were reused, or they hold no entries."""
    generated: dict[str, dict[str, float]]
    """Sum of weights of all generated events of each sample whose files hold it, by its name in the
    files."""


def ingest(
    spark: SparkContext,
    infos: Sequence[FileInfo],
    samples: Sequence[SampleSettings],
    settings: IngestSettings,
    out_dir: Path,
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
    earlier: EarlierParts | None = None,
    bad: Sequence[BadFile] = (),
) -> IngestResult:
    """Read files into `out_dir/*.parquet` (an existing folder that all tasks can reach).

    It reuses the parts of unchanged files and reads the ranges of all others. Then it searches all
    parts for copies of events, and reads the ranges that hold copies again, without them.

    Args:
        spark: The Spark context whose tasks read the files.
        infos: The checked files.
        samples: All samples of the config.
        settings: Those of the ingestion.
        out_dir: The events folder.
        done: Counts entries as tasks finish.
        num_tasks: Gives the number of Spark tasks for a number of ranges.
        earlier: Parts of the last version; files that have such parts are not read.
        bad: Files already known to be bad.

    Raises:
        InputFileError: A file cannot be read to its end, and bad files are not skipped; or an event
            is there twice, and copies are not dropped; or a sample has no events, or none survives.
    """
    make_folder(keys_folder(out_dir))
    reused = _reuse_outputs(infos, earlier, out_dir) if earlier else {}
    infos_to_read = [info for info in infos if info.uuid not in reused]
    ranges = list(split_entries(infos_to_read))
    read = _read(spark, ranges, settings, out_dir, entry_counter=done, num_tasks=num_tasks)
    bad = [*bad, *_new_bad_files(infos, read.problems, settings)]
    check_number_of_bad_files(bad, settings)
    # A file with a problem in one range is left out as a whole.
    _remove_unfinished(out_dir, read.problems)

    outputs: list[EventsPart] = []
    for outputs_of_file in reused.values():
        outputs += outputs_of_file
    outputs += [output for output in read.outputs if output.file_uuid not in read.problems]
    # Copies can be found only when the keys of all files are there.
    with_copies = ranges_with_copies(outputs, infos, settings, out_dir)
    read_again = _read(spark, with_copies, settings, out_dir, num_tasks=num_tasks)
    paths = {info.uuid: info.path for info in infos}
    BadFilesError.raise_any([(paths[uuid], error) for uuid, error in read_again.problems.items()])
    outputs = _replace_outputs(outputs, read_again.outputs)

    good = _readable_files(infos, read)
    _check_not_empty(samples, outputs, {info.sample for info in good}, bad)
    _check_copies_have_no_sums(samples, outputs)
    read_uuids = {entry_range.info.uuid for entry_range in [*ranges, *with_copies]}
    return IngestResult(
        outputs,
        good,
        bad,
        num_read=len(read_uuids - read.problems.keys()),
        generated=_generated_sums(samples, good),
    )


def _replace_outputs(
    outputs: Iterable[EventsPart], new_outputs: Iterable[EventsPart]
) -> list[EventsPart]:
    """Sorted outputs, with new ones in place of the old ones of the same ranges and samples.

    An output is identified by its ROOT file, first entry and sample.
    """
    output_by_key = {}
    # Of equal keys the last counts: that of the new output.
    for output in [*outputs, *new_outputs]:
        key = output.file_uuid, output.start, output.sample
        output_by_key[key] = output
    return [output_by_key[key] for key in sorted(output_by_key)]


def _readable_files(infos: Iterable[FileInfo], read: _ReadResult) -> list[FileInfo]:
    """The files without errors, with the digests of their content.

    A file that changed between its check and the end of the reading keeps its earlier digest, which
    may be empty.
    """
    readable = []
    for info in infos:
        if info.uuid in read.problems:
            continue
        digest = info.digest
        if info.uuid in read.digests and not has_changed_since_check(info):
            digest = read.digests[info.uuid]
        readable.append(info._replace(digest=digest))
    return readable


def _new_bad_files(
    infos: Sequence[FileInfo], problems: Mapping[str, InputFileError], settings: IngestSettings
) -> list[BadFile]:
    """The files that could not be read and are skipped.

    `problems` has the error of each file by its UUID.

    Raises:
        InputFileError: Bad files are not skipped (`on_bad_file: fail`), or an error is of a kind
            for which files never are.
    """
    fails = settings.on_bad_file is OnBadFile.FAIL
    to_raise = []
    bad = []
    for info in infos:
        problem = problems.get(info.uuid)
        if problem is None:
            continue
        # All errors are collected first, so that one message can list them.
        if fails or not problem.may_be_skipped:
            to_raise.append((info.path, problem))
        bad.append(
            BadFile(
                info.sample,
                info.path,
                type(problem).__name__,
                str(problem),
                info.size,
                info.modified,
                found_while_reading=isinstance(problem, DamagedFileError | WrongBranchTypeError),
            )
        )
    BadFilesError.raise_any(to_raise)
    return bad


def _generated_sums(
    samples: Sequence[SampleSettings], infos: Sequence[FileInfo]
) -> dict[str, dict[str, float]]:
    """Sums of weights of all generated events, by sample and name of the sum in the files.

    Only samples whose `sum_of_weights` names a branch or bin have one; it is added up over the
    files of the sample.
    """
    sums = {}
    for sample in samples:
        key = sample.sum_of_weights
        if isinstance(key, str):
            file_sums = [info.generated[key] for info in infos if info.sample == sample.name]
            sums[sample.name] = {key: math.fsum(file_sums)}
    return sums


class _ReadResult(NamedTuple):
    """What the Spark tasks returned."""

    outputs: list[EventsPart]
    """What they wrote."""
    digests: dict[str, str]
    """Digests of the content of local files, by UUID."""
    problems: dict[str, InputFileError]
    """An error of each file that could not be read, by UUID."""


def _read(
    spark: SparkContext,
    ranges: Sequence[EntryRange],
    settings: IngestSettings,
    out_dir: Path,
    *,
    num_tasks: Callable[[int], int],
    entry_counter: Accumulator[int] | None = None,
) -> _ReadResult:
    """Read ranges in Spark tasks, which write their events into `out_dir`.

    The errors of files are in the result. `entry_counter` counts entries as tasks finish.
    """

    def read(entry_range: EntryRange) -> tuple[list[EventsPart], str, InputFileError | None]:
        """The outputs of one range, the digest of its file and the error of the file, in a task."""
        try:
            outputs = retry_remote(ingest_range, entry_range, settings, out_dir)
            digest = ""
            # Each file is digested once, by the task of its first range.
            if entry_range.start == 0:
                digest = retry_remote(content_digest, entry_range.info.path)
        except InputFileError as problem:
            # The driver raises the error. If a task did, Spark would retry it four times and hide
            # it in a Java trace.
            return [], "", problem
        if entry_counter is not None:
            entry_counter.add(entry_range.stop - entry_range.start)
        return outputs, digest, None

    result = _ReadResult([], {}, {})
    if not ranges:
        return result
    ranges_in_spark = spark.parallelize(ranges, num_tasks(len(ranges)))
    results_of_ranges = ranges_in_spark.map(read).collect()
    for entry_range, (outputs, digest, problem) in zip(ranges, results_of_ranges, strict=True):
        uuid = entry_range.info.uuid
        result.outputs.extend(outputs)
        if digest:
            result.digests[uuid] = digest
        if problem is not None:
            result.problems[uuid] = problem
    return result


def _remove_unfinished(out_dir: Path, failed_uuids: Iterable[str]) -> None:
    """Remove the output of failed files, and hidden files of tasks whose executor was lost."""
    patterns = [".*", *(f"{uuid}-*" for uuid in failed_uuids)]
    for folder in (out_dir, keys_folder(out_dir)):
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)


def _reuse_outputs(
    infos: Sequence[FileInfo], earlier: EarlierParts, out_dir: Path
) -> dict[str, list[EventsPart]]:
    """The outputs of unchanged ROOT files, by UUID.

    It gives local files of events and keys a second name (a hard link, else a copy) in the folders
    of this version; files on object storage stay where they are. A ROOT file is read again as a
    whole if one of its outputs cannot be reused.
    """
    # The folder of all versions on object storage; empty for a local one.
    storage = str(out_dir.parents[1]) if is_remote(out_dir) else ""
    reused = {}
    for info in infos:
        outputs = earlier.parts.get(info.uuid, [])
        all_are_reusable = all(_is_reusable(output, storage) for output in outputs)
        if not outputs or not all_are_reusable:
            continue
        reused[info.uuid] = list(outputs)
        if storage:
            continue
        for output in outputs:
            if output.name:
                link_or_copy(output.file(earlier.folder), out_dir / output.name)
        # The outputs of one range share the file of the keys.
        keys_files = {output.keys_name: output.keys_file(earlier.folder) for output in outputs}
        for name, path in keys_files.items():
            link_or_copy(path, keys_folder(out_dir) / name)
    return reused


def _is_reusable(output: EventsPart, storage: str) -> bool:
    """Whether an output can be reused: it is on the same storage, and holds all its events.

    An output without its copies is not reused: which events are copies depends on the other files
    of a run.
    """
    folder, _, _ = output.lies_in.rpartition("/")
    lacks_copies = output.counts["rejected_copy"] > 0
    return folder == storage and not lacks_copies


def _check_copies_have_no_sums(
    samples: Iterable[SampleSettings], outputs: Sequence[EventsPart]
) -> None:
    """Refuse dropped copies in samples whose sums of weights come from branches of the files.

    These sums count a copy twice, while only one of the two events is left.
    """
    for sample in samples:
        if not isinstance(sample.sum_of_weights, str):
            continue
        names = sample_labels(sample.name, sample.label, sample.label_by)
        outputs_of_sample = [output for output in outputs if output.sample in names]
        num_copies = sum(output.counts["rejected_copy"] for output in outputs_of_sample)
        if num_copies:
            raise ConflictingFilesError(
                f"sample '{sample.name}': {num_copies} events are copies and are dropped, but the "
                f"sums of weights in its files (sum_of_weights) count them twice. Take the files "
                f"with copies out, or state the sum as a number."
            )


def _check_not_empty(
    samples: Sequence[SampleSettings],
    outputs: Sequence[EventsPart],
    readable_samples: Container[str],
    bad: Sequence[BadFile],
) -> None:
    """Refuse a sample, or class of a sample with `label_by`, without selected events.

    The error has the cause, the cutflow and hints. `readable_samples` are the names of samples with
    a file that could be read.

    Raises:
        EmptySampleError: No event of a sample is left.
    """
    for sample in samples:
        for class_sample in sample.by_label():
            name = class_sample.name
            outputs_of_sample = [output for output in outputs if output.sample == name]
            counts = sum_counts(outputs_of_sample).counts
            if not counts:
                # Files without entries have no outputs.
                counts = {"entries": 0, "events": 0}
            if counts["events"]:
                continue
            cause = (
                "none of its events passes" if counts["entries"] else "its files hold no entries"
            )
            messages = [file.message for file in bad if file.sample == sample.name]
            if messages and sample.name not in readable_samples:
                cause = f"no file of it can be read; the first: {messages[0]}"
            cutflow = [f"  {step:<20}{count:>10}" for step, count in counts.items()]
            advice = [
                *unusual_content({name: counts}),
                "Check its files and the thresholds under ingest: in the config (GeV).",
            ]
            raise EmptySampleError(
                f"sample '{name}': {cause}. Its cutflow:\n"
                + "\n".join(cutflow)
                + "\n"
                + " ".join(advice)
            )
