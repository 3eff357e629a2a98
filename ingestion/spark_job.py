"""The Spark job: tasks read ranges of entries with uproot and write events Parquet with pyarrow themselves.

Spark only schedules: measured on 2 cores, sending nested events through the JVM costs nine times the CPU of writing
them in the task that makes them. A file appears whole, when it is complete. The content depends only on the range, so
a retried or speculative attempt writes the same bytes to the same place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark import Accumulator, SparkContext

from hep_core.atomic_files import link_or_copy, new_file
from hep_core.checked_parquet import read_parquet
from hep_core.input_errors import DamagedFileError, InputFileError
from hep_core.integrity import file_digest
from hep_core.storage import as_path, is_remote, make_folder, retry_remote
from ingestion.changes import content_digest, has_changed_since_check
from ingestion.conflicts import check_number_of_bad_files
from ingestion.copies import event_keys, find_copies, stored_keys
from ingestion.errors import (
    BadFilesError,
    ConflictingFilesError,
    EmptySampleError,
    WrongBranchTypeError,
)
from ingestion.expressions import sample_labels
from ingestion.files import BadFile, FileInfo
from ingestion.notes import unusual_content
from ingestion.reader import read_events, select_events
from ingestion.settings import IngestSettings, OnBadFile, OnDuplicate, SampleSettings
from ingestion.tally import StepCounts, sum_counts

#: Columns with few different values. For the others, an attempt at a dictionary costs more than it saves.
_WITH_DICTIONARY: Final = ["file_uuid", "sample"]
_WITH_STATISTICS: Final = ["file_uuid", "entry", "sample", "label", "weight"]


class EntryRange(NamedTuple):
    """The entries of one file that one task reads."""

    info: FileInfo
    start: int
    stop: int
    without: tuple[int, ...] = ()
    """Entries to leave out: copies of other events."""


class EventsPart(NamedTuple):
    """The output of one range; `name` is empty if no event of the range passes."""

    sample: str
    file_uuid: str
    start: int
    stop: int
    name: str
    digest: str
    """Digest of the Parquet file's content, if it went to object storage; else whoever publishes it takes it."""
    counts: dict[str, int]
    weights: dict[str, list[float]]
    lies_in: str = ""
    """On object storage, the URL of the folder of the version that read it; empty for the version that names it."""

    def file(self, events: Path) -> Path:
        """The Parquet file; `events` is the events folder of the version that names the part."""
        return self._folder(events) / self.name

    def keys_file(self, events: Path) -> Path:
        """The file of the keys of all entries (`ingestion.copies`)."""
        return keys_folder(self._folder(events)) / self.keys_name

    def _folder(self, events: Path) -> Path:
        return as_path(self.lies_in) / events.name if self.lies_in else events

    @property
    def keys_name(self) -> str:
        """Name of the file of the keys."""
        return f"{self.file_uuid}-{self.start:09d}.npy"


class EarlierParts(NamedTuple):
    """Parts of the last version that this one may reuse, by UUID of their ROOT file, and its events folder."""

    folder: Path
    parts: Mapping[str, Sequence[EventsPart]]


