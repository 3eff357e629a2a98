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
        return DetectedCandidates(
            np.concatenate([candidates.event for candidates in collections]),
            np.concatenate([candidates.pt for candidates in collections]),
            np.concatenate([candidates.eta for candidates in collections]),
            np.concatenate([candidates.phi for candidates in collections]),
        )


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

    code = np.abs(particles.pid)
    showers = arrival.arrives & ~np.isin(code, _WITHOUT_SHOWER)
    is_electromagnetic = np.isin(code, _ELECTROMAGNETIC)
    is_electron = tracks.code == _ELECTRON
    is_hadron = ~np.isin(tracks.code, LEPTONS)
    # Electrons and photons are measured by the first calorimeter, hadrons by the second.
    ecal_hits = _hits(particles, arrival, showers & is_electromagnetic)
    ecal = measure(ECAL, ecal_hits, _measured(tracks, is_electron), rng)
    tracks = tracks.scaled(is_electron, ecal.scale)
    hcal_hits = _hits(particles, arrival, showers & ~is_electromagnetic)
    hcal = measure(HCAL, hcal_hits, _measured(tracks, is_hadron), rng)
    tracks = tracks.scaled(is_hadron, hcal.scale)

    photons, neutral_hadrons = ecal.neutral, hcal.neutral
    # Jets and missing energy get the smeared energies, the list of photons those of the towers.
    smearing = 1 + _PHOTON_SMEARING * rng.standard_normal(len(photons.energy))
    smeared_photons = photons._replace(energy=np.maximum(photons.energy * smearing, 0.0))
    neutrals = DetectedCandidates.concatenate(smeared_photons, neutral_hadrons)
    jets, tags = _jets(block, crossing, tracks, neutrals, rng)
    met, met_phi = _missing_energy(DetectedCandidates.concatenate(tracks, neutrals), num_events)
    electrons = _identified(tracks, _ELECTRON, parameters.electron_identification, rng)
    muons = _identified(tracks, _MUON, parameters.muon_identification, rng)

    def collection(event: Integers, **columns: NDArray[Any]) -> Jagged:
        """Candidates in order of the events; numbers of 32 bits, as in Delphes' files.

        The kind of a number (float, signed, unsigned) stays, so its dtype is that and 4 bytes.
        """
        fields = {name: column.astype(f"{column.dtype.kind}4") for name, column in columns.items()}
        return Jagged(event_offsets(event, num_events), fields)

    def towers(hits: Hits) -> Jagged:
        """Neutral candidates of a calorimeter."""
        return collection(hits.event, ET=hits.pt, Eta=hits.eta, Phi=hits.phi)

    def leptons(lepton_tracks: TrackArrays) -> Jagged:
        """Identified electrons or muons."""
        return collection(
            lepton_tracks.event,
            PT=lepton_tracks.pt,
            Eta=lepton_tracks.eta,
            Phi=lepton_tracks.phi,
            Charge=lepton_tracks.charge,
        )

    event_numbers = np.arange(num_events)
    return {
        "Event": collection(event_numbers, Weight=block.weights),
        "EFlowTrack": collection(
            tracks.event,
            PID=tracks.pid,
            Charge=tracks.charge,
            PT=tracks.pt,
            Eta=tracks.eta,
            Phi=tracks.phi,
            X=particles.x[tracks.particle],
            Y=particles.y[tracks.particle],
            Z=particles.z[tracks.particle],
        ),
        "EFlowPhoton": towers(photons),
        "EFlowNeutralHadron": towers(neutral_hadrons),
        "Electron": leptons(electrons),
        "MuonTight": leptons(muons),
        "Jet": collection(
            jets.event, PT=jets.pt, Eta=jets.eta, Phi=jets.phi, BTag=tags.astype(np.uint32)
        ),
        "MissingET": collection(event_numbers, MET=met, Phi=met_phi),
    }


