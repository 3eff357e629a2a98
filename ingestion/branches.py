"""Converts the numbers of branches to the types of their fields."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self

import awkward as ak
import numpy as np
from numpy.typing import NDArray

from ingestion.errors import WrongBranchTypeError
from ingestion.expressions import LABEL_PREFIX, ColumnSource
from ingestion.schema import WEIGHT_PREFIX
from ingestion.thresholds import Offsets

#: The remedy for b-tags that are no bits.
_BTAG_REMEDY: Final = (
    "Map a branch of bits under ingest.branch_map, or set the threshold of a discriminant, or of "
    "tags such as -1 and 1: ingest.min_btag."
)


class BranchLocation(NamedTuple):
    """Where numbers come from, for messages."""

    text: str
    """File and branch."""
    remedy: str = "Map another branch under ingest.branch_map."

    def for_field(self, field: str) -> Self:
        """The same place, with the remedy of a field, such as `jets.btag`."""
        return self._replace(remedy=_BTAG_REMEDY) if field == "jets.btag" else self

    def error(self, problem: str) -> WrongBranchTypeError:
        """The error about a problem of the branch."""
        return WrongBranchTypeError(f"{self.text} {problem}", self.remedy)


def is_weight(column: str) -> bool:
    """Whether a column is the weight of the sample, or one of `ingest.weights`."""
    return f"{column}_".startswith(WEIGHT_PREFIX)


def is_variation(column: str) -> bool:
    """Whether a column is one of `ingest.weights`."""
    return column.startswith(WEIGHT_PREFIX)


def config_key(column: str) -> str:
    """The key of the config that names the branch of a column."""
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
    """(num_events,) numbers of a weight, a pass-through column or a column of `label_by`.

    Args:
        array: Content of the branch: a number, or a list of numbers, for each event.
        column: Name of the column; it decides which key of the config an error names.
        source: Branch, and position in its lists, of the column.
        path: File, for messages.
        dtype: Type of the result; None keeps that of the branch.
        first: Entry of the first event of the array in the file.

    Raises:
        WrongBranchTypeError: The branch has no such number in an event, several where one is
            needed, or no numbers.
    """
    key = config_key(column)
    location = BranchLocation(f"{path}: branch '{source.branch}'", f"Correct {key}.")
    if _holds_text(array) or array.ndim > 2:
        raise _no_number_error(array, location)
    remedy = (
        "Take it out of ingest.pass_through; a number of a list can be a weight (ingest.weights)."
    )
    if is_weight(column) or column.startswith(LABEL_PREFIX):
        remedy = f"Name one of a list under {key}, from 0: '{source.branch}[0]'."
    location = location._replace(remedy=remedy)
    # A position names one number of a list per event; every list must have it.
    if source.position is not None:
        if array.ndim != 2:
            raise WrongBranchTypeError(
                f"{location.text} has no list of numbers per event. Leave [{source.position}] out "
                f"under {key}."
            )
        lengths = np.asarray(ak.num(array))
        is_too_short = lengths <= source.position
        if is_too_short.any():
            event = int(np.argmax(is_too_short))
            raise WrongBranchTypeError(
                f"{location.text} holds {lengths[event]} numbers in entry {first + event}; "
                f"[{source.position}] (from 0) is not there. Correct it under {key}."
            )
        array = array[:, source.position]
    return event_numbers(array, location, dtype, first)


class Variation(NamedTuple):
    """One of `ingest.weights` of some events."""

    numbers: NDArray[np.float64]
    """(num_events,) with 1 for events without a number."""
    has_number: NDArray[np.bool_]
    """(num_events,) whether the event has a number; an event with an empty list has none."""


def variation_numbers(
    array: ak.Array, column: str, source: ColumnSource, length: int, *, path: str, first: int = 0
) -> Variation:
    """The numbers of one of `ingest.weights`, which events with an empty list lack.

    The branch has a number for each event, or a list that is empty or of `length`. The other
    arguments are those of `column_numbers`.

    Raises:
        WrongBranchTypeError: A list has another length, so that its numbers mean something else.
    """
    # A branch with a number for each event has no empty lists.
    if array.ndim == 1:
        numbers = column_numbers(array, column, source, path=path, dtype="float64", first=first)
        return Variation(numbers, np.ones(len(array), np.bool_))
    lengths = np.asarray(ak.num(array))
    has_number = lengths > 0
    has_other_length = has_number & (lengths != length)
    if has_other_length.any():
        event = int(np.argmax(has_other_length))
        raise WrongBranchTypeError(
            f"{path}: branch '{source.branch}' holds {lengths[event]} numbers in entry "
            f"{first + event}, but {length} in others: [{source.position}] would be several "
            f"variations under one name. Write one number an event as a branch, and name it under "
            f"{config_key(column)}."
        )
    numbers = np.ones(len(array))
    numbers[has_number] = column_numbers(
        array[has_number], column, source, path=path, dtype="float64", first=first
    )
    return Variation(numbers, has_number)


def list_numbers(
    array: ak.Array, location: BranchLocation, dtype: str | None
) -> tuple[Offsets, NDArray[Any]]:
    """Offsets (num_events + 1,) and flat numbers of a branch that holds one list per event.

    `dtype` None keeps the type of the branch.
    """
    layout = ak.to_packed(array).layout
    if not (layout.is_list and layout.content.is_numpy and layout.purelist_depth == 2):
        raise location.error(
            f"holds '{array.type.content}' per event; a list of numbers is needed."
        )
    offsets: Offsets = layout.to_ListOffsetArray64(True).offsets.data
    return offsets, _convert(layout.content.data, location, dtype)


def first_numbers(
    offsets: Offsets,
    values: NDArray[Any],
    counts: NDArray[Any],
    location: BranchLocation,
    first: int,
) -> tuple[Offsets, NDArray[Any]]:
    """Offsets and numbers of the first `counts` (num_events,) slots of each list.

    `first` is the entry of the first event, for messages.

    Raises:
        WrongBranchTypeError: A count is negative, not whole, or above the number of slots.
    """
    lengths = np.diff(offsets)
    # A counter of floats may hold numbers that are not whole.
    is_wrong = (counts < 0) | (counts > lengths) | (counts != np.floor(counts))
    if is_wrong.any():
        event = int(np.argmax(is_wrong))
        raise location.error(
            f"has {lengths[event]} slots in entry {first + event}, but its counter says "
            f"{counts[event]}."
        )
    # Position of each number within its list.
    slots = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    is_filled = slots < np.repeat(counts, lengths)
    new_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return new_offsets, values[is_filled]


def event_numbers(
    array: ak.Array, location: BranchLocation, dtype: str | None, first: int
) -> NDArray[Any]:
    """(num_events,) the number of each event, of a plain branch or of lists of one number.

    Delphes writes such lists. `dtype` None keeps the type of the branch; `first` is the entry of
    the first event, for messages.

    Raises:
        WrongBranchTypeError: A list has another length, or the branch holds no numbers.
    """
    if array.ndim == 1 and array.layout.is_numpy:
        return _convert(array.layout.data, location, dtype)
    if _holds_text(array) or array.ndim > 2:
        raise _no_number_error(array, location)
    offsets, values = list_numbers(array, location, dtype)
    counts = np.diff(offsets)
    if (counts != 1).any():
        event = int(np.argmax(counts != 1))
        raise location.error(
            f"holds {counts[event]} numbers in entry {first + event}; exactly one is needed."
        )
    return values


def _holds_text(array: ak.Array) -> bool:
    """Return whether a branch holds text, or lists of text."""
    return "string" in str(array.type.content)


def _no_number_error(array: ak.Array, location: BranchLocation) -> WrongBranchTypeError:
    """Return the error about a branch with neither a number nor a list of numbers per event."""
    content = "text" if _holds_text(array) else f"'{array.type.content}' per event"
    return location.error(f"holds {content}; a number per event is needed.")


def _convert(values: NDArray[Any], location: BranchLocation, dtype: str | None) -> NDArray[Any]:
    """Numbers in the type of their field; `dtype` None keeps their type.

    Floats of an integer field become float64 here, and are converted after the events with NaN and
    infinity are dropped.
    """
    if values.dtype.kind not in "biuf":
        raise location.error(f"holds {values.dtype}; numbers are needed.")
    if dtype is None:
        return values
    if np.dtype(dtype).kind == "f":
        return values.astype(dtype, copy=False)
    if values.dtype.kind == "f":
        return values.astype(np.float64, copy=False)
    return convert_exactly(values, dtype, location)


def convert_exactly(values: NDArray[Any], dtype: str, location: BranchLocation) -> NDArray[Any]:
    """Numbers of equal value in a type; refuses numbers that the type cannot hold."""
    with np.errstate(invalid="ignore"):
        converted = values.astype(dtype, copy=False)
    if converted is not values and not np.array_equal(converted, values):
        wrong_value = values[np.argmax(converted != values)]
        raise location.error(f"holds {wrong_value}, but its field needs {dtype}.")
    return converted