class IngestResult(NamedTuple):
    """All parts, the files that they come from (with digests of their content), and the skipped files."""

    parts: list[EventsPart]
    infos: list[FileInfo]
    bad: list[BadFile]
    num_read: int
    """Number of files that this run read, also those only read again for new copies; the parts of the others were
    reused, or they hold no entries."""
    generated: dict[str, dict[str, float]]
    """Sum of weights of all generated events of each sample whose files hold it, by its name in the files."""


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
    """Read files into `out_dir/*.parquet` (an existing folder that every task can reach), and keys beside it.

    `done` counts entries as tasks finish; `num_tasks` gives the number of Spark tasks for a number of pieces of work.
    Files with `earlier` parts are not read; those in `bad` are already known to be bad.

    Raises:
        InputFileError: A file cannot be read to its end, and bad files are not skipped; or an event is there twice, and
            copies are not dropped; or a sample has no events, or none survives.
    """
    make_folder(keys_folder(out_dir))
    taken = _take_over(infos, earlier, out_dir) if earlier else {}
    ranges = list(split_entries(info for info in infos if info.uuid not in taken))
    read, digests, failed = _read(spark, ranges, settings, out_dir, done=done, num_tasks=num_tasks)
    problems = [(info, failed[info.uuid]) for info in infos if info.uuid in failed]
    fails = settings.on_bad_file is OnBadFile.FAIL
    BadFilesError.raise_any(
        [(info.path, error) for info, error in problems if fails or not error.may_be_skipped]
    )
    bad = [*bad, *(_bad_file(info, error) for info, error in problems)]
    check_number_of_bad_files(bad, settings)
    _remove_remains(out_dir, failed)
    good = [
        info._replace(digest=digests[info.uuid])
        if info.uuid in digests and not has_changed_since_check(info)
        else info
        for info in infos
        if info.uuid not in failed
    ]
    parts = [*chain(*taken.values()), *(part for part in read if part.file_uuid not in failed)]
    copied = _copied(parts, infos, settings, out_dir)
    again, _, failed_again = _read(spark, copied, settings, out_dir, num_tasks=num_tasks)
    BadFilesError.raise_any(
        [(info.path, failed_again[info.uuid]) for info in infos if info.uuid in failed_again]
    )
    by_place = {(part.file_uuid, part.start, part.sample): part for part in (*parts, *again)}
    parts = [by_place[place] for place in sorted(by_place)]
    _refuse_empty(samples, parts, {info.sample for info in good}, bad)
    _refuse_copies(samples, parts)
    generated = {
        sample.name: {
            named: math.fsum(info.generated[named] for info in good if info.sample == sample.name)
        }
        for sample in samples
        if isinstance(named := sample.sum_of_weights, str)
    }
    num_read = len({work.info.uuid for work in [*ranges, *copied]} - failed.keys())
    return IngestResult(parts, good, bad, num_read, generated)


def keys_folder(out_dir: Path) -> Path:
    """Folder of the keys of all entries, beside that of the events."""
    return out_dir.with_name("keys")


def _read(
    spark: SparkContext,
    ranges: Sequence[EntryRange],
    settings: IngestSettings,
    out_dir: Path,
    *,
    num_tasks: Callable[[int], int],
    done: Accumulator[int] | None = None,
) -> tuple[list[EventsPart], dict[str, str], dict[str, InputFileError]]:
    """Read ranges in Spark tasks: the parts; digests of local files and errors, by UUID."""

    def run(work: EntryRange) -> tuple[list[EventsPart], str, InputFileError | None]:
        try:
            parts = retry_remote(ingest_range, work, settings, out_dir)
            digest = retry_remote(content_digest, work.info.path) if work.start == 0 else ""
        except InputFileError as problem:
            # The driver raises it: from here, Spark would retry it four times and bury it in a Java trace.
            return [], "", problem
        if done is not None:
            done.add(work.stop - work.start)
        return parts, digest, None

    found = spark.parallelize(ranges, num_tasks(len(ranges))).map(run).collect() if ranges else []
    of_files = [
        (work.info.uuid, digest, problem)
        for work, (_, digest, problem) in zip(ranges, found, strict=True)
    ]
    digests = {uuid: digest for uuid, digest, _ in of_files if digest}
    return (
        [part for parts, *_ in found for part in parts],
        digests,
        {uuid: each for uuid, _, each in of_files if each},
    )


def _remove_remains(out_dir: Path, failed: Iterable[str]) -> None:
    """Remove the output of failed files, and what tasks left whose executor was lost; others have done their work."""
    for folder in (out_dir, keys_folder(out_dir)):
        for pattern in (".*", *(f"{identity}-*" for identity in failed)):
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)


