"""Each cut of the selection, on events with a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from event_rows import Row, event_row, events_table, jet, lepton, tower, track
from extracted_features import hlf_of
from pydantic import ValidationError

from features.columns import NUM_CORE
from features.kernels import OUTCOMES, FeatureBlock, build_features, fits_float32
from features.low_level import CORE
from features.settings import FeatureSettings

ELECTRON, MUON = lepton(40.0, 0.5, -1.0), lepton(50.0, 1.0, 1.0)
NEAR_MUON = [track(30.0, 1.0, 1.1)]
ONE_MUON = {"muons": [MUON]}
CROWDED_MUON = {"muons": [MUON], "tracks": NEAR_MUON}
TWO_LEPTONS = {"muons": [MUON], "electrons": [ELECTRON]}


def muon_and_jet(pt: float, eta: float = 0.0, *, btag: int = 0) -> dict[str, Any]:
    return {"muons": [MUON], "jets": [jet(pt, eta, 3.0, btag=btag)]}


def outcomes(events: list[Row], **settings: Any) -> list[str]:
    block = build_features(events_table(events), FeatureSettings(**settings))
    return [OUTCOMES[code].removeprefix("rejected_") for code in block.outcome]


@pytest.mark.parametrize(
    ("event", "settings", "expected"),
    [
        ({"electrons": [ELECTRON]}, {"lepton_flavours": ["electron"]}, "selected"),
        (ONE_MUON, {"lepton_flavours": ["electron"]}, "no_lepton_in_acceptance"),
        (ONE_MUON, {"min_lepton_pt": 50.0}, "no_lepton_in_acceptance"),
        (ONE_MUON, {"max_lepton_abs_eta": 1.0}, "no_lepton_in_acceptance"),
        (ONE_MUON, {"max_lepton_abs_eta": 1.01}, "selected"),
        (
            {"muons": [lepton(50.0, -2.5, 1.0)]},
            {"max_lepton_abs_eta": 2.4},
            "no_lepton_in_acceptance",
        ),
        (CROWDED_MUON, {}, "no_isolated_lepton"),
        (CROWDED_MUON, {"max_lepton_isolation": 0.7}, "selected"),
        (TWO_LEPTONS, {"max_leptons": 1}, "number_of_leptons"),
        (TWO_LEPTONS, {"max_leptons": 2}, "selected"),
        (TWO_LEPTONS, {"min_leptons": 2}, "selected"),
        (TWO_LEPTONS, {"max_leptons": 1, "lepton_flavours": ["muon"]}, "selected"),
        (TWO_LEPTONS, {"max_leptons": 1, "min_lepton_pt": 45.0}, "selected"),
        (TWO_LEPTONS | {"tracks": NEAR_MUON}, {"max_leptons": 1}, "selected"),
        ({"muons": [MUON, MUON]}, {"min_leptons": 3}, "number_of_leptons"),
        (muon_and_jet(31.0), {"min_jets": 1}, "selected"),
        (muon_and_jet(29.0), {"min_jets": 1}, "few_jets"),
        (muon_and_jet(31.0, eta=2.7), {"min_jets": 1}, "few_jets"),
        (muon_and_jet(31.0), {"min_jets": 1, "min_bjets": 1}, "few_bjets"),
        (muon_and_jet(31.0, btag=1), {"min_bjets": 1}, "selected"),
    ],
)
def test_each_cut_rejects_events_with_its_outcome(
    event: dict[str, Any], settings: dict[str, Any], expected: str
) -> None:
    assert outcomes([event_row(**event)], **settings) == [expected]


def test_only_leptons_within_the_limit_of_eta_are_selected() -> None:
    forward = lepton(60.0, 2.9, 0.0)
    event = event_row(electrons=[forward, ELECTRON])

    assert hlf_of(event, max_lepton_abs_eta=2.5)["lepton_pt"] == 40.0


def test_the_caps_keep_the_hardest_candidates_of_each_species() -> None:
    tracks = [track(pt, -2.0, pt) for pt in (1.0, 3.0, 2.0)]
    photons = [tower(pt, 2.0, pt) for pt in (5.0, 1.5)]
    neutral_hadrons = [tower(pt, -1.0, pt) for pt in (1.5, 2.5)]
    event = event_row(muons=[MUON], tracks=tracks, photons=photons, neutral_hadrons=neutral_hadrons)
    settings = FeatureSettings(max_tracks=2, max_photons=1, max_neutral_hadrons=0)

    block = build_features(events_table([event, event]), settings)

    assert np.diff(block.particle_offsets).tolist() == [4, 4]
    kinds_and_pts = block.core[:4, [CORE.kind, CORE.pt]].tolist()
    # Two tracks, a photon and the muon.
    assert sorted(kinds_and_pts) == [[0, 2.0], [0, 3.0], [1, 5.0], [4, 50.0]]


@pytest.mark.parametrize(
    ("numbers", "fits"),
    [
        ({"pt": 3e38, "eta": 0.0}, True),
        ({"pt": 3e38, "eta": 1.0}, False),
        ({"pt": 1e31, "eta": -14.0}, True),
        ({"pt": 1.0, "eta": 88.0}, True),
        ({"pt": 1.0, "eta": 90.0}, False),
        ({"pt": 1.0, "eta": -90.0}, False),
        ({"iso_charged": np.inf}, False),
        ({"iso_photon": np.nan}, False),
        ({"iso_neutral": -np.inf}, False),
    ],
)
def test_an_event_whose_energies_or_isolations_exceed_float32_does_not_fit(
    numbers: dict[str, float], fits: bool
) -> None:
    core = np.ones((3, NUM_CORE), np.float32)
    for name, value in numbers.items():
        core[1, getattr(CORE, name)] = value

    assert fits_float32(core) is fits


def test_limits_that_no_event_passes_are_refused() -> None:
    with pytest.raises(
        ValidationError, match="max_leptons 1 is below min_leptons 2: no event passes"
    ):
        FeatureSettings(min_leptons=2, max_leptons=1)


def test_the_order_of_the_flavours_does_not_matter() -> None:
    assert FeatureSettings(lepton_flavours=["muon", "electron"]) == FeatureSettings()


def particles_by_event(block: FeatureBlock) -> list[np.ndarray]:
    """(num_particles, 11) of each selected event."""
    return np.split(block.core, block.particle_offsets[1:-1])


def test_a_cut_on_jets_keeps_the_particles_of_the_passing_events() -> None:
    two_jets = [jet(40.0, 0.0, 3.0), jet(35.0, 1.0, -3.0)]
    events = []
    for entry, jets in enumerate([[], two_jets, [], two_jets, [], two_jets]):
        muon = lepton(50.0 + entry, 1.0, 1.0)
        tracks = [track(2.0 + entry, -1.0, -1.0)] * entry
        events.append(event_row(muons=[muon], tracks=tracks, jets=jets))
    table = events_table(events)
    without_cut = particles_by_event(build_features(table, FeatureSettings()))

    block = build_features(table, FeatureSettings(min_jets=1))

    assert block.selected.tolist() == [1, 3, 5]
    # The muon, and as many tracks as the number of the event.
    assert np.diff(block.particle_offsets).tolist() == [2, 4, 6]
    assert block.particle_offsets[0] == 0
    for entry, particles in zip(block.selected, particles_by_event(block), strict=True):
        np.testing.assert_array_equal(particles, without_cut[entry])
