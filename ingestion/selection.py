"""Selects events by their leptons and candidates by thresholds; makes Arrow tables of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingestion import tally
from ingestion.branches import BranchLocation, convert_exactly
from ingestion.errors import WrongBranchTypeError
from ingestion.file_info import FileInfo
from ingestion.layout import FILLED
from ingestion.reader import RawEvents
from ingestion.schema import COLLECTIONS, WEIGHT_PREFIX, events_schema
from ingestion.settings import NO_WEIGHT, IngestSettings
from ingestion.tally import StepCounts
from ingestion.thresholds import (
    Jagged,
    Mask,
    any_per_event,
    is_out_of_range,
    is_padding,
    offsets_after_mask,
    wrap_azimuths,
)
from ingestion.unusual_momenta import large_momenta, like_azimuths

#: Above it, azimuths are hardly in radians: they would be degrees.
_LARGEST_AZIMUTH: Final = 4 * math.pi


class Selection(NamedTuple):
    """Events that pass, and which of the entries read count in each step of the cutflow.

    The numbers of events that pass and of each rejection add up to the number of entries.
    """

    table: pa.Table
    """The events that pass, in the schema of the events Parquet."""
    steps: dict[str, Mask]
    """(num_entries,) whether each entry counts in a step of the tally, by the name of the step."""
    event_weights: NDArray[np.float64]
    """(num_entries,) weights; 0 for weights that are not finite."""

    def tally(self, mask: Mask | bool = True) -> StepCounts:
        """The tally of the entries of a mask (num_entries,); True for all."""
        steps = {name: step & mask for name, step in self.steps.items()}
        return StepCounts.from_steps(steps, self.event_weights)


def select_events(
    raw: RawEvents,
    info: FileInfo,
    settings: IngestSettings,
    *,
    without: Sequence[int] | NDArray[np.int64] = (),
) -> Selection:
    """Drop bad events and events without a hard lepton; drop candidates below threshold.

    An event counts in the first rejection that applies: it is a copy of another event (its entry is
    in `without`), it has no class, a number is not finite, or no electron or muon is hard.

    Raises:
        WrongBranchTypeError: Numbers are not physical, such as a negative missing energy.

    Returns:
        The events in the schema `ingestion.schema.events_schema()`, and their tally.
    """
    settings = settings.for_sample(info.tree, info.branch_map, info.weights)
    above = _above_thresholds(raw, settings)
    _check_physical(raw, above, info)
    raw, is_wrapped = _wrap_all_azimuths(raw, above, info)
    not_finite = _not_finite(raw, above, info, settings)
    is_bad = np.zeros(raw.num_events, np.bool_)
    for events in not_finite.values():
        is_bad |= events
    is_copy = np.isin(raw.entries, without)
    has_no_class = ~is_copy & (raw.labels < 0)
    is_dropped = is_copy | has_no_class
    has_lepton = _has_hard_lepton(raw, settings)
    keep = ~is_dropped & ~is_bad & has_lepton

    # Each entry is in exactly one of the rejections or in `events`; later counters may overlap.
    steps = {"entries": np.ones_like(keep), "rejected_copy": is_copy}
    if info.label_by:
        steps[tally.NO_CLASS] = has_no_class
    steps["rejected_nonfinite"] = ~is_dropped & is_bad
    steps["rejected_no_lepton"] = ~is_dropped & ~is_bad & ~has_lepton
    steps["events"] = keep
    for name, events in _unusual_events(raw, above, is_wrapped).items():
        steps[name] = keep & events
    for branch, events in not_finite.items():
        steps[f"{tally.NOT_FINITE}{branch}"] = ~is_dropped & events
    weight = raw.scalars["weight"].astype(np.float64)
    weight[~np.isfinite(weight)] = 0.0
    return Selection(_events_table(raw, above, info, keep), steps, weight)


def _has_hard_lepton(raw: RawEvents, settings: IngestSettings) -> Mask:
    """(num_events,) whether an electron or muon is above the threshold."""
    has_lepton = np.zeros(raw.num_events, np.bool_)
    for name in ("electrons", "muons"):
        leptons = raw.collections[name]
        has_lepton |= any_per_event(leptons.offsets, leptons.size > settings.min_lepton_pt)
    return has_lepton


def _unusual_events(
    raw: RawEvents, above: Mapping[str, Mask | bool], is_wrapped: Mask
) -> dict[str, Mask]:
    """Masks (num_events,) of unusual content that the tally counts, by counter.

    They reject no event; the notes of a run report large counts. `above` has the candidates above
    threshold, `is_wrapped` the events of which an azimuth was out of range.
    """
    jets = raw.collections["jets"]
    # Charges of candidates below threshold do not count, since these are dropped.
    has_other_charge = np.zeros(raw.num_events, np.bool_)
    for name in ("electrons", "muons", "tracks"):
        candidates = raw.collections[name]
        is_other = (np.abs(candidates.fields["charge"]) != 1) & above[name]
        if is_other.any():
            has_other_charge |= any_per_event(candidates.offsets, is_other)
    events = {
        "events_of_negative_weight": raw.scalars["weight"] < 0,
        tally.WRAPPED_AZIMUTHS: is_wrapped,
        tally.TAGGED_JETS: any_per_event(jets.offsets, jets.fields["btag"] != 0),
        tally.UNTAGGED_JETS: any_per_event(jets.offsets, jets.fields["btag"] == 0),
        tally.OTHER_CHARGES: has_other_charge,
    }
    events |= large_momenta(raw.scalars, raw.collections)
    for name, is_like_azimuth in like_azimuths(raw.collections).items():
        events[f"{tally.LIKE_AZIMUTHS}{name}"] = is_like_azimuth
    for name, has_no_weight in raw.without_weight.items():
        if has_no_weight.any():
            events[f"{tally.WITHOUT_WEIGHT}{name}"] = has_no_weight
    return events


def _above_thresholds(raw: RawEvents, settings: IngestSettings) -> dict[str, Mask | bool]:
    """(num_candidates,) whether each candidate is above threshold, by collection.

    A collection without a threshold has a plain True. NaN and infinity count as above, so that they
    reject their event later.
    """
    thresholds = {
        "tracks": settings.min_track_pt,
        "photons": settings.min_photon_et,
        "neutral_hadrons": settings.min_neutral_hadron_et,
    }
    above: dict[str, Mask | bool] = dict.fromkeys(raw.collections, True)
    for name, threshold in thresholds.items():
        size = raw.collections[name].size
        above[name] = ~((size <= threshold) & np.isfinite(size))
    return above


def _not_finite(
    raw: RawEvents, above: Mapping[str, Mask | bool], info: FileInfo, settings: IngestSettings
) -> dict[str, Mask]:
    """(num_events,) whether an event has a number that is NaN or infinite, by branch.

    Candidates below threshold do not count. A branch without such numbers has no entry.
    """
    branches = settings.branches() | {"weight": info.weight}
    events_by_branch: dict[str, Mask] = {}

    def add(branch: str, is_bad_event: Mask) -> None:
        if is_bad_event.any():
            events_of_branch = events_by_branch.get(branch, False)
            events_by_branch[branch] = events_of_branch | is_bad_event

    for name, values in raw.scalars.items():
        branch = branches[name]
        add(branch, ~np.isfinite(values))
    for name, source in settings.pass_through_columns.items():
        is_a_weight = name.startswith(WEIGHT_PREFIX)
        # Without a branch, the numbers are the weight of the sample.
        has_branch = source.branch != NO_WEIGHT and name not in info.missing_optional
        if is_a_weight and has_branch:
            weights = raw.pass_through[name]
            add(source.text, ~np.isfinite(weights))
    for name, candidates in raw.collections.items():
        for field, values in candidates.fields.items():
            is_bad = ~np.isfinite(values) & above[name]
            if is_bad.any():
                branch = branches[f"{name}.{field}"]
                is_bad_event = any_per_event(candidates.offsets, is_bad)
                add(branch, is_bad_event)
    return events_by_branch


def _check_physical(raw: RawEvents, above: Mapping[str, Mask | bool], info: FileInfo) -> None:
    """Refuse a negative missing energy, and candidates above threshold that look like padding.

    Padding are slots of arrays that hold no candidate but a filler number.
    """
    met = raw.scalars["met"]
    is_negative = np.isfinite(met) & (met < 0)
    if is_negative.any():
        raise WrongBranchTypeError(
            f"{info.path}: 'met' is {met[is_negative][0]:g} in entry "
            f"{raw.entries[is_negative][0]}; no missing energy is negative.",
            "Map another branch under ingest.branch_map, or leave events without it out of the "
            "file.",
        )
    for name, candidates in raw.collections.items():
        padding = is_padding(candidates) & above[name]
        if padding.any():
            slot = int(np.argmax(padding))
            values = [f"{field} {column[slot]:g}" for field, column in candidates.fields.items()]
            raise WrongBranchTypeError(
                f"{info.path}: {np.count_nonzero(padding)} of {len(padding)} candidates of "
                f"'{name}' look like padding, such as {', '.join(values)}.",
                f"In ingest.branch_map set `{name}.count` to the branch with the number of "
                f"candidates, or to `{FILLED}` to leave such slots out.",
            )


def _wrap_all_azimuths(
    raw: RawEvents, above: Mapping[str, Mask | bool], info: FileInfo
) -> tuple[RawEvents, Mask]:
    """The events with all azimuths within [-pi, pi], and a mask (num_events,) of those with others.

    Candidates below threshold do not count. `raw` itself does not change.

    Raises:
        WrongBranchTypeError: An azimuth is so large that it is not in radians.
    """
    met_phi = raw.scalars["met_phi"]
    is_wrapped = is_out_of_range(met_phi)
    if is_wrapped.any():
        _check_radians(met_phi[is_wrapped], "met", info)
        raw = raw._replace(scalars={**raw.scalars, "met_phi": wrap_azimuths(met_phi)})
    collections = dict(raw.collections)
    for name, candidates in raw.collections.items():
        phi = candidates.fields["phi"]
        outside = is_out_of_range(phi) & above[name]
        if outside.any():
            _check_radians(phi[outside], name, info)
            wrapped = {**candidates.fields, "phi": wrap_azimuths(phi)}
            collections[name] = candidates._replace(fields=wrapped)
            is_wrapped = is_wrapped | any_per_event(candidates.offsets, outside)
    return raw._replace(collections=collections), is_wrapped


def _check_radians(azimuths: NDArray[Any], name: str, info: FileInfo) -> None:
    """Refuse azimuths beyond 4 pi, which are probably degrees."""
    largest = np.abs(azimuths).max()
    if largest > _LARGEST_AZIMUTH:
        raise WrongBranchTypeError(
            f"{info.path}: an azimuth of '{name}' is {largest:g}; radians are needed, between -pi "
            f"and pi.",
            "Convert the branch, or map another one under ingest.branch_map.",
        )


def _events_table(
    raw: RawEvents, above: Mapping[str, Mask | bool], info: FileInfo, keep: Mask
) -> pa.Table:
    """The kept events with the candidates above threshold, as an Arrow table.

    `keep` is (num_events,). Each collection is a column of lists of structs (one per candidate).
    """
    schema = events_schema(info.pass_through)
    sample_of_label = {label: name for name, label in info.samples.items()}
    labels = raw.labels[keep]
    samples = [sample_of_label[label] for label in labels.tolist()]
    uuids = [info.uuid] * len(samples)
    # A pass-through column never replaces one of ours.
    columns: dict[str, pa.Array] = {
        name: pa.array(values[keep]) for name, values in raw.pass_through.items()
    }
    columns |= {
        "file_uuid": pa.array(uuids, pa.string()),
        "entry": pa.array(raw.entries[keep], pa.int64()),
        "sample": pa.array(samples, pa.string()),
        "label": pa.array(labels, pa.int64()),
    }
    for name, values in raw.scalars.items():
        columns[name] = pa.array(values[keep])
    for name, candidates in raw.collections.items():
        is_of_kept_event = np.repeat(keep, np.diff(candidates.offsets))
        mask = is_of_kept_event & above[name]
        list_type = schema.field(name).type
        columns[name] = _lists_of_candidates(name, candidates, keep, mask, list_type, info.path)
    arrays = []
    for name in schema.names:
        field_type = schema.field(name).type
        arrays.append(columns[name].cast(field_type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _lists_of_candidates(
    name: str, candidates: Jagged, keep: Mask, mask: Mask, list_type: pa.ListType, path: str
) -> pa.ListArray:
    """A list of structs for each kept event, one struct for each candidate in `mask`.

    `keep` is (num_events,), `mask` (num_candidates,); `path` is that of the file, for messages.
    """
    # Row numbers are found once; a boolean mask for every field takes half of the time longer.
    rows = np.flatnonzero(mask)
    columns = []
    for field, spec in COLLECTIONS[name].items():
        key = f"{name}.{field}"
        location = BranchLocation(f"{path}: '{key}'").for_field(key)
        values = candidates.fields[field].take(rows)
        values = convert_exactly(values, spec.dtype, location)
        columns.append(pa.array(values))
    fields = list(list_type.value_type)
    particles = pa.StructArray.from_arrays(columns, fields=fields)

    # An event that is not kept has no candidates in `mask`, so its offset can be left out.
    is_end_of_kept = np.concatenate([[True], keep])
    offsets_of_all = offsets_after_mask(candidates.offsets, mask)
    offsets = offsets_of_all[is_end_of_kept].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), particles, type=list_type)
