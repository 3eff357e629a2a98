"""Numbers of a branch in the type of their field; an error names file, branch, entry and the key of the config."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import awkward as ak
import numpy as np
from numpy.typing import NDArray

from ingestion.errors import WrongBranchTypeError
from ingestion.expressions import LABEL_PREFIX, ColumnSource
from ingestion.schema import WEIGHT_PREFIX
from ingestion.thresholds import Offsets

#: What to do where an integer of a candidate is none.
INTEGERS_FIX: Final = (
    "Map a branch of integers under ingest.branch_map; for b-tags by a discriminant set its threshold, "
    "ingest.min_btag."
)


class BranchLocation(NamedTuple):
    """Where numbers come from, as messages say it."""

    words: str
    """File and branch."""
    fix: str = "Map another branch under ingest.branch_map."

    def wrong(self, words: str) -> WrongBranchTypeError:
        """The error about what is there."""
        return WrongBranchTypeError(f"{self.words} {words} {self.fix}")


def is_weight(column: str) -> bool:
    """Whether a column is the weight of the sample, or one of `ingest.weights`."""
    return f"{column}_".startswith(WEIGHT_PREFIX)


def is_variation(column: str) -> bool:
    """Whether a column is one of `ingest.weights`."""
    return column.startswith(WEIGHT_PREFIX)


def config_key(column: str) -> str:
    """The key of the config that names what a column is read from."""
    if column == "weight":
        return "`weight` of the sample"
    if column.startswith(LABEL_PREFIX):
        return "`label_by` of the sample"
    return "ingest.weights" if is_variation(column) else "ingest.pass_through"


def column_numbers(
    array: ak.Array,
    column: str,
    source: ColumnSource,
    *,
    path: str,
    dtype: str | None = None,
    first: int = 0,
) -> NDArray[Any]:
    """The numbers of the weight or a pass-through column, from its branch of the entries from `first` on.

    `dtype` None keeps their type.

    Raises:
        WrongBranchTypeError: The branch has no such number in an event, several where one is needed, or other content.
    """
    key = config_key(column)
    fix = "Take it out of ingest.pass_through; a number of a list can be a weight (ingest.weights)."
    if is_weight(column) or column.startswith(LABEL_PREFIX):
        fix = f"Name one of a list under {key}, from 0: '{source.branch}[0]'."
    place = BranchLocation(f"{path}: branch '{source.branch}'", fix)
    if "string" in str(array.type.content):
        raise WrongBranchTypeError(
            f"{place.words} holds text; a number per event is needed. Correct {key}."
        )
    if source.number is not None:
        if array.ndim != 2:
            raise WrongBranchTypeError(
                f"{place.words} has no list of numbers per event. Leave [{source.number}] out under {key}."
            )
        lengths = np.asarray(ak.num(array))
        if (lengths <= source.number).any():
            entry = int(np.argmax(lengths <= source.number))
            raise WrongBranchTypeError(
                f"{place.words} holds {lengths[entry]} numbers in entry {first + entry}; [{source.number}] (from 0) "
                f"is not there. Correct it under {key}."
            )
        array = array[:, source.number]
    return event_numbers(array, place, dtype, first)


class Variation(NamedTuple):
    """One of `ingest.weights` of some events."""

    numbers: NDArray[np.float64]
    """(num_events,) with 1 where there is none."""
    is_there: NDArray[np.bool_]
    """(num_events,) whether the event has one; an empty list has none."""


def variation_numbers(
    array: ak.Array, column: str, source: ColumnSource, length: int, *, path: str, first: int = 0
) -> Variation:
    """The numbers of a weight in the entries from `first` on, whose lists are empty or of `length`.

    Raises:
        WrongBranchTypeError: A list has another length, so that its numbers mean something else.
    """
    if array.ndim == 1:
        numbers = column_numbers(array, column, source, path=path, dtype="float64", first=first)
        return Variation(numbers, np.ones(len(array), np.bool_))
    lengths = np.asarray(ak.num(array))
    is_there = lengths > 0
    is_other = is_there & (lengths != length)
    if is_other.any():
        entry = int(np.argmax(is_other))
        raise WrongBranchTypeError(
            f"{path}: branch '{source.branch}' holds {lengths[entry]} numbers in entry {first + entry}, but {length} "
            f"in others: [{source.number}] would be several variations under one name. Write one number an event as a "
            f"branch, and name it under {config_key(column)}."
        )
    numbers = np.ones(len(array))
    numbers[is_there] = column_numbers(
        array[is_there], column, source, path=path, dtype="float64", first=first
    )
    return Variation(numbers, is_there)


def list_numbers(
    array: ak.Array, place: BranchLocation, dtype: str | None
) -> tuple[Offsets, NDArray[Any]]:
    """Offsets and flat numbers of a branch that holds one list per event."""
    layout = ak.to_packed(array).layout
    if not (layout.is_list and layout.content.is_numpy and layout.purelist_depth == 2):
        raise place.wrong(f"holds '{array.type.content}' per event; a list of numbers is needed.")
    return layout.to_ListOffsetArray64(True).offsets.data, _numbers(
        layout.content.data, place, dtype
    )


def first_numbers(
    offsets: Offsets, values: NDArray[Any], counts: NDArray[Any], place: BranchLocation, first: int
) -> tuple[Offsets, NDArray[Any]]:
    """Offsets and numbers of the first `counts` (num_events,) of each list; the first event is entry `first`."""
    lengths = np.diff(offsets)
    if (bad := (counts < 0) | (counts > lengths) | (counts != np.floor(counts))).any():
        entry = int(np.argmax(bad))
        slots, says = lengths[entry], counts[entry]
        raise place.wrong(
            f"has {slots} slots in entry {first + entry}, but its counter says {says}."
        )
    slots = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), values[
        slots < np.repeat(counts, lengths)
    ]


def event_numbers(
    array: ak.Array, place: BranchLocation, dtype: str | None, first: int
) -> NDArray[Any]:
    """One number per event from `first` on, of a plain branch or, as Delphes writes it, of lists with one element."""
    if array.ndim == 1 and array.layout.is_numpy:
        return _numbers(array.layout.data, place, dtype)
    offsets, values = list_numbers(array, place, dtype)
    counts = np.diff(offsets)
    if (counts != 1).any():
        entry = int(np.argmax(counts != 1))
        raise place.wrong(
            f"holds {counts[entry]} numbers in entry {first + entry}; exactly one is needed."
        )
    return values


def _numbers(values: NDArray[Any], place: BranchLocation, dtype: str | None) -> NDArray[Any]:
    if values.dtype.kind not in "biuf":
        raise place.wrong(f"holds {values.dtype}; numbers are needed.")
    if dtype is None:
        return values
    if np.dtype(dtype).kind == "f":
        return values.astype(dtype, copy=False)
    # Floats of an integer field stay floats until NaN and infinity are rejected.
    return (
        values.astype(np.float64, copy=False)
        if values.dtype.kind == "f"
        else convert_exactly(values, dtype, place)
    )


def convert_exactly(values: NDArray[Any], dtype: str, place: BranchLocation) -> NDArray[Any]:
    """Numbers of equal value in a type; refuses those that it cannot hold."""
    with np.errstate(invalid="ignore"):
        found = values.astype(dtype, copy=False)
    if found is not values and not np.array_equal(found, values):
        raise place.wrong(
            f"holds {values[np.argmax(found != values)]}, but its field needs {dtype}."
        )
    return found