def _copied(
    parts: Sequence[EventsPart], infos: Sequence[FileInfo], settings: IngestSettings, out_dir: Path
) -> list[EntryRange]:
    """The ranges to read again without their copies; of several copies the first in the config stays."""
    place = {info.uuid: number for number, info in enumerate(infos)}
    by_range: dict[tuple[int, int], list[EventsPart]] = {}
    for part in parts:
        by_range.setdefault((place[part.file_uuid], part.start), []).append(part)
    of_ranges = [by_range[key] for key in sorted(by_range)]
    ranges = [
        EntryRange(infos[place[first.file_uuid]], first.start, first.stop)
        for first, *_ in of_ranges
    ]
    copies = find_copies(
        [(first.keys_file(out_dir), first.start, place[first.file_uuid]) for first, *_ in of_ranges]
    )
    concerned = sorted({*copies.parts.tolist(), *copies.original_parts.tolist()})
    classes = [_classes_of(ranges[number], of_ranges[number], out_dir) for number in concerned]
    starts = np.cumsum([0, *map(len, classes)])[:-1] - [
        ranges[number].start for number in concerned
    ]
    shift = np.zeros(len(ranges), np.int64)
    shift[concerned] = starts
    class_of = np.concatenate([np.zeros(0, np.int64), *classes])
    in_two_classes = (
        class_of[shift[copies.parts] + copies.entries]
        != class_of[shift[copies.original_parts] + copies.originals]
    )
    if in_two_classes.any() or (len(in_two_classes) and settings.on_duplicate is OnDuplicate.FAIL):
        first = int(in_two_classes.argmax())
        copy, entry, of, original = (int(column[first]) for column in copies)
        way_out = ", or set ingest.on_duplicate: drop to keep the first of each"
        if in_two_classes.any():
            way_out = ": these are in two classes, and the order of the samples would choose one"
        raise ConflictingFilesError(
            f"{len(in_two_classes)} event{'s are' if len(in_two_classes) > 1 else ' is'} there twice: entry {entry} of "
            f"{ranges[copy].info.place} equals entry {original} of {ranges[of].info.place}. Copies of an "
            f"event cross the splits and count twice. Take one of the files out (after hadd or a skim){way_out}."
        )
    again: set[int] = {*copies.parts.tolist()}
    return [
        ranges[number]._replace(without=tuple(copies.entries[copies.parts == number].tolist()))
        for number in sorted(again)
    ]


def _classes_of(work: EntryRange, parts: Sequence[EventsPart], events: Path) -> NDArray[np.int64]:
    """The class of each entry of a range; -1 for an entry of `label_by` that is not kept."""
    found = np.full(work.stop - work.start, -1 if work.info.label_by else work.info.label, np.int64)
    for part in parts if work.info.label_by else ():
        if part.name:
            table = read_parquet(part.file(events), ["entry", "label"])
            found[table["entry"].to_numpy() - work.start] = table["label"].to_numpy()
    return found


def split_entries(infos: Iterable[FileInfo]) -> Iterator[EntryRange]:
    """The ranges of all files; an empty file has none."""
    for info in infos:
        for start, stop in pairwise(info.edges):
            yield EntryRange(info, start, stop)


def ingest_range(work: EntryRange, settings: IngestSettings, out_dir: Path) -> list[EventsPart]:
    """Read, select and write one range of entries, a row group at a time, so that memory stays small.

    There is a part for each class of the sample.
    """
    info, stem = work.info, f"{work.info.uuid}-{work.start:09d}"
    names = {
        sample: f"{stem}{f'-{label}' if info.label_by else ''}.parquet"
        for sample, label in info.samples.items()
    }
    tallies = {sample: StepCounts({}, {}) for sample in names}
    writers: dict[str, pq.ParquetWriter] = {}
    digests: dict[str, str] = {}
    keys: list[NDArray[Any]] = []
    with ExitStack() as opened:
        for raw in read_events(info, settings, start=work.start, stop=work.stop):
            content = event_keys(raw.scalars, raw.collections)
            keys.append(stored_keys(content, raw.numbers, raw.collections))
            selection = select_events(raw, info, settings, without=work.without)
            for sample, label in info.samples.items():
                number = -1 if label is None else label
                tallies[sample] = sum_counts(
                    (tallies[sample], selection.tally(raw.labels == number))
                )
                table = selection.table
                if info.label_by:
                    table = table.filter(pc.field("label") == number)
                if table.num_rows:
                    if sample not in writers:
                        writers[sample] = opened.enter_context(
                            _events_file(out_dir / names[sample], table, digests)
                        )
                    writers[sample].write_table(table)
    for sample in names.keys() - writers.keys():
        # Of a read that did not leave out copies.
        (out_dir / names[sample]).unlink(missing_ok=True)
        names[sample] = ""
    make_folder(keys_folder(out_dir))
    with new_file(keys_folder(out_dir) / f"{stem}.npy") as file, file.open("wb") as stream:
        np.save(stream, np.concatenate(keys))
    lies_in = str(out_dir.parent) if is_remote(out_dir) else ""
    return [
        EventsPart(
            sample,
            info.uuid,
            work.start,
            work.stop,
            name,
            digests.get(name, ""),
            *tallies[sample],
            lies_in,
        )
        for sample, name in names.items()
    ]


