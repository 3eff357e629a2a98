"""The fast detector on single particles, without the generator."""

from __future__ import annotations

from itertools import pairwise

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
    momentum = pt * np.cosh(eta)
    energy = np.hypot(momentum, MASSES[abs(pid)])
    zeros = np.zeros(num_events)
    return StableParticles(
        np.arange(num_events + 1),
        pid=np.full(num_events, pid, np.int32),
        px=pt * np.cos(azimuth),
        py=pt * np.sin(azimuth),
        pz=zeros + pt * np.sinh(eta),
        energy=zeros + energy,
        x=zeros.copy(),
        y=zeros.copy(),
        z=zeros.copy(),
    )


def single_hits(energy: float, eta: float, num_events: int) -> Hits:
    """One hit per event, at azimuth 0."""
    zeros = np.zeros(num_events)
    return Hits(np.arange(num_events), eta=zeros + eta, phi=zeros, energy=zeros + energy)


def tracks_of(particles: StableParticles) -> TrackArrays:
    """The tracks of particles without pile-up."""
    is_pile_up = np.zeros(len(particles.pid), np.bool_)
    crossing = Crossing(particles, is_pile_up, np.ones(particles.num_events, np.int64))
    return make_tracks(crossing, propagate(particles), np.random.default_rng(5))


def test_a_charged_particle_follows_the_circle_of_its_momentum() -> None:
    particles = gun(-211, 2.0, 0.3, 50)

    arrival = propagate(particles)

    # pT [GeV] = 0.3 * field [T] * radius [m].
    radius_mm = 1000 * 2.0 / (0.299792458 * FIELD_TESLA)
    # The chord from the centre to the surface turns the direction by half of the arc.
    expected_turn = np.arcsin(RADIUS_MM / (2 * radius_mm))
    turn = arrival.phi - np.arctan2(particles.py, particles.px)
    wrapped_turn = (turn + np.pi) % (2 * np.pi) - np.pi
    np.testing.assert_allclose(wrapped_turn, expected_turn, rtol=1e-9)
    assert charges(particles.pid)[0] == -1


def test_a_slow_particle_curls_to_the_end_of_the_tracker() -> None:
    arrival = propagate(gun(211, 0.3, 1.0, 20))

    distance_from_beam = HALF_LENGTH_MM / np.sinh(arrival.eta)
    assert (np.abs(distance_from_beam) < RADIUS_MM).all()


def test_a_photon_from_the_origin_keeps_its_direction() -> None:
    particles = gun(22, 1.0, 2.4, 20)

    arrival = propagate(particles)

    expected_phi = np.arctan2(particles.py, particles.px)
    np.testing.assert_allclose(arrival.eta, 2.4, rtol=1e-12)
    np.testing.assert_allclose(arrival.phi, expected_phi, atol=1e-12)


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

    num_tracks = len(tracks.pt)
    # The variance of a share is at most a quarter.
    share_error = np.sqrt(0.25 / num_events)
    assert num_tracks / num_events == pytest.approx(efficiency, abs=4 * share_error)
    relative_pt = tracks.pt / pt
    mean_error = resolution / np.sqrt(num_tracks)
    assert np.std(relative_pt) == pytest.approx(resolution, rel=0.05)
    assert np.mean(relative_pt) == pytest.approx(1.0, abs=5 * mean_error)


@pytest.mark.parametrize(("pt", "eta"), [(5.0, 4.2), (0.19, 0.0)])
def test_particles_beyond_the_acceptance_have_no_track(pt: float, eta: float) -> None:
    tracks = tracks_of(gun(211, pt, eta, 500))

    assert len(tracks.pt) == 0


@pytest.mark.parametrize(("energy", "eta", "relative"), [(50.0, 0.3, 0.0214), (40.0, 2.0, 0.0339)])
def test_photons_are_measured_without_bias_and_with_the_resolution_of_the_card(
    energy: float, eta: float, relative: float
) -> None:
    num_photons = 4000
    hits = single_hits(energy, eta, num_photons)

    photons = measure(ECAL, hits, NO_TRACKS, np.random.default_rng(1)).neutral

    assert len(photons.energy) == num_photons
    relative_energy = photons.energy / energy
    mean_error = relative / np.sqrt(num_photons)
    assert relative_energy.mean() == pytest.approx(1.0, abs=4 * mean_error)
    assert relative_energy.std() == pytest.approx(relative, rel=0.06)


def test_a_charged_hadron_with_a_track_leaves_at_most_a_significant_excess() -> None:
    hits = single_hits(20.0, 0.3, 4000)
    tracks = MeasuredTracks(hits, np.full(4000, 0.006))

    flow = measure(HCAL, hits, tracks, np.random.default_rng(2))

    # One standard deviation above the track is the condition for a neutral candidate.
    share_with_excess = len(flow.neutral.energy) / 4000
    assert share_with_excess == pytest.approx(0.14, abs=0.03)
    assert flow.scale.mean() == pytest.approx(1.0, abs=0.002)


def test_the_energy_of_a_charged_hadron_without_a_track_becomes_neutral() -> None:
    hits = single_hits(30.0, 1.0, 2000)

    neutrals = measure(HCAL, hits, NO_TRACKS, np.random.default_rng(4)).neutral

    assert neutrals.energy.mean() == pytest.approx(30.0, rel=0.02)


