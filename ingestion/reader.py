"""Reads a range of entries of one ROOT file into Arrow tables of events, without Spark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import awkward as ak
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hep_core.input_errors import DamagedFileError, translate_read_errors
from ingestion import tally
from ingestion.baskets import piece_edges
from ingestion.branches import (
    INTEGERS_FIX,
    BranchLocation,
    Variation,
    column_numbers,
    convert_exactly,
    event_numbers,
    first_numbers,
    list_numbers,
    variation_numbers,
)
from ingestion.errors import WrongBranchTypeError
from ingestion.event_numbers import number_keys, number_sources
from ingestion.expressions import ColumnSource, LabelRule
from ingestion.files import FileInfo
from ingestion.layout import FILLED, Branch, BranchNames, field_sources, is_fixed
from ingestion.root_format import open_root
from ingestion.schema import (
    COLLECTIONS,
    PARTICLE_COLLECTIONS,
    SCALARS,
    WEIGHT_PREFIX,
    events_schema,
)
from ingestion.settings import NO_WEIGHT, IngestSettings
from ingestion.tally import StepCounts
from ingestion.thresholds import (
    Jagged,
    Mask,
    any_per_event,
    drop_padding,
    is_out_of_range,
    is_padding,
    offsets_after_mask,
    wrap_azimuths,
)
from ingestion.unusual_momenta import large_momenta, like_azimuths

#: Above it, azimuths are hardly in radians: they would be degrees.
_LARGEST_AZIMUTH: Final = 4 * math.pi


class RawEvents(NamedTuple):
    """The needed branches of a range of entries, as the file holds them."""

    entries: NDArray[np.int64]
    """(num_events,) number of each event in the file."""
    scalars: dict[str, NDArray[Any]]
    collections: dict[str, Jagged]
    pass_through: dict[str, NDArray[Any]]
    """Numbers of the pass-through columns, by name."""
    labels: NDArray[np.int64]
    """(num_events,) classes; -1 for events to leave out."""
    without_weight: dict[str, Mask]
    """The events without one of `ingest.weights`, by its column; they take the weight of the sample."""
    numbers: NDArray[np.uint64] | None
    """(num_events,) keys of run and event numbers, if the file has them."""

    @property
    def num_events(self) -> int:
        """Number of entries read."""
        return len(self.entries)


class Selection(NamedTuple):
    """Events that pass, and their tally; events and rejections add up to the entries read."""

    table: pa.Table
    steps: dict[str, Mask]
    """Which of all entries count in each step of the tally."""
    event_weights: NDArray[np.float64]
    """(num_entries,) with 0 for those that are not finite."""

    def tally(self, chosen: Mask | bool = True) -> StepCounts:
        """The tally of some of the entries."""
        return StepCounts.from_steps(
            {name: mask & chosen for name, mask in self.steps.items()}, self.event_weights
        )


def read_events(
    info: FileInfo, settings: IngestSettings, *, start: int, stop: int
) -> Iterator[RawEvents]:
    """Read the needed branches of entries `start` to `stop` (exclusive), in pieces.

    Their size is bounded, however many particles an event has. Except at `start` and `stop`, pieces begin and end at
    baskets of the largest branch, so that no large basket is decompressed twice.
    """
    settings = settings.for_sample(info.tree, info.branch_map, info.weights)
    wanted = settings.branches(info.weight, info.label_by)
    for absent in info.missing_optional:
        wanted.pop(absent, None)
    with translate_read_errors(info.path, f"entries {start} to {stop - 1}"):
        file = open_root(info.path)
    with file:
        with translate_read_errors(info.path, "its baskets' index"):
            tree = file[settings.tree]
            names = BranchNames(tree, info.path)
            sources = number_sources(names) | field_sources(names, wanted, settings.branch_map)
            # Several numbers of one list, and several leaves, are one branch.
            branches = {id(source.branch): source._replace(leaf="") for source in sources.values()}
            edges = piece_edges([source.branch for source in branches.values()], start, stop)
        for first, last in pairwise(edges):
            with translate_read_errors(info.path, f"entries {first} to {last - 1}"):
                read = {key: source.read(first, last) for key, source in branches.items()}
            arrays = {field: each.of(read[id(each.branch)]) for field, each in sources.items()}
            # With a damaged index of baskets, uproot silently returns fewer entries.
            if others := {len(array) for array in arrays.values()} - {last - first}:
                cause = ValueError(f"a branch has {min(others)} of {last - first} entries")
                raise DamagedFileError.at(
                    info.path, where=f"entries {first} to {last - 1}", cause=cause
                )
            yield _raw_events(arrays, sources, info, settings, first, last)


def _raw_events(
    arrays: dict[str, ak.Array],
    sources: dict[str, Branch],
    info: FileInfo,
    settings: IngestSettings,
    first: int,
    last: int,
) -> RawEvents:
    """Flat arrays of the fields of entries `first` to `last` (exclusive); `sources` gives where each was read."""
    num_events = last - first
    scalars = {
        name: event_numbers(arrays[name], sources[name].place, SCALARS[name].dtype, first)
        for name in ("met", "met_phi")
    }
    weight = ColumnSource.of_weight(info.weight)
    scalars["weight"] = (
        column_numbers(
            arrays["weight"], "weight", weight, path=info.path, dtype="float64", first=first
        )
        if "weight" in arrays
        else np.ones(num_events)
    )
    if length := info.list_lengths.get("weight"):
        # Refuses lists of other lengths.
        variation_numbers(arrays["weight"], "weight", weight, length, path=info.path, first=first)
    columns = settings.pass_through_columns
    collections = {
        name: Jagged(
            np.zeros(num_events + 1, np.int64),
            {field: np.empty(0, each.dtype) for field, each in own.items()},
        )
        if info.lacks_particles and name in PARTICLE_COLLECTIONS
        else _collection(name, arrays, sources, settings, first)
        for name, own in COLLECTIONS.items()
    }
    pass_through = {
        name: column_numbers(
            arrays[name],
            name,
            columns[name],
            path=info.path,
            dtype=info.pass_through[name],
            first=first,
        )
        for name in settings.pass_through
    }
    without_weight = {}
    for name, source in columns.items():
        if name in pass_through:
            continue
        variation = Variation(np.ones(num_events), np.zeros(num_events, np.bool_))
        if name in arrays:
            length = info.list_lengths.get(name, 1)
            variation = variation_numbers(
                arrays[name], name, source, length, path=info.path, first=first
            )
        is_factor = source.is_factor | ~variation.is_there
        pass_through[name] = variation.numbers * np.where(is_factor, scalars["weight"], 1)
        if NO_WEIGHT not in (source.branch, info.weight):
            without_weight[name] = ~variation.is_there
    labels = _labels(arrays, info, first) if info.label_by else np.full(num_events, info.label)
    numbers = number_keys(arrays, sources, first)
    entries = np.arange(first, last)
    return RawEvents(entries, scalars, collections, pass_through, labels, without_weight, numbers)


def _labels(arrays: Mapping[str, ak.Array], info: FileInfo, first: int) -> NDArray[np.int64]:
    rule = LabelRule.of(info.label_by)
    columns = {}
    for name, source in rule.sources.items():
        columns[name] = column_numbers(arrays[name], name, source, path=info.path, first=first)
    try:
        labels, num_held = rule.labels(columns)
    # Only integers have bits, and a quotient by 0 that is an integer is none.
    except (ArithmeticError, TypeError) as cause:
        raise WrongBranchTypeError(
            f"{info.place}: a condition of label_by cannot be calculated in entries {first} to "
            f"{first + len(arrays) - 1} ({cause}). Correct it."
        ) from cause
    if (wrong := num_held != 1).any():
        event = int(np.argmax(wrong))
        values = ", ".join(
            f"{source.words} is {columns[name][event]}" for name, source in rule.sources.items()
        )
        raise WrongBranchTypeError(
            f"{info.place}: {int(wrong.sum())} of the {len(wrong)} events of entries {first} to "
            f"{first + len(wrong) - 1} have no class: for {int((num_held == 0).sum())} no condition of label_by holds, "
            f"for {int((num_held > 1).sum())} several. In entry {first + event}, {values}. Give each event one "
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
    """The candidates of a collection in the slots that count; the first event is entry `first`."""
    kinds = {field: spec.dtype for field, spec in COLLECTIONS[name].items()}
    if is_discriminant := settings.min_btag is not None and name == "jets":
        kinds["btag"] = "float64"
    places = {field: sources[f"{name}.{field}"].place for field in kinds}
    columns = {
        field: list_numbers(arrays[f"{name}.{field}"], places[field], kind)
        for field, kind in kinds.items()
    }
    cut = [field for field in kinds if is_fixed(arrays[f"{name}.{field}"])]
    # Beside lists, arrays of a fixed size have the lengths of the lists.
    counts = next((np.diff(columns[field][0]) for field in kinds if field not in cut), None)
    if counter := sources.get(f"{name}.count"):
        cut, counts = (
            list(kinds),
            event_numbers(arrays[f"{name}.count"], counter.place, "int64", first),
        )
    if counts is not None:
        for field in cut:
            columns[field] = first_numbers(*columns[field], counts, places[field], first)
    (leader, (offsets, _)), *others = columns.items()
    for field, (own, _) in others:
        if not np.array_equal(own, offsets):
            raise WrongBranchTypeError(
                f"{sources[f'{name}.{field}'].file}: '{name}.{leader}' and '{name}.{field}' have different numbers of "
                f"candidates. Map branches of one collection under ingest.branch_map."
            )
    found = Jagged(offsets, {field: values for field, (_, values) in columns.items()})
    if settings.branch_map.get(f"{name}.count") == FILLED:
        found = drop_padding(found)
    if is_discriminant:
        btag = found.fields["btag"]
        # NaN rejects the event, as in any other feature.
        found.fields["btag"] = np.where(np.isfinite(btag), btag > settings.min_btag, np.nan)
    return found


def select_events(
    raw: RawEvents,
    info: FileInfo,
    settings: IngestSettings,
    *,
    without: Sequence[int] | NDArray[np.int64] = (),
) -> Selection:
    """Drop events with non-finite numbers or without a lepton above threshold; drop candidates below threshold.

    The entries in `without`, copies of other events, are dropped first.

    Returns:
        The events in the schema `ingestion.schema.events_schema()`, and their tally.
    """
    above = _above_thresholds(raw, settings)
    raw, turned = _in_range(raw, above, info)
    not_finite = _not_finite(
        raw, above, info, settings.for_sample(info.tree, info.branch_map, info.weights)
    )
    bad = np.zeros(raw.num_events, dtype=np.bool_)
    for events in not_finite.values():
        bad |= events
    has_lepton, has_other_charge = np.zeros((2, raw.num_events), dtype=np.bool_)
    for name in ("electrons", "muons", "tracks"):
        offsets, fields = raw.collections[name]
        if (others := (np.abs(fields["charge"]) != 1) & above[name]).any():
            has_other_charge |= any_per_event(offsets, others)
        if name != "tracks":
            has_lepton |= any_per_event(offsets, fields["pt"] > settings.min_lepton_pt)
    copied = np.isin(raw.entries, without)
    is_out = ~copied & (raw.labels < 0)
    dropped = copied | is_out
    keep = ~dropped & ~bad & has_lepton
    jets = raw.collections["jets"]
    steps = {
        "entries": np.ones_like(keep),
        "rejected_copy": copied,
        **({tally.NO_CLASS: is_out} if info.label_by else {}),
        "rejected_nonfinite": ~dropped & bad,
        "rejected_no_lepton": ~dropped & ~bad & ~has_lepton,
        "events": keep,
        "events_of_negative_weight": keep & (raw.scalars["weight"] < 0),
        tally.WRAPPED_AZIMUTHS: keep & turned,
        tally.TAGGED_JETS: keep & any_per_event(jets.offsets, jets.fields["btag"] != 0),
        tally.UNTAGGED_JETS: keep & any_per_event(jets.offsets, jets.fields["btag"] == 0),
        tally.OTHER_CHARGES: keep & has_other_charge,
        **{
            name: keep & events
            for name, events in large_momenta(raw.scalars, raw.collections).items()
        },
        **{
            f"{tally.LIKE_AZIMUTHS}{name}": keep & events
            for name, events in like_azimuths(raw.collections).items()
        },
        **{
            f"{tally.WITHOUT_WEIGHT}{name}": keep & events
            for name, events in raw.without_weight.items()
            if events.any()
        },
        **{
            f"{tally.NOT_FINITE}{branch}": ~dropped & events
            for branch, events in not_finite.items()
        },
    }
    weight = raw.scalars["weight"].astype(np.float64)
    weight[~np.isfinite(weight)] = 0.0
    return Selection(_events_table(raw, above, info, keep), steps, weight)


def _above_thresholds(raw: RawEvents, settings: IngestSettings) -> dict[str, Mask | bool]:
    """The candidates of each collection that are kept: those that are not at or below its threshold.

    NaN and infinity are not below: they reject the event.
    """
    thresholds = {
        "tracks": ("pt", settings.min_track_pt),
        "photons": ("et", settings.min_photon_et),
        "neutral_hadrons": ("et", settings.min_neutral_hadron_et),
    }
    found: dict[str, Mask | bool] = dict.fromkeys(raw.collections, True)
    for name, (field, threshold) in thresholds.items():
        size = raw.collections[name].fields[field]
        found[name] = ~((size <= threshold) & np.isfinite(size))
    return found


def _not_finite(
    raw: RawEvents, above: Mapping[str, Mask | bool], info: FileInfo, settings: IngestSettings
) -> dict[str, Mask]:
    """The events in which a number is NaN or infinite, by the branch that holds it."""
    branches = settings.branches() | {"weight": info.weight}
    numbers = [(branches[name], values) for name, values in raw.scalars.items()]
    for name, source in settings.pass_through_columns.items():
        # The others are the weight of the sample.
        has_branch = source.branch != NO_WEIGHT and name not in info.missing_optional
        if name.startswith(WEIGHT_PREFIX) and has_branch:
            numbers.append((source.words, raw.pass_through[name]))
    not_finite = [(branch, ~np.isfinite(values)) for branch, values in numbers]
    for name, jagged in raw.collections.items():
        for field, values in jagged.fields.items():
            bad = ~np.isfinite(values) & above[name]
            if bad.any():
                not_finite.append((branches[f"{name}.{field}"], any_per_event(jagged.offsets, bad)))
    by_branch: dict[str, Mask] = {}
    for branch, events in not_finite:
        if events.any():
            by_branch[branch] = by_branch.get(branch, False) | events
    return by_branch


def _in_range(
    raw: RawEvents, above: Mapping[str, Mask | bool], info: FileInfo
) -> tuple[RawEvents, Mask]:
    """The events with all azimuths within [-pi, pi], and which of them had others."""
    turned = np.zeros(raw.num_events, dtype=np.bool_)
    met = raw.scalars["met"]
    if (negative := np.isfinite(met) & (met < 0)).any():
        raise WrongBranchTypeError(
            f"{info.path}: 'met' is {met[negative][0]:g} in entry {raw.entries[negative][0]}; no missing energy is "
            f"negative. Map another branch under ingest.branch_map, or leave events without it out of the file."
        )
    found = {
        **raw.collections,
        "met": Jagged(np.arange(raw.num_events + 1), {"phi": raw.scalars["met_phi"]}),
    }
    for name, each in found.items():
        phi = each.fields["phi"]
        is_kept = above.get(name, True)
        if name != "met" and (padding := is_padding(each) & is_kept).any():
            slot = int(np.argmax(padding))
            values = ", ".join(f"{field} {column[slot]:g}" for field, column in each.fields.items())
            raise WrongBranchTypeError(
                f"{info.path}: {int(padding.sum())} of {len(phi)} candidates of '{name}' look like padding, such as "
                f"{values}. In ingest.branch_map set `{name}.count` to the branch with the number of candidates, or to "
                f"`{FILLED}` to leave such slots out."
            )
        outside = is_out_of_range(phi) & is_kept
        if not outside.any():
            continue
        largest = np.abs(phi[outside]).max()
        if largest > _LARGEST_AZIMUTH:
            raise WrongBranchTypeError(
                f"{info.path}: an azimuth of '{name}' is {largest:g}; radians are needed, between -pi and pi. Convert "
                f"the branch, or map another one under ingest.branch_map."
            )
        found[name] = each._replace(fields={**each.fields, "phi": wrap_azimuths(phi)})
        turned |= any_per_event(each.offsets, outside)
    scalars = {**raw.scalars, "met_phi": found.pop("met").fields["phi"]}
    return raw._replace(scalars=scalars, collections=found), turned


def _events_table(
    raw: RawEvents, above: Mapping[str, Mask | bool], info: FileInfo, keep: Mask
) -> pa.Table:
    """The kept events with the candidates above threshold, as Arrow."""
    num_kept = int(keep.sum())
    names = {label: name for name, label in info.samples.items()}
    columns: dict[str, pa.Array] = {
        "file_uuid": pa.array([info.uuid] * num_kept, pa.string()),
        "entry": pa.array(raw.entries[keep], pa.int64()),
        "sample": pa.array([names[label] for label in raw.labels[keep].tolist()], pa.string()),
        "label": pa.array(raw.labels[keep], pa.int64()),
    }
    columns |= {
        name: pa.array(values[keep]) for name, values in (raw.scalars | raw.pass_through).items()
    }
    schema = events_schema(info.pass_through)
    for name, jagged in raw.collections.items():
        kept = np.repeat(keep, np.diff(jagged.offsets)) & above[name]
        # A boolean mask would be searched again for every field, which takes half of the time longer.
        chosen = np.flatnonzero(kept)
        offsets = offsets_after_mask(jagged.offsets, kept)[np.concatenate([[True], keep])]
        fields = [
            convert_exactly(
                jagged.fields[field].take(chosen),
                spec.dtype,
                BranchLocation(f"{info.path}: '{name}.{field}'", INTEGERS_FIX),
            )
            for field, spec in COLLECTIONS[name].items()
        ]
        kind = schema.field(name).type
        particles = pa.StructArray.from_arrays(
            list(map(pa.array, fields)), fields=list(kind.value_type)
        )
        columns[name] = pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), particles, type=kind
        )
    return pa.Table.from_arrays(
        [columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema
    )
