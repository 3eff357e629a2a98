"""Reads one range of entries of a ROOT file and writes its events and keys, without Spark.

A file appears whole, when it is complete. Its content depends only on the range, so a retried or
speculative attempt of a task writes the same bytes to the same place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hep_core.atomic_files import new_file
from hep_core.integrity import file_digest
from hep_core.storage import as_path, is_remote, make_folder
from ingestion.copies import event_keys, stored_keys
from ingestion.file_info import FileInfo
from ingestion.reader import read_events
from ingestion.selection import select_events
from ingestion.settings import IngestSettings
from ingestion.tally import StepCounts, sum_counts

#: Columns with few different values. For the others, an attempt at a dictionary costs more than it
#: saves.
_WITH_DICTIONARY: Final = ["file_uuid", "sample"]
#: Columns with minima and maxima in the footer.
_WITH_STATISTICS: Final = ["file_uuid", "entry", "sample", "label", "weight"]


class EntryRange(NamedTuple):
    """The entries of one file that one task reads."""

    info: FileInfo
    start: int
    stop: int
    """First entry, and the one after the last."""
    without: tuple[int, ...] = ()
    """Entries to leave out: copies of other events."""


class EventsPart(NamedTuple):
    """The output of one range of entries for one sample: a Parquet file, and its tally."""

    sample: str
    file_uuid: str
    """Identity of the ROOT file that holds the entries."""
    start: int
    stop: int
    """First entry, and the one after the last."""
    name: str
    """Name of the Parquet file; empty if no event passes, and then there is no file."""
    digest: str
    """Digest of the Parquet file on object storage; empty for a local file, which the stage
    digests."""
    counts: dict[str, int]
    """Number of events by step of the cutflow."""
    weights: dict[str, list[float]]
    """[sum of weights, sum of squared weights] by step of the cutflow."""
    lies_in: str = ""
    """On object storage, the URL of the folder of the version that read it; else empty."""

    def file(self, events: Path) -> Path:
        """The Parquet file; `events` is the events folder of the version that names the part."""
        return self._folder(events) / self.name

    def keys_file(self, events: Path) -> Path:
        """The file of the keys that find copies, one for each entry of the range.

        See `ingestion.copies`. `events` is as for `file`.
        """
        return keys_folder(self._folder(events)) / self.keys_name

    def _folder(self, events: Path) -> Path:
        """The events folder that holds the part: that of the version which read it, if remote."""
        return as_path(self.lies_in) / events.name if self.lies_in else events

    @property
    def keys_name(self) -> str:
        """Name of the file of the keys."""
        return f"{self.file_uuid}-{self.start:09d}.npy"


def keys_folder(out_dir: Path) -> Path:
    """Folder of the keys of all entries, beside that of the events."""
    return out_dir.with_name("keys")


def split_entries(infos: Iterable[FileInfo]) -> Iterator[EntryRange]:
    """The ranges of all files; an empty file has none."""
    for info in infos:
        for start, stop in pairwise(info.edges):
            yield EntryRange(info, start, stop)


def ingest_range(
    entry_range: EntryRange, settings: IngestSettings, out_dir: Path
) -> list[EventsPart]:
    """Read, select and write one range of entries, a row group at a time to bound the memory.

    It writes a Parquet file for each class of the sample that has events, and one file with the
    keys of all entries, also of those that are not selected.

    Returns:
        A part for each class of the sample.
    """
    info, start = entry_range.info, entry_range.start
    stem = f"{info.uuid}-{start:09d}"
    keys: list[NDArray[Any]] = []
    with ExitStack() as stack:
        outputs = {}
        for sample, label in info.samples.items():
            suffix = f"-{label}" if info.label_by else ""
            outputs[sample] = _PartWriter(out_dir / f"{stem}{suffix}.parquet", stack)
        for raw in read_events(info, settings, start=start, stop=entry_range.stop):
            # Keys are those of all entries, before the selection.
            content_keys = event_keys(raw.scalars, raw.collections)
            keys.append(stored_keys(content_keys, raw.numbers, raw.collections))
            selection = select_events(raw, info, settings, without=entry_range.without)
            # With `label_by`, each class is a sample of its own, with its own output.
            for sample, label in info.samples.items():
                # Events to leave out have the label -1 in the arrays.
                class_number = -1 if label is None else label
                table = selection.table
                if info.label_by:
                    table = table.filter(pc.field("label") == class_number)
                tally = selection.tally(raw.labels == class_number)
                outputs[sample].add(table, tally)
    make_folder(keys_folder(out_dir))
    with new_file(keys_folder(out_dir) / f"{stem}.npy") as path, path.open("wb") as file:
        np.save(file, np.concatenate(keys))
    lies_in = str(out_dir.parent) if is_remote(out_dir) else ""
    events_parts = []
    for sample, output in outputs.items():
        name, digest = output.finish()
        events_parts.append(
            EventsPart(
                sample,
                info.uuid,
                start,
                entry_range.stop,
                name,
                digest,
                output.tally.counts,
                output.tally.weights,
                lies_in,
            )
        )
    return events_parts


class _PartWriter:
    """Writes the events of a part and adds up their tally.

    The Parquet file is opened with the first event, and appears when `stack` is closed. A part
    without events has no file.
    """

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self._writer: pq.ParquetWriter | None = None
        self._digest = ""
        self.tally = StepCounts({}, {})

    def add(self, table: pa.Table, tally: StepCounts) -> None:
        """Write the rows of a table, if any, and add their tally to that of the part."""
        self.tally = sum_counts((self.tally, tally))
        if not table.num_rows:
            return
        if self._writer is None:
            self._writer = self._stack.enter_context(self._open(table.schema))
        self._writer.write_table(table)

    @contextmanager
    def _open(self, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        """A writer of a Parquet file, which is complete when the context ends.

        The digest of a file on object storage is taken before the upload.
        """
        with new_file(self._path) as unfinished:
            with pq.ParquetWriter(
                unfinished,
                schema,
                compression="lz4",
                use_dictionary=_WITH_DICTIONARY,
                write_statistics=_WITH_STATISTICS,
                write_page_checksum=True,
            ) as writer:
                yield writer
            if is_remote(self._path):
                self._digest = file_digest(unfinished)

    def finish(self) -> tuple[str, str]:
        """The name of the file, empty without events, and its digest if it is on object storage."""
        if self._writer is None:
            # An earlier read of the range, which did not leave out copies, may have written one.
            self._path.unlink(missing_ok=True)
            return "", ""
        return self._path.name, self._digest
