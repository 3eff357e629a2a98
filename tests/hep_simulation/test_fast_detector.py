"""The fast detector on single particles, without the generator."""

from __future__ import annotations

import numpy as np
import pytest

from hep_simulation import parameters
from hep_simulation.calorimeter import (
    ECAL,
    HCAL,
    Calorimeter,
    Hits,
    MeasuredTracks,
    measure,
    tower_keys,
)
from hep_simulation.detector import TrackArrays, make_tracks, simulate
from hep_simulation.generator import GeneratedBlock, HeavyQuarks
from hep_simulation.particles import StableParticles, charges, passes
from hep_simulation.pile_up import MAX_Z_MM, Crossing, overlay
from hep_simulation.propagation import FIELD_TESLA, HALF_LENGTH_MM, RADIUS_MM, propagate
from hep_simulation.puppi import Flowing, puppi_weights
from pipeline.configuration.simulate_section import LeptonFilterSettings, PileUpSettings

MASSES = {11: 0.000511, 13: 0.10566, 211: 0.13957, 22: 0.0, 130: 0.4976, 12: 0.0}
NO_HITS = Hits(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
NO_TRACKS = MeasuredTracks(NO_HITS, np.zeros(0))


def gun(
    pid: int, pt: float, eta: float, num_events: int, *, phi: float | None = None
) -> StableParticles:
    """One particle per event, from the origin, at random azimuths."""
    azimuth = np.random.default_rng(3).uniform(-np.pi, np.pi, num_events)
    if phi is not None:
        azimuth[:] = phi
    energy = np.sqrt((pt * np.cosh(eta)) ** 2 + MASSES[abs(pid)] ** 2)
    return StableParticles(
        np.arange(num_events + 1),
        pid=np.full(num_events, pid, np.int32),
        px=pt * np.cos(azimuth),
        py=pt * np.sin(azimuth),
        pz=np.full(num_events, pt * np.sinh(eta)),
        energy=np.full(num_events, energy),
        x=np.zeros(num_events),
        y=np.zeros(num_events),
        z=np.zeros(num_events),
    )


def single_hits(energy: float, eta: float, num_events: int) -> Hits:
    """One hit per event, at azimuth 0."""
    return Hits(
        np.arange(num_events),
        np.full(num_events, eta),
        np.zeros(num_events),
        np.full(num_events, energy),
    )


def tracks_of(particles: StableParticles) -> TrackArrays:
    """The tracks of particles without pile-up."""
    is_pile_up = np.zeros(len(particles.pid), np.bool_)
    crossing = Crossing(particles, is_pile_up, np.ones(particles.num_events, np.int64))
    return make_tracks(crossing, propagate(particles), np.random.default_rng(5))


def test_a_charged_particle_follows_the_circle_of_its_momentum() -> None:
    particles = gun(-211, 2.0, 0.3, 50)

    arrival = propagate(particles)

    radius = 2.0 / (0.299792458 * FIELD_TESLA) * 1000
    # The chord from the centre to the surface turns the direction by half of the arc.
    expected_turn = np.arcsin(RADIUS_MM / (2 * radius))
    turn = arrival.phi - np.arctan2(particles.py, particles.px)
    np.testing.assert_allclose((turn + np.pi) % (2 * np.pi) - np.pi, expected_turn, rtol=1e-9)
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
    num_events = 20_000

    tracks = tracks_of(gun(pid, pt, eta, num_events))

    share = len(tracks.pt) / num_events
    mean_error = resolution / np.sqrt(len(tracks.pt))
    assert share == pytest.approx(efficiency, abs=4 * np.sqrt(0.25 / num_events))
    assert np.std(tracks.pt / pt) == pytest.approx(resolution, rel=0.05)
    assert np.mean(tracks.pt / pt) == pytest.approx(1.0, abs=5 * mean_error)


@pytest.mark.parametrize(("pt", "eta"), [(5.0, 4.2), (0.19, 0.0)])
def test_particles_beyond_the_acceptance_have_no_track(pt: float, eta: float) -> None:
    assert len(tracks_of(gun(211, pt, eta, 500)).pt) == 0


@pytest.mark.parametrize(("energy", "eta", "relative"), [(50.0, 0.3, 0.0214), (40.0, 2.0, 0.0339)])
def test_photons_are_measured_without_bias_and_with_the_resolution_of_the_card(
    energy: float, eta: float, relative: float
) -> None:
    hits = single_hits(energy, eta, 4000)

    photons = measure(ECAL, hits, NO_TRACKS, np.random.default_rng(1)).neutral

    assert len(photons.energy) == 4000
    assert photons.energy.mean() == pytest.approx(energy, rel=4 * relative / np.sqrt(4000))
    assert photons.energy.std() / energy == pytest.approx(relative, rel=0.06)


def test_a_charged_hadron_with_a_track_leaves_at_most_a_significant_excess() -> None:
    hits = single_hits(20.0, 0.3, 4000)
    tracks = MeasuredTracks(hits, np.full(4000, 0.006))

    flow = measure(HCAL, hits, tracks, np.random.default_rng(2))

    # One standard deviation above the track is the condition for a neutral candidate.
    assert len(flow.neutral.energy) / 4000 == pytest.approx(0.14, abs=0.03)
    assert flow.scale.mean() == pytest.approx(1.0, abs=0.002)


def test_the_energy_of_a_charged_hadron_without_a_track_becomes_neutral() -> None:
    hits = single_hits(30.0, 1.0, 2000)

    neutrals = measure(HCAL, hits, NO_TRACKS, np.random.default_rng(4)).neutral

    assert neutrals.energy.mean() == pytest.approx(30.0, rel=0.02)


@pytest.mark.parametrize("calorimeter", [ECAL, HCAL], ids=["ECAL", "HCAL"])
def test_events_have_towers_of_their_own_in_order(calorimeter: Calorimeter) -> None:
    rng = np.random.default_rng(6)
    eta, phi = rng.uniform(-5, 5, 5000), rng.uniform(-np.pi, np.pi, 5000)
    event = rng.integers(0, 3, 5000)

    keys = tower_keys(event, eta, phi, calorimeter)

    assert (np.diff(calorimeter.eta_edges) > 0).all()
    assert len(calorimeter.num_around) == len(calorimeter.eta_edges) - 1
    assert keys[event == 0].max() < keys[event == 1].min()
    assert keys[event == 1].max() < keys[event == 2].min()


def test_pile_up_adds_whole_collisions_and_moves_the_hard_one() -> None:
    hard, pool = gun(13, 30.0, 0.2, 200), gun(211, 1.0, 1.0, 40)

    crossing = overlay(hard, pool, PileUpSettings(mean=5.0), np.random.default_rng(8))

    particles = crossing.particles
    np.testing.assert_array_equal(particles.px[~crossing.is_pile_up], hard.px)
    np.testing.assert_allclose(particles.pt[crossing.is_pile_up], 1.0, rtol=1e-6)
    assert np.diff(particles.offsets).tolist() == crossing.num_vertices.tolist()
    assert crossing.num_vertices.mean() - 1 == pytest.approx(5.0, abs=4 * np.sqrt(5 / 200))
    assert np.abs(particles.z).max() <= MAX_Z_MM
    assert particles.z.std() == pytest.approx(53, rel=0.1)


def test_puppi_keeps_neutrals_beside_the_hard_collision_and_drops_those_of_pile_up() -> None:
    rng = np.random.default_rng(9)
    # Event, pT, eta, phi, is charged, is pile-up.
    jet = [(0, 10.0, 0.3, 0.03 * index, True, False) for index in range(8)]
    hard = [(0, 0.5, eta, phi, True, False) for eta, phi in rng.uniform(-1.4, 1.4, (60, 2))]
    pile_up = [(0, 1.0, eta, phi, True, True) for eta, phi in rng.uniform(-1.4, 1.4, (80, 2))]
    near_neutral = (0, 5.0, 0.33, 0.05, False, False)
    far_neutral = (0, 1.0, -1.0, 2.5, False, False)
    columns = zip(*jet, *hard, *pile_up, near_neutral, far_neutral, strict=True)
    candidates = Flowing(*map(np.array, columns))

    weights = puppi_weights(candidates, np.array([20]))

    assert (weights[:68] == 1.0).all()
    assert (weights[68:148] == 0.0).all()
    assert weights[148] > 0.9
    assert weights[149] == 0.0


def merge_events(particles: list[StableParticles]) -> StableParticles:
    """One event with the particles of several."""
    event = StableParticles.concatenate(particles)
    return event._replace(offsets=event.offsets[[0, -1]])


def test_the_filter_requires_an_isolated_lepton() -> None:
    lepton = gun(13, 30.0, 0.5, 1, phi=0.0)
    beside = gun(211, 20.0, 0.6, 1, phi=0.1)
    away = gun(211, 20.0, 0.6, 1, phi=2.0)
    neutrino = gun(12, 40.0, 0.6, 1, phi=0.1)
    forward_lepton = gun(13, 30.0, 2.6, 1)
    events = StableParticles.concatenate(
        [
            merge_events([lepton, beside]),
            merge_events([lepton, away]),
            merge_events([lepton, neutrino]),
            forward_lepton,
        ]
    )

    assert passes(events, LeptonFilterSettings()).tolist() == [False, True, True, False]
    assert passes(events, LeptonFilterSettings(min_pt=0)).all()


def test_b_tags_have_the_efficiencies_of_the_card() -> None:
    pytest.importorskip("fastjet", reason="the extra `simulate` is not installed")
    from hep_simulation.jets import FoundJets, b_tags, jet_flavours

    num_events = 20_000
    event = np.arange(num_events)
    no_flavour = np.zeros(num_events, np.int64)
    jets = FoundJets(event, pt=no_flavour + 55.0, eta=no_flavour + 0.5, phi=no_flavour + 0.0)
    soft_jets = jets._replace(pt=no_flavour + 19.0)
    quarks = HeavyQuarks(event, no_flavour + 5, eta=no_flavour + 0.7, phi=no_flavour + 0.2)
    far_quarks = quarks._replace(eta=quarks.eta + 1)

    flavour = jet_flavours(jets, quarks)
    tags = b_tags(jets, flavour, np.random.default_rng(3))
    mistags = b_tags(jets, no_flavour, np.random.default_rng(3))

    assert (flavour == 5).all()
    assert (jet_flavours(jets, far_quarks) == 0).all()
    for bit, efficiency in enumerate((0.856, 0.701, 0.504)):
        assert np.mean(tags >> bit & 1) == pytest.approx(efficiency, abs=0.015)
    assert np.mean(mistags & 1) == pytest.approx(0.1, abs=0.01)
    assert not b_tags(soft_jets, flavour, np.random.default_rng(3)).any()


def test_a_lepton_beside_nothing_is_balanced_by_missing_energy() -> None:
    pytest.importorskip("fastjet", reason="the extra `simulate` is not installed")
    num_events = 300
    no_quarks = HeavyQuarks(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    block = GeneratedBlock(gun(13, 40.0, 0.5, num_events), no_quarks, np.ones(num_events))

    detected = simulate(block, None, PileUpSettings(mean=0), np.random.default_rng(2))

    track_pt = detected["EFlowTrack"].fields["PT"]
    muons = detected["MuonTight"]
    has_muon = np.diff(muons.offsets).astype(bool)
    efficiency = parameters.muon_identification(np.array([40.0]), np.array([0.5]))[0]
    assert len(track_pt) == num_events
    np.testing.assert_allclose(detected["MissingET"].fields["MET"], track_pt, rtol=1e-5)
    np.testing.assert_array_equal(muons.fields["PT"], track_pt[has_muon])
    assert has_muon.mean() == pytest.approx(efficiency, abs=0.03)
    for collection in detected.values():
        for column in collection.fields.values():
            assert column.dtype in ("float32", "int32", "uint32")
