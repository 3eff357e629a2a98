"""Reads a range of entries of one ROOT file into Arrow tables of events, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
from numpy.typing import NDArray

from hep_core.input_errors import DamagedFileError, translate_read_errors
from ingestion.baskets import piece_edges
from ingestion.branches import (
    Variation,
    column_numbers,
    event_numbers,
    first_numbers,
    list_numbers,
    variation_numbers,
)
from ingestion.errors import WrongBranchTypeError
from ingestion.event_numbers import number_keys, number_sources
from ingestion.expressions import COLUMN_PREFIX, ColumnSource, LabelRule
from ingestion.file_info import FileInfo
from ingestion.layout import FILLED, BranchNames, field_sources, is_fixed
from ingestion.packed_reals import read_branch
from ingestion.root_format import open_root
from ingestion.schema import (
    COLLECTIONS,
    PARTICLE_COLLECTIONS,
    SCALARS,
)
from ingestion.settings import NO_WEIGHT, IngestSettings
from ingestion.thresholds import (
    Jagged,
    Mask,
    drop_padding,
)
from ingestion.tree_branch import Branch


class RawEvents(NamedTuple):
    """The needed branches of a range of entries, as the file holds them."""

    entries: NDArray[np.int64]
    """(num_events,) number of each event in the file."""
    scalars: dict[str, NDArray[Any]]
    """(num_events,) missing energy [GeV], its azimuth [rad] and the weight, by name."""
    collections: dict[str, Jagged]
    """Candidates of all events, by the name of their collection."""
    pass_through: dict[str, NDArray[Any]]
    """(num_events,) numbers of each pass-through column and further weight, by name."""
    labels: NDArray[np.int64]
    """(num_events,) classes; -1 for events to leave out."""
    without_weight: dict[str, Mask]
    """The events without one of `ingest.weights`, by its column; they take the weight of the
    sample."""
    numbers: NDArray[np.uint64] | None
    """(num_events,) hashes of run and event numbers; None if the file has none."""

    @property
    def num_events(self) -> int:
        """Number of entries read."""
        return len(self.entries)


def read_events(
    info: FileInfo, settings: IngestSettings, *, start: int, stop: int
) -> Iterator[RawEvents]:
    """Read the needed branches of entries `start` to `stop` (exclusive), in pieces.

    The size of a piece is bounded, however many particles an event has. Except at `start` and
    `stop`, pieces begin and end at baskets of the largest branch, so that no large basket is
    decompressed twice.
    """
    settings = settings.for_sample(info.tree, info.branch_map, info.weights)
    with translate_read_errors(info.path, f"entries {start} to {stop - 1}"):
        file = open_root(info.path)
    with file:
        with translate_read_errors(info.path, "its baskets' index"):
            names = BranchNames(file[settings.tree], info.path)
            columns = settings.columns(info.weight, info.label_by, names)
            names_of_fields = settings.branches(columns)
            # Fields that the file may lack, and does, are not read.
            for field in info.missing_optional:
                names_of_fields.pop(field, None)
            sources = number_sources(names)
            sources |= field_sources(names, names_of_fields, settings.branch_map)
            # A branch that several fields use, by different numbers or leaves, is read once.
            branches = {id(source.branch): source.branch for source in sources.values()}
            edges = piece_edges(list(branches.values()), start, stop)
        for first, last in pairwise(edges):
            where = f"entries {first} to {last - 1}"
            with translate_read_errors(info.path, where):
                contents = {
                    key: read_branch(branch, first, last) for key, branch in branches.items()
                }
            arrays = {
                field: source.select_leaf(contents[id(source.branch)])
                for field, source in sources.items()
            }
            # uproot silently returns fewer entries if the index of baskets is damaged.
            for array in arrays.values():
                if len(array) != last - first:
                    cause = ValueError(f"a branch has {len(array)} of {last - first} entries")
                    raise DamagedFileError.at(info.path, where=where, cause=cause)
            yield _raw_events(arrays, sources, columns, info, settings, first)


def _raw_events(
    arrays: dict[str, ak.Array],
    sources: dict[str, Branch],
    columns: Mapping[str, ColumnSource],
    info: FileInfo,
    settings: IngestSettings,
    first: int,
) -> RawEvents:
    """Convert the arrays of one piece, whose first event is entry `first`, to flat arrays.

    Each weight of `ingest.weights` becomes a whole weight: a number of its branch, times the weight
    of the sample if the number is a factor. An event without a number gets the weight of the
    sample.

    Args:
        arrays: Numbers of each field (`muons.pt`) or column.
        sources: Branches of the fields, for messages.
        columns: Sources of the columns in the file.
        info: The file.
        settings: Those of the sample.
        first: Entry of the first event in the file.
    """
    num_events = len(arrays["met"])
    scalars = {
        name: event_numbers(arrays[name], sources[name].location, SCALARS[name].dtype, first)
        for name in ("met", "met_phi")
    }
    scalars["weight"] = _weights(arrays, columns, info, first)
    collections = {}
    for name, fields in COLLECTIONS.items():
        if info.lacks_particles and name in PARTICLE_COLLECTIONS:
            # Each event gets an empty list.
            no_candidates = {field: np.empty(0, spec.dtype) for field, spec in fields.items()}
            collections[name] = Jagged(np.zeros(num_events + 1, np.int64), no_candidates)
        else:
            collections[name] = _collection(name, arrays, sources, settings, first)
    pass_through = {}
    without_weight = {}
    for name in settings.pass_through_columns:
        source = columns[name]
        if name.startswith(COLUMN_PREFIX):
            dtype = info.pass_through[source.branch]
            pass_through[source.branch] = column_numbers(
                arrays[name], name, source, path=info.path, dtype=dtype, first=first
            )
            continue
        # Without the branch each event has no number: 1 as a factor gives the sample's weight.
        variation = Variation(np.ones(num_events), np.zeros(num_events, np.bool_))
        if name in arrays:
            length = info.list_lengths.get(name, 1)
            variation = variation_numbers(
                arrays[name], name, source, length, path=info.path, first=first
            )
        is_factor = source.is_factor | ~variation.has_number
        pass_through[name] = variation.numbers * np.where(is_factor, scalars["weight"], 1)
        # A weight stated as `none` is missing on purpose, so it is not counted.
        if NO_WEIGHT not in (source.branch, info.weight):
            without_weight[name] = ~variation.has_number
    labels = np.full(num_events, info.label)
    if info.label_by:
        labels = _labels(arrays, columns, info, first)
    return RawEvents(
        np.arange(first, first + num_events),
        scalars,
        collections,
        pass_through,
        labels,
        without_weight,
        number_keys(arrays, sources, first),
    )


def _weights(
    arrays: Mapping[str, ak.Array], columns: Mapping[str, ColumnSource], info: FileInfo, first: int
) -> NDArray[np.float64]:
    """(num_events,) weights of the sample; 1 without a branch.

    `first` is the entry of the first event, for messages.

    Raises:
        WrongBranchTypeError: The branch holds no numbers, or its lists have different lengths.
    """
    if "weight" not in arrays:
        return np.ones(len(arrays["met"]))
    source = columns["weight"]
    weights = column_numbers(
        arrays["weight"], "weight", source, path=info.path, dtype="float64", first=first
    )
    if length := info.list_lengths.get("weight"):
        # The result is not needed: this call refuses lists of other lengths.
        variation_numbers(arrays["weight"], "weight", source, length, path=info.path, first=first)
    return weights


def _labels(
    arrays: Mapping[str, ak.Array], columns: Mapping[str, ColumnSource], info: FileInfo, first: int
) -> NDArray[np.int64]:
    """(num_events,) classes by the conditions of the sample (`label_by`).

    Raises:
        WrongBranchTypeError: For an event no condition or several hold, or one cannot be
            calculated.
    """
    rule = LabelRule.of(info.label_by)
    numbers = {
        name: column_numbers(arrays[name], name, columns[name], path=info.path, first=first)
        for name in rule.sources
    }
    num_events = len(arrays["met"])
    entries = f"entries {first} to {first + num_events - 1}"
    try:
        labels, num_conditions = rule.labels(numbers)
    # Only integers have bits, and a quotient by 0 that is an integer does not exist.
    except (ArithmeticError, TypeError) as cause:
        raise WrongBranchTypeError(
            f"{info.location}: a condition of label_by cannot be calculated in {entries} "
            f"({cause}). Correct it."
        ) from cause
    is_wrong = num_conditions != 1
    if is_wrong.any():
        event = int(np.argmax(is_wrong))
        values = [f"{columns[name].text} is {numbers[name][event]}" for name in rule.sources]
        num_without = np.count_nonzero(num_conditions == 0)
        num_several = np.count_nonzero(num_conditions > 1)
        raise WrongBranchTypeError(
            f"{info.location}: {num_without + num_several} of the {num_events} events of {entries} "
            f"have no class: for {num_without} no condition of label_by holds, for {num_several} "
            f"several. In entry {first + event}, {', '.join(values)}. Give each event one "
            f"condition; `null` leaves events out."
        )
    return labels


def _collection(
    name: str,
    arrays: Mapping[str, ak.Array],
    sources: Mapping[str, Branch],
    settings: IngestSettings,
    first: int,
) -> Jagged:
    """The candidates of a collection, without empty slots; the first event is entry `first`.

    Branches hold lists, or arrays of one fixed size whose last slots may be empty. The number of
    candidates of an event is in the counter branch, if there is one; else a list beside the arrays
    shows it. In arrays without either, all slots count, less padding if the config says `filled`.
    A discriminant for b-tags becomes 1 above the threshold and 0 else.

    Raises:
        WrongBranchTypeError: Branches of the collection have different numbers of candidates.
    """
    dtypes = {field: spec.dtype for field, spec in COLLECTIONS[name].items()}
    has_discriminant = settings.min_btag is not None and name == "jets"
    if has_discriminant:
        dtypes["btag"] = "float64"
    columns = {}
    for field, dtype in dtypes.items():
        key = f"{name}.{field}"
        location = sources[key].location.for_field(key)
        columns[field] = list_numbers(arrays[key], location, dtype)
    counter = sources.get(f"{name}.count")
    if counter is not None:
        counts = event_numbers(arrays[f"{name}.count"], counter.location, "int64", first)
        with_empty_slots = list(columns)
    else:
        # Arrays of a fixed size beside lists have as many candidates as the lists.
        with_empty_slots = [field for field in columns if is_fixed(arrays[f"{name}.{field}"])]
        lists = [field for field in columns if field not in with_empty_slots]
        if lists:
            offsets, _ = columns[lists[0]]
            counts = np.diff(offsets)
        else:
            # All fields are arrays of one size, and nothing counts their slots: all are kept.
            with_empty_slots = []
    for field in with_empty_slots:
        offsets, values = columns[field]
        location = sources[f"{name}.{field}"].location
        columns[field] = first_numbers(offsets, values, counts, location, first)

    first_field = next(iter(columns))
    offsets, _ = columns[first_field]
    for field, (field_offsets, _) in columns.items():
        if not np.array_equal(field_offsets, offsets):
            raise WrongBranchTypeError(
                f"{sources[f'{name}.{field}'].file}: '{name}.{first_field}' and '{name}.{field}' "
                f"have different numbers of candidates.",
                "Map branches of one collection under ingest.branch_map.",
            )
    candidates = Jagged(offsets, {field: values for field, (_, values) in columns.items()})
    if settings.branch_map.get(f"{name}.count") == FILLED:
        candidates = drop_padding(candidates)
    if has_discriminant:
        btag = candidates.fields["btag"]
        # NaN stays NaN, and rejects the event later, as in any other field.
        is_tagged = np.where(np.isfinite(btag), btag > settings.min_btag, np.nan)
        candidates.fields["btag"] = is_tagged
    return candidates