@contextmanager
def _events_file(
    path: Path, table: pa.Table, digests: dict[str, str]
) -> Iterator[pq.ParquetWriter]:
    """What writes tables like this one to a file; `digests` gets that of a file on object storage, by name."""
    with new_file(path) as unfinished:
        with pq.ParquetWriter(
            unfinished,
            table.schema,
            compression="lz4",
            use_dictionary=_WITH_DICTIONARY,
            write_statistics=_WITH_STATISTICS,
            write_page_checksum=True,
        ) as writer:
            yield writer
        if is_remote(path):
            digests[path.name] = file_digest(unfinished)


def _take_over(
    infos: Sequence[FileInfo], earlier: EarlierParts, out_dir: Path
) -> dict[str, list[EventsPart]]:
    """The parts of unchanged files: local ones get a second name in this version, others stay where they lie."""
    taken: dict[str, list[EventsPart]] = {}
    storage = str(out_dir.parents[1]) if is_remote(out_dir) else ""
    for info in infos:
        parts = earlier.parts.get(info.uuid)
        # What is a copy depends on the other files too. Parts do not move to, from or between storages.
        if not parts or any(
            p.counts["rejected_copy"] or p.lies_in.rpartition("/")[0] != storage for p in parts
        ):
            continue
        if not storage:
            links = {part.file(earlier.folder): out_dir / part.name for part in parts if part.name}
            links |= {
                part.keys_file(earlier.folder): keys_folder(out_dir) / part.keys_name
                for part in parts
            }
            for old, new in links.items():
                link_or_copy(old, new)
        taken[info.uuid] = list(parts)
    return taken


def _bad_file(info: FileInfo, error: InputFileError) -> BadFile:
    checked = (info.sample, info.path, type(error).__name__, str(error), info.size, info.modified)
    return BadFile(
        *checked, found_while_reading=isinstance(error, DamagedFileError | WrongBranchTypeError)
    )


def _refuse_copies(samples: Iterable[SampleSettings], parts: Sequence[EventsPart]) -> None:
    """Refuse copies of events in samples whose files hold sums of weights: a file with copies has their weights too."""
    for sample in (each for each in samples if isinstance(each.sum_of_weights, str)):
        names = sample_labels(sample.name, sample.label, sample.label_by)
        if copies := sum(part.counts["rejected_copy"] for part in parts if part.sample in names):
            raise ConflictingFilesError(
                f"sample '{sample.name}': {copies} events are copies and are dropped, but the sums of weights in its "
                f"files (sum_of_weights) count them twice. Take the files with copies out, or state the sum as a "
                f"number."
            )


def _refuse_empty(
    samples: Sequence[SampleSettings],
    parts: Sequence[EventsPart],
    readable: set[str],
    bad: Sequence[BadFile],
) -> None:
    """Refuse samples without events; `readable` are the samples with at least one file that could be read."""
    for whole, sample in ((each.name, one.name) for each in samples for one in each.by_label()):
        # Files without entries have no parts.
        counter = sum_counts(part for part in parts if part.sample == sample).counts or {
            "entries": 0,
            "events": 0,
        }
        if counter["events"]:
            continue
        cutflow = "\n".join(f"  {key:<20}{value:>10}" for key, value in counter.items())
        cause = "none of its events passes" if counter["entries"] else "its files hold no entries"
        skipped = [each.message for each in bad if each.sample == whole]
        if skipped and whole not in readable:
            cause = f"no file of it can be read; the first: {skipped[0]}"
        raise EmptySampleError(
            f"sample '{sample}': {cause}. Its cutflow:\n{cutflow}\n"
            f"{''.join(f'{words} ' for words in unusual_content({sample: counter}))}"
            f"Check its files and the thresholds under ingest: in the config (GeV)."
        )
