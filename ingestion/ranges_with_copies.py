"""Finds the ranges of entries that hold copies of other events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hep_core.checked_parquet import read_parquet
from ingestion.copies import Copies, KeysFile, find_copies
from ingestion.errors import ConflictingFilesError
from ingestion.file_info import FileInfo
from ingestion.range_output import EntryRange, EventsPart
from ingestion.settings import IngestSettings, OnDuplicate


def ranges_with_copies(
    outputs: Iterable[EventsPart],
    infos: Sequence[FileInfo],
    settings: IngestSettings,
    out_dir: Path,
) -> list[EntryRange]:
    """The ranges to read again without their copies; the first event in the config stays.

    The ranges are sorted by file (in the order of `infos`) and first entry, so that of equal events
    the first one in the config counts as the original. The result has one range for each that holds
    copies, with their entries in `without`.

    Raises:
        ConflictingFilesError: There are copies and `on_duplicate` is `fail`, or a copy is in
            another class than its original.
    """
    file_numbers = {info.uuid: file_number for file_number, info in enumerate(infos)}
    # A sample with `label_by` has several outputs of one range, one for each class.
    outputs_by_range: dict[tuple[int, int], list[EventsPart]] = {}
    for output in outputs:
        key = (file_numbers[output.file_uuid], output.start)
        outputs_by_range.setdefault(key, []).append(output)
    ranges: list[EntryRange] = []
    outputs_of_ranges: list[list[EventsPart]] = []
    keys_files: list[KeysFile] = []
    for file_number, start in sorted(outputs_by_range):
        outputs_of_range = outputs_by_range[file_number, start]
        outputs_of_ranges.append(outputs_of_range)
        # The outputs of a range share its entries and the file of the keys.
        first_output = outputs_of_range[0]
        ranges.append(EntryRange(infos[file_number], start, first_output.stop))
        path = first_output.keys_file(out_dir)
        keys_files.append(KeysFile(path, start, file_number))
    copies = find_copies(keys_files)
    num_copies = len(copies.entries)
    # A copy in another class than its original is an error even if copies are dropped.
    if num_copies:
        copy_classes = _classes(
            copies.range_indices, copies.entries, ranges, outputs_of_ranges, out_dir
        )
        original_classes = _classes(
            copies.original_range_indices,
            copies.original_entries,
            ranges,
            outputs_of_ranges,
            out_dir,
        )
        is_in_two_classes = copy_classes != original_classes
        if is_in_two_classes.any() or settings.on_duplicate is OnDuplicate.FAIL:
            raise _copies_error(copies, ranges, is_in_two_classes)
    ranges_to_read = []
    for range_index in np.unique(copies.range_indices).tolist():
        is_in_range = copies.range_indices == range_index
        entries = copies.entries[is_in_range].tolist()
        range_to_read = ranges[range_index]._replace(without=tuple(entries))
        ranges_to_read.append(range_to_read)
    return ranges_to_read


def _classes(
    range_indices: NDArray[np.int64],
    entries: NDArray[np.int64],
    ranges: Sequence[EntryRange],
    outputs_of_ranges: Sequence[Sequence[EventsPart]],
    events: Path,
) -> NDArray[np.int64]:
    """(num_entries,) the class of each of some entries; -1 for one that `label_by` leaves out.

    `range_indices` and `entries`, both (num_entries,), are the index of the range of each entry in
    `ranges`, and the entry in the ROOT file. `events` is the folder of the outputs.
    """
    classes = np.zeros(len(entries), np.int64)
    for range_index in np.unique(range_indices).tolist():
        entry_range = ranges[range_index]
        outputs = outputs_of_ranges[range_index]
        classes_of_range = _classes_of_range(entry_range, outputs, events)
        is_in_range = range_indices == range_index
        positions = entries[is_in_range] - entry_range.start
        classes[is_in_range] = classes_of_range[positions]
    return classes


def _copies_error(
    copies: Copies, ranges: Sequence[EntryRange], is_in_two_classes: NDArray[np.bool_]
) -> ConflictingFilesError:
    """The error about the first copy, preferably one in another class than its original.

    `is_in_two_classes` is (num_copies,).
    """
    num_copies = len(is_in_two_classes)
    # If all are False, `argmax` gives 0: the first copy.
    first = int(is_in_two_classes.argmax())
    copy_range = ranges[copies.range_indices[first]]
    original_range = ranges[copies.original_range_indices[first]]
    remedy = ", or set ingest.on_duplicate: drop to keep the first of each"
    if is_in_two_classes.any():
        remedy = ": these are in two classes, and the order of the samples would choose one"
    events_are = "events are" if num_copies > 1 else "event is"
    return ConflictingFilesError(
        f"{num_copies} {events_are} there twice: entry {copies.entries[first]} of "
        f"{copy_range.info.location} equals entry {copies.original_entries[first]} of "
        f"{original_range.info.location}. Copies of an event cross the splits and count twice. Take one "
        f"of the files out (after hadd or a skim){remedy}."
    )


def _classes_of_range(
    entry_range: EntryRange, outputs: Sequence[EventsPart], events: Path
) -> NDArray[np.int64]:
    """(num_entries,) the class of each entry of a range.

    Without `label_by` it is that of the sample. With it, the class is in the written events; an
    entry that no output holds, since it was not selected, gets -1.
    """
    info, start = entry_range.info, entry_range.start
    num_entries = entry_range.stop - start
    if not info.label_by:
        return np.full(num_entries, info.label, np.int64)
    classes = np.full(num_entries, -1, np.int64)
    for output in outputs:
        # An output without a name has no events, and no file.
        if output.name:
            table = read_parquet(output.file(events), ["entry", "label"])
            positions = table["entry"].to_numpy() - start
            classes[positions] = table["label"].to_numpy()
    return classes
