"""The fast detector on single particles, without the generator: efficiencies, resolutions, and what is conserved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hep_simulation import parameters
from hep_simulation.calorimeter import ECAL, HCAL, Hits, MeasuredTracks, measure, tower_of
from hep_simulation.detector import _tracks, simulate
from hep_simulation.generator import GeneratedBlock, HeavyQuarks
from hep_simulation.particles import StableParticles, charges, passes
from hep_simulation.pile_up import MAX_Z_MM, Crossing, overlay
from hep_simulation.propagation import FIELD_TESLA, HALF_LENGTH_MM, RADIUS_MM, propagate
from hep_simulation.puppi import Flowing, puppi_weights
from pipeline.configuration.simulate_section import LeptonFilterSettings, PileUpSettings

MASSES = {11: 0.000511, 13: 0.10566, 211: 0.13957, 22: 0.0, 130: 0.4976, 12: 0.0}


def gun(
    pid: int, pt: float, eta: float, index: int, *, phi: float | None = None
) -> StableParticles:
    """One particle an event, from the origin, at random azimuths."""
    angle = (
        np.random.default_rng(3).uniform(-np.pi, np.pi, index)
        if phi is None
        else np.full(index, phi)
    )
    pz = np.full(index, pt * np.sinh(eta))
    energy = np.sqrt((pt * np.cosh(eta)) ** 2 + MASSES[abs(pid)] ** 2)
    zero = np.zeros(index)
    return StableParticles(
        np.arange(index + 1), np.full(index, pid, np.int32), pt * np.cos(angle), pt * np.sin(angle), pz,
        np.full(index, energy), zero, zero, zero,
    )  # fmt: skip


def tracks_of(particles: StableParticles) -> Any:
    crossing = Crossing(
        particles, np.zeros(len(particles.pid), np.bool_), np.ones(particles.num_events, np.int64)
    )
    return _tracks(crossing, propagate(particles), np.random.default_rng(5))


def no_tracks() -> MeasuredTracks:
    none = np.zeros(0)
    return MeasuredTracks(Hits(np.zeros(0, np.int64), none, none, none), none)


def test_a_charged_particle_follows_the_circle_of_its_momentum() -> None:
    particles = gun(-211, 2.0, 0.3, 50)
    arrival = propagate(particles)
    radius = 2.0 / (0.299792458 * FIELD_TESLA) * 1000
    # The chord from the centre to the surface turns the direction by half of the arc.
    turn = np.arcsin(RADIUS_MM / (2 * radius))
    bent = (arrival.phi - np.arctan2(particles.py, particles.px) + np.pi) % (2 * np.pi) - np.pi
    np.testing.assert_allclose(bent, turn, rtol=1e-9)
    assert charges(particles.pid)[0] == -1


def test_a_slow_particle_curls_to_the_end_of_the_tracker() -> None:
    arrival = propagate(gun(211, 0.3, 1.0, 20))
    assert (np.abs(HALF_LENGTH_MM / np.sinh(arrival.eta)) < RADIUS_MM).all()


def test_a_photon_from_the_origin_keeps_its_direction() -> None:
    particles = gun(22, 1.0, 2.4, 20)
    arrival = propagate(particles)
    np.testing.assert_allclose(arrival.eta, 2.4, rtol=1e-12)
    np.testing.assert_allclose(arrival.phi, np.arctan2(particles.py, particles.px), atol=1e-12)


@pytest.mark.parametrize(
    ("pid", "pt", "eta", "efficiency", "resolution"),
    [
        (211, 5.0, 0.5, 0.97, 0.0053),
        (211, 0.9, 1.25, 0.765, 0.0150),
        (13, 30.0, 0.1, 1.0, 0.0058),
        (11, 20.0, 2.0, 0.90, 0.038),
    ],
)
def test_tracks_have_the_efficiency_and_resolution_of_the_card(
    pid: int, pt: float, eta: float, efficiency: float, resolution: float
) -> None:
    index = 20_000
    tracks = tracks_of(gun(pid, pt, eta, index))
    share = len(tracks.pt) / index
    assert share == pytest.approx(efficiency, abs=4 * np.sqrt(0.25 / index))
    assert np.std(tracks.pt / pt) == pytest.approx(resolution, rel=0.05)
    assert np.mean(tracks.pt / pt) == pytest.approx(
        1.0, abs=5 * resolution / np.sqrt(index * share)
    )


def test_nothing_beyond_the_tracker_has_a_track() -> None:
    assert len(tracks_of(gun(211, 5.0, 4.2, 500)).pt) == 0
    assert len(tracks_of(gun(211, 0.19, 0.0, 500)).pt) == 0


@pytest.mark.parametrize(("energy", "eta", "relative"), [(50.0, 0.3, 0.0214), (40.0, 2.0, 0.0339)])
def test_photons_are_measured_without_bias_and_with_the_resolution_of_the_card(
    energy: float, eta: float, relative: float
) -> None:
    index = 4000
    hits = Hits(np.arange(index), np.full(index, eta), np.zeros(index), np.full(index, energy))
    actual = measure(ECAL, hits, no_tracks(), np.random.default_rng(1)).neutral
    assert len(actual.energy) == index
    assert actual.energy.mean() == pytest.approx(energy, rel=4 * relative / np.sqrt(index))
    assert actual.energy.std() / energy == pytest.approx(relative, rel=0.06)


def test_a_charged_hadron_with_a_track_leaves_at_most_a_significant_excess() -> None:
    index = 4000
    hits = Hits(np.arange(index), np.full(index, 0.3), np.zeros(index), np.full(index, 20.0))
    flow = measure(
        HCAL, hits, MeasuredTracks(hits, np.full(index, 0.006)), np.random.default_rng(2)
    )
    # One standard deviation above the track is the condition for a neutral candidate.
    assert len(flow.neutral.energy) / index == pytest.approx(0.14, abs=0.03)
    assert flow.scale.mean() == pytest.approx(1.0, abs=0.002)


def test_the_energy_of_a_charged_hadron_without_a_track_becomes_neutral() -> None:
    index = 2000
    hits = Hits(np.arange(index), np.full(index, 1.0), np.zeros(index), np.full(index, 30.0))
    actual = measure(HCAL, hits, no_tracks(), np.random.default_rng(4)).neutral
    assert actual.energy.mean() == pytest.approx(30.0, rel=0.02)


@pytest.mark.parametrize("segments", [ECAL, HCAL])
def test_towers_cover_the_calorimeter_once(segments: Any) -> None:
    rng = np.random.default_rng(6)
    eta, phi = rng.uniform(-5, 5, 5000), rng.uniform(-np.pi, np.pi, 5000)
    event = rng.integers(0, 3, 5000)
    assert (np.diff(segments.edges) > 0).all()
    assert len(segments.around) == len(segments.edges) - 1
    # Events never share towers, and their towers are in order.
    towers = tower_of(event, eta, phi, segments)
    assert [
        set(towers[event == bin_index]) & set(towers[event != bin_index]) for bin_index in range(3)
    ] == [set()] * 3
    assert towers[event == 0].max() < towers[event == 1].min()


def test_pile_up_adds_whole_collisions_and_changes_only_the_place_of_the_hard_one() -> None:
    hard, pool = gun(13, 30.0, 0.2, 200), gun(211, 1.0, 1.0, 40)
    actual = overlay(hard, pool, PileUpSettings(mean=5.0), np.random.default_rng(8))
    own_value = ~actual.is_pile_up
    np.testing.assert_array_equal(actual.particles.px[own_value], hard.px)
    assert np.diff(actual.particles.offsets).tolist() == actual.num_vertices.tolist()
    np.testing.assert_allclose(actual.particles.pt[~own_value], 1.0, rtol=1e-6)
    assert actual.num_vertices.mean() - 1 == pytest.approx(5.0, abs=4 * np.sqrt(5 / 200))
    assert np.abs(actual.particles.z).max() <= MAX_Z_MM
    assert actual.particles.z.std() == pytest.approx(53, rel=0.1)


def test_puppi_keeps_neutrals_beside_the_hard_collision_and_drops_those_of_pile_up() -> None:
    rng = np.random.default_rng(9)
    jet = [(0.0, 10.0, 0.3, 0.0 + 0.03 * k, True, False) for k in range(8)]
    spread = [(0.0, 0.5, eta, phi, True, False) for eta, phi in rng.uniform(-1.4, 1.4, (60, 2))]
    soft = [(0.0, 1.0, eta, phi, True, True) for eta, phi in rng.uniform(-1.4, 1.4, (80, 2))]
    near, far = (0.0, 5.0, 0.33, 0.05, False, False), (0.0, 1.0, -1.0, 2.5, False, False)
    columns = [np.array(column) for column in zip(*jet, *spread, *soft, near, far, strict=True)]
    weights = puppi_weights(Flowing(columns[0].astype(np.int64), *columns[1:]), np.array([20]))
    assert weights[:68].tolist() == [1.0] * 68
    assert weights[68:148].tolist() == [0.0] * 80
    assert weights[148] > 0.9
    assert weights[149] == 0.0


def test_the_filter_wants_an_isolated_lepton() -> None:
    lone = gun(13, 30.0, 0.5, 1, phi=0.0)
    beside = gun(211, 20.0, 0.6, 1, phi=0.1)
    away = gun(211, 20.0, 0.6, 1, phi=2.0)
    unseen = gun(12, 40.0, 0.6, 1, phi=0.1)

    def event(*chunks: StableParticles) -> StableParticles:
        joined = StableParticles.of_events(chunks)
        return joined._replace(offsets=np.array([0, len(joined.pid)]))

    events = StableParticles.of_events(
        [event(lone, beside), event(lone, away), event(lone, unseen), gun(13, 30.0, 2.6, 1)]
    )
    assert passes(events, LeptonFilterSettings()).tolist() == [False, True, True, False]
    assert passes(events, LeptonFilterSettings(min_pt=0)).all()


def test_b_tags_have_the_efficiencies_of_the_card() -> None:
    pytest.importorskip("fastjet", reason="the extra `simulate` is not installed")
    from hep_simulation.jets import FoundJets, b_tags, flavours

    index = 20_000
    jets = FoundJets(np.arange(index), np.full(index, 55.0), np.full(index, 0.5), np.zeros(index))
    quarks = HeavyQuarks(
        np.arange(index), np.full(index, 5), np.full(index, 0.7), np.full(index, 0.2)
    )
    flavour = flavours(jets, quarks)
    assert (flavour == 5).all()
    assert (flavours(jets, quarks._replace(eta=quarks.eta + 1)) == 0).all()
    tags = b_tags(jets, flavour, np.random.default_rng(3))
    for bit, efficiency in enumerate((0.856, 0.701, 0.504)):
        assert np.mean(tags >> bit & 1) == pytest.approx(efficiency, abs=0.015)
    assert np.mean(
        b_tags(jets, np.zeros(index, np.int64), np.random.default_rng(3)) & 1
    ) == pytest.approx(0.1, abs=0.01)
    assert not b_tags(
        jets._replace(pt=np.full(index, 19.0)), flavour, np.random.default_rng(3)
    ).any()


def test_a_lepton_beside_nothing_is_balanced_by_missing_energy() -> None:
    pytest.importorskip("fastjet", reason="the extra `simulate` is not installed")
    index = 300
    none = np.zeros(0)
    quarks = HeavyQuarks(np.zeros(0, np.int64), np.zeros(0, np.int64), none, none)
    block = GeneratedBlock(gun(13, 40.0, 0.5, index), quarks, np.ones(index))
    actual = simulate(block, None, PileUpSettings(mean=0), np.random.default_rng(2))
    tracks, muons, met = actual["EFlowTrack"], actual["MuonTight"], actual["MissingET"]
    assert len(tracks.fields["PT"]) == index
    np.testing.assert_allclose(met.fields["MET"], tracks.fields["PT"], rtol=1e-5)
    retained = np.diff(muons.offsets).astype(bool)
    np.testing.assert_array_equal(muons.fields["PT"], tracks.fields["PT"][retained])
    assert retained.mean() == pytest.approx(
        parameters.muon_identification(np.array([40.0]), np.array([0.5]))[0], abs=0.03
    )
    assert {collection.fields[name].dtype for collection in actual.values() for name in collection.fields} <= {
        np.dtype("float32"), np.dtype("int32"), np.dtype("uint32")
    }  # fmt: skip
