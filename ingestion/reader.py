"""Reads a range of entries of one ROOT file into Arrow tables of events, without Spark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import UUID

import awkward as ak
import numpy as np
import pyarrow as pa
import uproot
from numpy.typing import NDArray

from ingestion.baskets import piece_edges
from ingestion.branches import BranchPlace, carried_numbers, event_numbers, exactly, list_numbers
from ingestion.errors import DamagedFileError, WrongBranchTypeError, reading
from ingestion.files import FileInfo
from ingestion.schema import (
    COLLECTIONS,
    ORIGIN_BRANCHES,
    PARTICLE_COLLECTIONS,
    SCALARS,
    WEIGHT_PREFIX,
    events_schema,
)
from ingestion.settings import Carried, IngestSettings, field_branches
from ingestion.storage import limit_waiting, protocol_of
from ingestion.tally import WRAPPED_AZIMUTHS, StepCounts
from ingestion.thresholds import (
    Jagged,
    Mask,
    any_per_event,
    events_to_candidates,
    is_turned,
    kept_offsets,
    nonfinite,
    wrapped_azimuths,
)

Origin = tuple[Sequence[str], NDArray[np.int64]]

#: Above it, azimuths are hardly in radians: they would be degrees.
_LARGEST_AZIMUTH: Final = 4 * math.pi


class RawEvents(NamedTuple):
    """The needed branches of a range of entries, as the file holds them."""

    entries: NDArray[np.int64]
    """(num_events,) number of each event in the file."""
    scalars: dict[str, NDArray[Any]]
    collections: dict[str, Jagged]
    carried: dict[str, NDArray[Any]]
    """Numbers that the user carries along, by branch."""
    origin: Origin
    """UUID and entry of the event that each event is or, in a load-test sample, copies."""

    @property
    def num_events(self) -> int:
        """Number of entries read."""
        return len(self.entries)


class Selection(NamedTuple):
    """Events that pass, and their tally; events and rejections add up to the entries read."""

    table: pa.Table
    counts: dict[str, int]
    weights: dict[str, list[float]]
    """Non-finite weights count as 0."""


def read_events(info: FileInfo, settings: IngestSettings, *, start: int, stop: int) -> Iterator[RawEvents]:
    """Read the needed branches of entries `start` to `stop` (exclusive), in pieces.

    Their size is bounded, however many particles an event has. Except at `start` and `stop`, pieces begin and end at
    baskets of the largest branch, so that no large basket is decompressed twice.

    Raises:
        IngestionError: Some baskets cannot be read, or a branch is not jagged or not numeric where it must be.
    """
    names = field_branches(settings.branch_map)
    names |= {name: carried.branch for name, carried in settings.carried.items()}
    names["weight"] = Carried.of_weight(info.weight).branch
    for absent in info.missing_optional:
        del names[absent]
    if info.is_load_test:
        names |= {name: name for name in ORIGIN_BRANCHES}
    with reading(info.path, f"entries {start} to {stop - 1}"):
        limit_waiting(protocol_of(info.path))
        tree = uproot.open({info.path: settings.tree})
    with tree:
        with reading(info.path, "its baskets' index"):
            # Several numbers of one list are one branch.
            branches = {name: tree[name] for name in dict.fromkeys(names.values())}
            edges = piece_edges(list(branches.values()), start, stop)
        for first, last in pairwise(edges):
            with reading(info.path, f"entries {first} to {last - 1}"):
                read = {name: branch.array(entry_start=first, entry_stop=last) for name, branch in branches.items()}
            arrays = {field: read[name] for field, name in names.items()}
            # With a damaged index of baskets, uproot silently returns fewer entries.
            if others := {len(array) for array in arrays.values()} - {last - first}:
                cause = ValueError(f"a branch has {min(others)} of {last - first} entries")
                raise DamagedFileError.at(info.path, where=f"entries {first} to {last - 1}", cause=cause)
            yield _raw_events(arrays, names, info, settings, first, last)


def _origin(arrays: dict[str, ak.Array], info: FileInfo, entries: NDArray[np.int64]) -> Origin:
    """UUIDs as text, in a load-test sample from their halves."""
    if not info.is_load_test:
        return [info.uuid] * len(entries), entries
    high, low, origin_entries = (np.asarray(arrays[name]) for name in ORIGIN_BRANCHES)
    halves = zip(high.view(np.uint64).tolist(), low.view(np.uint64).tolist(), strict=True)
    return [str(UUID(int=(upper << 64) + lower)) for upper, lower in halves], origin_entries


def _raw_events(
    arrays: dict[str, ak.Array], names: dict[str, str], info: FileInfo, settings: IngestSettings, first: int, last: int
) -> RawEvents:
    """Flat arrays of the fields of entries `first` to `last` (exclusive); `names` gives the branch of each field."""
    num_events = last - first
    places = {name: BranchPlace(f"{info.path}: branch '{branch}'") for name, branch in names.items()}
    scalars = {
        name: event_numbers(arrays[name], places[name], SCALARS[name].dtype, first) for name in ("met", "met_phi")
    }
    weight = Carried.of_weight(info.weight)
    scalars["weight"] = (
        carried_numbers(arrays["weight"], "weight", weight, path=info.path, dtype="float64", first=first)
        if "weight" in arrays
        else np.ones(num_events)
    )
    collections = {}
    for name, fields in COLLECTIONS.items():
        if info.lacks_particles and name in PARTICLE_COLLECTIONS:
            none = {field: np.empty(0, spec.dtype) for field, spec in fields.items()}
            collections[name] = Jagged(np.zeros(num_events + 1, np.int64), none)
            continue
        kinds = {field: spec.dtype for field, spec in fields.items()}
        if is_discriminant := settings.min_btag is not None and name == "jets":
            kinds["btag"] = "float64"
        columns = {
            field: list_numbers(arrays[f"{name}.{field}"], places[f"{name}.{field}"], kind)
            for field, kind in kinds.items()
        }
        (leader, (offsets, _)), *others = columns.items()
        for field, (own, _) in others:
            if not np.array_equal(own, offsets):
                raise WrongBranchTypeError(
                    f"{info.path}: '{name}.{leader}' and '{name}.{field}' have different numbers of candidates. "
                    f"Map branches of one collection under ingest.branch_map."
                )
        collections[name] = Jagged(offsets, {field: values for field, (_, values) in columns.items()})
        if is_discriminant:
            jets, btag = collections[name].fields, collections[name].fields["btag"]
            # NaN rejects the event, as in any other feature.
            jets["btag"] = np.where(np.isfinite(btag), btag > settings.min_btag, np.nan)
    carried = {
        name: carried_numbers(arrays[name], name, each, path=info.path, dtype=info.carried[name], first=first)
        * (scalars["weight"] if each.is_factor else 1)
        if name in arrays
        else scalars["weight"]
        for name, each in settings.carried.items()
    }
    entries = np.arange(first, last)
    return RawEvents(entries, scalars, collections, carried, _origin(arrays, info, entries))


def select_events(
    raw: RawEvents, info: FileInfo, settings: IngestSettings, *, without: Sequence[int] | NDArray[np.int64] = ()
) -> Selection:
    """Drop events with non-finite numbers or without a lepton above threshold; drop candidates below threshold.

    The entries in `without`, copies of other events, are dropped first.

    Returns:
        The events in the schema `ingestion.schema.events_schema()`, and their tally.
    """
    raw, turned = _in_range(raw, info)
    weights = [values for name, values in raw.carried.items() if name.startswith(WEIGHT_PREFIX)]
    bad = nonfinite([*raw.scalars.values(), *weights], raw.num_events)
    for jagged in raw.collections.values():
        flags = nonfinite(jagged.fields.values(), int(jagged.offsets[-1]))
        bad |= any_per_event(jagged.offsets, flags)
    has_lepton = np.zeros(raw.num_events, dtype=np.bool_)
    for name in ("electrons", "muons"):
        leptons = raw.collections[name]
        has_lepton |= any_per_event(leptons.offsets, leptons.fields["pt"] > settings.min_lepton_pt)
    copied = np.isin(raw.entries, without)
    keep = ~copied & ~bad & has_lepton
    steps = {
        "entries": np.ones_like(keep),
        "rejected_copy": copied,
        "rejected_nonfinite": ~copied & bad,
        "rejected_no_lepton": ~copied & ~bad & ~has_lepton,
        "events": keep,
        "events_of_negative_weight": keep & (raw.scalars["weight"] < 0),
        WRAPPED_AZIMUTHS: keep & turned,
    }
    weight = raw.scalars["weight"].astype(np.float64)
    weight[~np.isfinite(weight)] = 0.0
    return Selection(_events_table(raw, info, settings, keep), *StepCounts.of(steps, weight))


def _in_range(raw: RawEvents, info: FileInfo) -> tuple[RawEvents, Mask]:
    """The events with all azimuths within [-pi, pi], and which of them had others.

    Raises:
        WrongBranchTypeError: Azimuths are too large for radians.
    """
    turned = np.zeros(raw.num_events, dtype=np.bool_)
    met = Jagged(np.arange(raw.num_events + 1), {"phi": raw.scalars["met_phi"]})
    found = {**raw.collections, "met": met}
    for name, each in found.items():
        phi = each.fields["phi"]
        outside = is_turned(phi)
        if not outside.any():
            continue
        largest = np.abs(phi[outside]).max()
        if largest > _LARGEST_AZIMUTH:
            raise WrongBranchTypeError(
                f"{info.path}: an azimuth of '{name}' is {largest:g}; radians are needed, between -pi and pi. Convert "
                f"the branch, or map another one under ingest.branch_map."
            )
        found[name] = each._replace(fields={**each.fields, "phi": wrapped_azimuths(phi)})
        turned |= any_per_event(each.offsets, outside)
    scalars = {**raw.scalars, "met_phi": found.pop("met").fields["phi"]}
    return raw._replace(scalars=scalars, collections=found), turned


def _place_of(field: str, info: FileInfo) -> BranchPlace:
    words = f"{info.path}: '{field}'"
    if field == "jets.btag":
        return BranchPlace(
            words, "For a discriminant set its threshold, ingest.min_btag; or map bits under ingest.branch_map."
        )
    return BranchPlace(words)


def _events_table(raw: RawEvents, info: FileInfo, settings: IngestSettings, keep: Mask) -> pa.Table:
    """The kept events with the candidates above threshold, as Arrow."""
    num_kept = int(keep.sum())
    uuids, origin_entries = raw.origin
    columns: dict[str, pa.Array] = {
        "file_uuid": pa.array([info.uuid] * num_kept, pa.string()),
        "entry": pa.array(raw.entries[keep], pa.int64()),
        "origin_uuid": pa.array(np.asarray(uuids, dtype=object)[keep], pa.string()),
        "origin_entry": pa.array(origin_entries[keep], pa.int64()),
        "sample": pa.array([info.sample] * num_kept, pa.string()),
        "label": pa.array(np.full(num_kept, info.label), pa.int64()),
    }
    columns |= {name: pa.array(values[keep]) for name, values in (raw.scalars | raw.carried).items()}
    schema = events_schema(info.carried)
    thresholds = {
        "tracks": ("pt", settings.min_track_pt),
        "photons": ("et", settings.min_photon_et),
        "neutral_hadrons": ("et", settings.min_neutral_hadron_et),
    }
    for name, jagged in raw.collections.items():
        kept = events_to_candidates(jagged.offsets, keep)
        if name in thresholds:
            field, threshold = thresholds[name]
            kept &= jagged.fields[field] > threshold
        # A boolean mask would be searched again for every field, which takes half of the time longer.
        chosen = np.flatnonzero(kept)
        offsets = kept_offsets(jagged.offsets, kept)[np.concatenate([[True], keep])]
        fields = [
            exactly(jagged.fields[field].take(chosen), spec.dtype, _place_of(f"{name}.{field}", info))
            for field, spec in COLLECTIONS[name].items()
        ]
        kind = schema.field(name).type
        particles = pa.StructArray.from_arrays(list(map(pa.array, fields)), fields=list(kind.value_type))
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), particles, type=kind)
    return pa.Table.from_arrays([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)
