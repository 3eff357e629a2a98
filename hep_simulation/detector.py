"""The fast detector: makes of the particles of a crossing what a reconstruction would give.

These are tracks, electrons, muons, photons and neutral hadrons of energy flow, jets with b-tags,
and missing energy, named as the branches of Delphes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_simulation import parameters
from hep_simulation.calorimeter import ECAL, HCAL, Hits, MeasuredTracks, measure
from hep_simulation.generator import GeneratedBlock
from hep_simulation.jets import FoundJets, b_tags, find_jets, jet_flavours
from hep_simulation.particles import (
    LEPTONS,
    Floats,
    Integers,
    StableParticles,
    event_offsets,
    pseudorapidity,
)
from hep_simulation.pile_up import Crossing, overlay
from hep_simulation.propagation import Arrival, propagate
from hep_simulation.puppi import Flowing, puppi_weights
from ingestion.thresholds import Jagged
from pipeline.configuration.simulate_section import PileUpSettings

#: Standard deviation of an additional relative smearing of the energies of photons.
_PHOTON_SMEARING: Final = 0.01
#: PDG codes.
_ELECTRON: Final = 11
_MUON: Final = 13
#: Electrons and photons are measured by the electromagnetic calorimeter.
_ELECTROMAGNETIC: Final = (11, 22)
#: Muons and neutrinos leave no energy in the calorimeters.
_WITHOUT_SHOWER: Final = (12, 13, 14, 16)


class TrackArrays(NamedTuple):
    """Charged particles with a track, in order of the events; all (n,), GeV and radians."""

    particle: Integers
    """Index of the particle in the crossing."""
    event: Integers
    """Index of the event."""
    pid: Integers
    """PDG code, with sign."""
    charge: Integers
    pt: Floats
    """Measured transverse momentum."""
    eta: Floats
    """Direction at the production vertex, as generated."""
    phi: Floats
    mass: Floats
    arrival_eta: Floats
    """Position at the calorimeter."""
    arrival_phi: Floats
    resolution: Floats
    """Relative resolution of the momentum."""
    is_pile_up: NDArray[np.bool_]
    """Whether it comes from another collision than the hard one."""

    @property
    def energy(self) -> Floats:
        """(n,) [GeV]."""
        momentum = self.pt * np.cosh(self.eta)
        energy: Floats = np.sqrt(np.square(momentum) + np.square(self.mass))
        return energy

    @property
    def code(self) -> Integers:
        """(n,) PDG codes without sign."""
        return np.abs(self.pid)

    def scaled(self, mask: NDArray[np.bool_], scale: Floats) -> TrackArrays:
        """A copy of the tracks, with the pT of those in `mask` multiplied by `scale`.

        `mask` is (n,), `scale` has a factor for each track in it.
        """
        pt = self.pt.copy()
        pt[mask] *= scale
        return self._replace(pt=pt)

    def select(self, rows: NDArray[np.bool_] | Integers) -> TrackArrays:
        """Some of the tracks."""
        return TrackArrays._make(column[rows] for column in self)


class DetectedCandidates(NamedTuple):
    """Massless candidates; all (n,), GeV and radians."""

    event: Integers
    pt: Floats
    eta: Floats
    phi: Floats

    @classmethod
    def concatenate(
        cls, *collections: TrackArrays | Hits | DetectedCandidates
    ) -> DetectedCandidates:
        """The candidates of several collections, one after the other."""
        event = np.concatenate([candidates.event for candidates in collections])
        pt = np.concatenate([candidates.pt for candidates in collections])
        eta = np.concatenate([candidates.eta for candidates in collections])
        phi = np.concatenate([candidates.phi for candidates in collections])
        return DetectedCandidates(event, pt, eta, phi)

    def select(self, rows: NDArray[np.bool_] | Integers) -> DetectedCandidates:
        """Some of the candidates."""
        return DetectedCandidates._make(column[rows] for column in self)


def simulate(
    block: GeneratedBlock,
    pool: StableParticles | None,
    pile_up: PileUpSettings,
    rng: np.random.Generator,
) -> dict[str, Jagged]:
    """Detect a block of generated events; the collections by the names of Delphes' branches.

    It adds pile-up, propagates the particles to the calorimeters, and draws tracks. Each
    calorimeter then gives neutral candidates, and corrects the pT of the tracks that hit it. From
    tracks and neutral candidates follow jets, missing energy and identified leptons.

    Args:
        block: The events.
        pool: Minimum-bias events; None for no pile-up.
        pile_up: Mean number of collisions, and their spread.
        rng: Source of all random numbers.
    """
    crossing = overlay(block.particles, pool, pile_up, rng)
    particles = crossing.particles
    num_events = particles.num_events
    arrival = propagate(particles)
    tracks = make_tracks(crossing, arrival, rng)
    tracks, photons, neutral_hadrons = _measure_energies(particles, arrival, tracks, rng)

    # Jets and missing energy get the smeared energies, the list of photons those of the towers.
    smeared_photons = _smear_photons(photons, rng)
    neutrals = DetectedCandidates.concatenate(smeared_photons, neutral_hadrons)
    jets, tags = _jets(block, crossing, tracks, neutrals, rng)
    candidates = DetectedCandidates.concatenate(tracks, neutrals)
    met, met_phi = _missing_energy(candidates, num_events)
    electrons = _identified(tracks, _ELECTRON, parameters.electron_identification, rng)
    muons = _identified(tracks, _MUON, parameters.muon_identification, rng)

    event_numbers = np.arange(num_events)
    return {
        "Event": _collection(event_numbers, num_events, Weight=block.weights),
        "EFlowTrack": _track_collection(tracks, particles),
        "EFlowPhoton": _tower_collection(photons, num_events),
        "EFlowNeutralHadron": _tower_collection(neutral_hadrons, num_events),
        "Electron": _lepton_collection(electrons, num_events),
        "MuonTight": _lepton_collection(muons, num_events),
        "Jet": _jet_collection(jets, tags, num_events),
        "MissingET": _collection(event_numbers, num_events, MET=met, Phi=met_phi),
    }


def _collection(event: Integers, num_events: int, **columns: NDArray[Any]) -> Jagged:
    """Candidates in order of the events; numbers of 32 bits, as in Delphes' files.

    The kind of a number (float, signed, unsigned) stays, so its dtype is that and 4 bytes.
    """
    fields = {}
    for name, column in columns.items():
        fields[name] = column.astype(f"{column.dtype.kind}4")
    return Jagged(event_offsets(event, num_events), fields)


def _track_collection(tracks: TrackArrays, particles: StableParticles) -> Jagged:
    """Tracks, with the production vertices of their particles."""
    return _collection(
        tracks.event,
        particles.num_events,
        PID=tracks.pid,
        Charge=tracks.charge,
        PT=tracks.pt,
        Eta=tracks.eta,
        Phi=tracks.phi,
        X=particles.x[tracks.particle],
        Y=particles.y[tracks.particle],
        Z=particles.z[tracks.particle],
    )


def _tower_collection(hits: Hits, num_events: int) -> Jagged:
    """Neutral candidates of a calorimeter."""
    return _collection(hits.event, num_events, ET=hits.pt, Eta=hits.eta, Phi=hits.phi)


def _lepton_collection(leptons: TrackArrays, num_events: int) -> Jagged:
    """Identified electrons or muons."""
    return _collection(
        leptons.event,
        num_events,
        PT=leptons.pt,
        Eta=leptons.eta,
        Phi=leptons.phi,
        Charge=leptons.charge,
    )


def _jet_collection(jets: FoundJets, tags: Integers, num_events: int) -> Jagged:
    """Jets with their b-tags (num_jets,), as unsigned bits."""
    tag_bits = tags.astype(np.uint32)
    return _collection(
        jets.event, num_events, PT=jets.pt, Eta=jets.eta, Phi=jets.phi, BTag=tag_bits
    )


def make_tracks(crossing: Crossing, arrival: Arrival, rng: np.random.Generator) -> TrackArrays:
    """Draw which charged particles have a track, and smear their momenta.

    The efficiency and the resolution depend on kind, pT and the eta at the calorimeter. Directions
    are not smeared.
    """
    particles = crossing.particles
    tracked = _draw_tracked(particles, arrival, rng)
    pid = particles.pid[tracked].astype(np.int64)
    px = particles.px[tracked]
    py = particles.py[tracked]
    pz = particles.pz[tracked]
    pt = np.hypot(px, py)
    arrival_eta = arrival.eta[tracked]
    resolution = parameters.momentum_resolution(pid, pt, arrival_eta)
    smeared_pt = parameters.lognormal(pt, resolution * pt, rng)

    # The mass follows from energy and momentum, and gives the energy after the smearing.
    mass2 = np.square(particles.energy[tracked])
    for momentum in (px, py, pz):
        mass2 -= np.square(momentum)
    # Rounding may make the squared mass negative; it counts as 0 then.
    mass = np.sqrt(np.maximum(mass2, 0.0))
    return TrackArrays(
        particle=tracked,
        event=particles.event[tracked],
        pid=pid,
        charge=particles.charge[tracked],
        pt=smeared_pt,
        eta=pseudorapidity(px, py, pz),
        phi=np.arctan2(py, px),
        mass=mass,
        arrival_eta=arrival_eta,
        arrival_phi=arrival.phi[tracked],
        resolution=resolution,
        is_pile_up=crossing.is_pile_up[tracked],
    )


def _draw_tracked(
    particles: StableParticles, arrival: Arrival, rng: np.random.Generator
) -> Integers:
    """Draw which charged particles have a track; returns their indices."""
    is_charged = particles.charge != 0
    charged = np.flatnonzero(arrival.arrives & is_charged)
    pid = particles.pid[charged]
    pt = particles.pt[charged]
    efficiency = parameters.tracking_efficiency(pid, pt, arrival.eta[charged])
    has_track = rng.random(len(charged)) < efficiency
    return charged[has_track]


def _measure_energies(
    particles: StableParticles, arrival: Arrival, tracks: TrackArrays, rng: np.random.Generator
) -> tuple[TrackArrays, Hits, Hits]:
    """Measure electrons and photons with the first calorimeter, hadrons with the second.

    Returns:
        The tracks with corrected pT, the photons, and the neutral hadrons.
    """
    code = np.abs(particles.pid)
    showers = arrival.arrives & ~np.isin(code, _WITHOUT_SHOWER)
    is_electromagnetic = np.isin(code, _ELECTROMAGNETIC)

    is_electron = tracks.code == _ELECTRON
    ecal_hits = _hits(particles, arrival, showers & is_electromagnetic)
    ecal = measure(ECAL, ecal_hits, _measured(tracks, is_electron), rng)
    tracks = tracks.scaled(is_electron, ecal.scale)

    is_hadron = ~np.isin(tracks.code, LEPTONS)
    hcal_hits = _hits(particles, arrival, showers & ~is_electromagnetic)
    hcal = measure(HCAL, hcal_hits, _measured(tracks, is_hadron), rng)
    tracks = tracks.scaled(is_hadron, hcal.scale)
    return tracks, ecal.neutral, hcal.neutral


def _smear_photons(photons: Hits, rng: np.random.Generator) -> Hits:
    """The photons with energies that are smeared once more, and never negative."""
    smearing = 1 + _PHOTON_SMEARING * rng.standard_normal(len(photons.energy))
    smeared_energy = photons.energy * smearing
    return photons._replace(energy=np.maximum(smeared_energy, 0.0))


def _hits(particles: StableParticles, arrival: Arrival, mask: NDArray[np.bool_]) -> Hits:
    """Where the particles of a mask (num_particles,) hit a calorimeter, with their energies."""
    event = particles.event[mask]
    eta = arrival.eta[mask]
    phi = arrival.phi[mask]
    return Hits(event, eta, phi, particles.energy[mask])


def _measured(tracks: TrackArrays, mask: NDArray[np.bool_]) -> MeasuredTracks:
    """Where the tracks of a mask (n,) hit a calorimeter, with their measured energies."""
    tracks = tracks.select(mask)
    hits = Hits(tracks.event, tracks.arrival_eta, tracks.arrival_phi, tracks.energy)
    return MeasuredTracks(hits, tracks.resolution)


def _identified(
    tracks: TrackArrays,
    code: int,
    efficiency: Callable[[Floats, Floats], Floats],
    rng: np.random.Generator,
) -> TrackArrays:
    """Identified leptons of a PDG code, in order of the events and of falling pT.

    Each is drawn with the probability `efficiency(pt, arrival_eta)`.
    """
    leptons = tracks.select(tracks.code == code)
    probability = efficiency(leptons.pt, leptons.arrival_eta)
    is_identified = rng.random(len(leptons.pt)) < probability
    leptons = leptons.select(is_identified)
    by_falling_pt = np.lexsort([-leptons.pt, leptons.event])
    return leptons.select(by_falling_pt)


def _jets(
    block: GeneratedBlock,
    crossing: Crossing,
    tracks: TrackArrays,
    neutrals: DetectedCandidates,
    rng: np.random.Generator,
) -> tuple[FoundJets, Integers]:
    """Cluster jets, and draw their b-tags (num_jets,), as bits."""
    inputs = _jet_inputs(tracks, neutrals, crossing.num_vertices)
    jets = find_jets(inputs.event, inputs.pt, inputs.eta, inputs.phi, crossing.particles.num_events)
    flavours = jet_flavours(jets, block.quarks)
    return jets, b_tags(jets, flavours, rng)


def _jet_inputs(
    tracks: TrackArrays, neutrals: DetectedCandidates, num_vertices: Integers
) -> DetectedCandidates:
    """The candidates that are clustered to jets, in order of the events.

    PUPPI weights reduce the pT of neutral candidates and hadrons from pile-up; those of weight 0
    are dropped. Leptons enter with their full pT. `num_vertices` is (num_events,).
    """
    is_lepton = np.isin(tracks.code, LEPTONS)
    hadrons = tracks.select(~is_lepton)
    flowing = DetectedCandidates.concatenate(hadrons, neutrals)
    # The hadrons with a track come first in `flowing`.
    num_flowing = len(flowing.event)
    is_charged = np.arange(num_flowing) < len(hadrons.pt)
    is_pile_up = np.zeros(num_flowing, np.bool_)
    is_pile_up[is_charged] = hadrons.is_pile_up
    weights = puppi_weights(Flowing(*flowing, is_charged, is_pile_up), num_vertices)
    flowing = flowing._replace(pt=weights * flowing.pt)
    weighted = flowing.select(weights > 0)

    leptons = tracks.select(is_lepton)
    inputs = DetectedCandidates.concatenate(weighted, leptons)
    by_event = np.argsort(inputs.event, kind="stable")
    return inputs.select(by_event)


def _missing_energy(candidates: DetectedCandidates, num_events: int) -> tuple[Floats, Floats]:
    """Size and azimuth of the negative vector sum of pT of all candidates; both (num_events,).

    Candidates of pile-up count too.
    """
    event, pt, _, phi = candidates
    px = pt * np.cos(phi)
    py = pt * np.sin(phi)
    missing_x = -np.bincount(event, px, num_events)
    missing_y = -np.bincount(event, py, num_events)
    return np.hypot(missing_x, missing_y), np.arctan2(missing_y, missing_x)