def make_tracks(crossing: Crossing, arrival: Arrival, rng: np.random.Generator) -> TrackArrays:
    """Draw which charged particles have a track, and smear their momenta.

    The efficiency and the resolution depend on kind, pT and the eta at the calorimeter. Directions
    are not smeared.
    """
    particles = crossing.particles
    particle_pt = particles.pt
    charged = np.flatnonzero(arrival.arrives & (particles.charge != 0))
    efficiency = parameters.tracking_efficiency(
        particles.pid[charged], particle_pt[charged], arrival.eta[charged]
    )
    has_track = rng.random(len(charged)) < efficiency
    tracked = charged[has_track]

    # The mass follows from energy and momentum, and gives the energy after the smearing.
    pid = particles.pid[tracked].astype(np.int64)
    pt = particle_pt[tracked]
    px, py, pz = particles.px[tracked], particles.py[tracked], particles.pz[tracked]
    energy = particles.energy[tracked]
    # Rounding may make the squared mass negative; it counts as 0 then.
    mass2 = np.square(energy) - np.square(px) - np.square(py) - np.square(pz)
    resolution = parameters.momentum_resolution(pid, pt, arrival.eta[tracked])
    return TrackArrays(
        particle=tracked,
        event=particles.event[tracked],
        pid=pid,
        charge=particles.charge[tracked],
        pt=parameters.lognormal(pt, resolution * pt, rng),
        eta=pseudorapidity(px, py, pz),
        phi=np.arctan2(py, px),
        mass=np.sqrt(np.maximum(mass2, 0.0)),
        arrival_eta=arrival.eta[tracked],
        arrival_phi=arrival.phi[tracked],
        resolution=resolution,
        is_pile_up=crossing.is_pile_up[tracked],
    )


def _hits(particles: StableParticles, arrival: Arrival, mask: NDArray[np.bool_]) -> Hits:
    """Where the particles of a mask (num_particles,) hit a calorimeter, with their energies."""
    return Hits(particles.event[mask], arrival.eta[mask], arrival.phi[mask], particles.energy[mask])


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
    is_identified = rng.random(len(leptons.pt)) < efficiency(leptons.pt, leptons.arrival_eta)
    leptons = leptons.select(is_identified)
    return leptons.select(np.lexsort([-leptons.pt, leptons.event]))


def _jets(
    block: GeneratedBlock,
    crossing: Crossing,
    tracks: TrackArrays,
    neutrals: DetectedCandidates,
    rng: np.random.Generator,
) -> tuple[FoundJets, Integers]:
    """Cluster jets, and draw their b-tags (num_jets,), as bits.

    PUPPI weights reduce the pT of neutral candidates and hadrons from pile-up; those of weight 0
    are dropped. Leptons enter with their full pT.
    """
    is_lepton = np.isin(tracks.code, LEPTONS)
    hadrons = tracks.select(~is_lepton)
    flowing = DetectedCandidates.concatenate(hadrons, neutrals)
    # The hadrons with a track come first in `flowing`.
    is_charged = np.arange(len(flowing.event)) < len(hadrons.pt)
    is_pile_up = np.zeros(len(flowing.event), np.bool_)
    is_pile_up[is_charged] = hadrons.is_pile_up
    weights = puppi_weights(Flowing(*flowing, is_charged, is_pile_up), crossing.num_vertices)
    flowing = flowing._replace(pt=weights * flowing.pt)
    weighted = DetectedCandidates._make(column[weights > 0] for column in flowing)

    inputs = DetectedCandidates.concatenate(weighted, tracks.select(is_lepton))
    by_event = np.argsort(inputs.event, kind="stable")
    jets = find_jets(
        inputs.event[by_event],
        inputs.pt[by_event],
        inputs.eta[by_event],
        inputs.phi[by_event],
        crossing.particles.num_events,
    )
    return jets, b_tags(jets, jet_flavours(jets, block.quarks), rng)


def _missing_energy(candidates: DetectedCandidates, num_events: int) -> tuple[Floats, Floats]:
    """Size and azimuth of the negative vector sum of pT of all candidates; both (num_events,).

    Candidates of pile-up count too.
    """
    event, pt, _, phi = candidates
    x = -np.bincount(event, pt * np.cos(phi), num_events)
    y = -np.bincount(event, pt * np.sin(phi), num_events)
    return np.hypot(x, y), np.arctan2(y, x)