@pytest.mark.parametrize("calorimeter", [ECAL, HCAL], ids=["ECAL", "HCAL"])
def test_events_have_towers_of_their_own_in_order(calorimeter: Calorimeter) -> None:
    rng = np.random.default_rng(6)
    eta = rng.uniform(-5, 5, 5000)
    phi = rng.uniform(-np.pi, np.pi, 5000)
    event = rng.integers(0, 3, 5000)

    keys = tower_keys(event, eta, phi, calorimeter)

    tower_widths = np.diff(calorimeter.eta_edges)
    assert (tower_widths > 0).all()
    assert len(calorimeter.num_around) == len(tower_widths)
    keys_by_event = [keys[event == event_number] for event_number in range(3)]
    for keys_of_event, keys_of_next in pairwise(keys_by_event):
        assert keys_of_event.max() < keys_of_next.min()


def test_pile_up_adds_whole_collisions_and_moves_the_hard_one() -> None:
    hard = gun(13, 30.0, 0.2, 200)
    pool = gun(211, 1.0, 1.0, 40)

    crossing = overlay(hard, pool, PileUpSettings(mean=5.0), np.random.default_rng(8))

    particles = crossing.particles
    is_pile_up = crossing.is_pile_up
    np.testing.assert_array_equal(particles.px[~is_pile_up], hard.px)
    np.testing.assert_allclose(particles.pt[is_pile_up], 1.0, rtol=1e-6)
    # Every collision has one particle.
    particles_per_event = np.diff(particles.offsets)
    assert particles_per_event.tolist() == crossing.num_vertices.tolist()
    mean_error = np.sqrt(5 / 200)
    mean_pile_up = crossing.num_vertices.mean() - 1
    assert mean_pile_up == pytest.approx(5.0, abs=4 * mean_error)
    assert np.abs(particles.z).max() <= MAX_Z_MM
    # The default length of the beam spot [mm].
    assert particles.z.std() == pytest.approx(53, rel=0.1)


def test_puppi_keeps_neutrals_beside_the_hard_collision_and_drops_those_of_pile_up() -> None:
    rng = np.random.default_rng(9)
    # Event, pT, eta, phi, is charged, is pile-up.
    jet = [(0, 10.0, 0.3, 0.03 * index, True, False) for index in range(8)]
    hard_directions = rng.uniform(-1.4, 1.4, (60, 2))
    hard = [(0, 0.5, eta, phi, True, False) for eta, phi in hard_directions]
    pile_up_directions = rng.uniform(-1.4, 1.4, (80, 2))
    pile_up = [(0, 1.0, eta, phi, True, True) for eta, phi in pile_up_directions]
    near_neutral = (0, 5.0, 0.33, 0.05, False, False)
    far_neutral = (0, 1.0, -1.0, 2.5, False, False)
    columns = zip(*jet, *hard, *pile_up, near_neutral, far_neutral, strict=True)
    candidates = Flowing(*map(np.array, columns))

    weights = puppi_weights(candidates, np.array([20]))

    num_hard = len(jet) + len(hard)
    charged_weights = weights[:-2]
    weight_of_near, weight_of_far = weights[-2:]
    assert (charged_weights[:num_hard] == 1.0).all()
    assert (charged_weights[num_hard:] == 0.0).all()
    assert weight_of_near > 0.9
    assert weight_of_far == 0.0


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
    crowded = merge_events([lepton, beside])
    isolated = merge_events([lepton, away])
    with_neutrino = merge_events([lepton, neutrino])
    events = StableParticles.concatenate([crowded, isolated, with_neutrino, forward_lepton])

    passes_default = passes(events, LeptonFilterSettings())
    passes_without_filter = passes(events, LeptonFilterSettings(min_pt=0))

    assert passes_default.tolist() == [False, True, True, False]
    assert passes_without_filter.all()


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
    flavour_without_near_quark = jet_flavours(jets, far_quarks)
    tags = b_tags(jets, flavour, np.random.default_rng(3))
    mistags = b_tags(jets, no_flavour, np.random.default_rng(3))
    tags_of_soft_jets = b_tags(soft_jets, flavour, np.random.default_rng(3))

    assert (flavour == 5).all()
    assert (flavour_without_near_quark == 0).all()
    # The loose, the medium and the tight working point of the card, at 55 GeV.
    for bit, efficiency in enumerate((0.856, 0.701, 0.504)):
        has_tag = (tags >> bit) & 1
        assert np.mean(has_tag) == pytest.approx(efficiency, abs=0.015)
    assert np.mean(mistags & 1) == pytest.approx(0.1, abs=0.01)
    assert not tags_of_soft_jets.any()


def test_a_lepton_beside_nothing_is_balanced_by_missing_energy() -> None:
    pytest.importorskip("fastjet", reason="the extra `simulate` is not installed")
    num_events = 300
    no_ids, no_angles = np.zeros(0, np.int64), np.zeros(0)
    no_quarks = HeavyQuarks(no_ids, no_ids, no_angles, no_angles)
    muon_gun = gun(13, 40.0, 0.5, num_events)
    block = GeneratedBlock(muon_gun, no_quarks, np.ones(num_events))

    detected = simulate(block, None, PileUpSettings(mean=0), np.random.default_rng(2))

    track_pt = detected["EFlowTrack"].fields["PT"]
    muons = detected["MuonTight"]
    has_muon = np.diff(muons.offsets).astype(bool)
    (efficiency,) = parameters.muon_identification(np.array([40.0]), np.array([0.5]))
    assert len(track_pt) == num_events
    met = detected["MissingET"].fields["MET"]
    np.testing.assert_allclose(met, track_pt, rtol=1e-5)
    np.testing.assert_array_equal(muons.fields["PT"], track_pt[has_muon])
    assert has_muon.mean() == pytest.approx(efficiency, abs=0.03)
    for collection in detected.values():
        for column in collection.fields.values():
            assert column.dtype in ("float32", "int32", "uint32")
