"""The fast detector: from particles of a crossing to what a reconstruction would give.

Tracks, electrons, muons, photons and neutral hadrons of energy flow, jets with b-tags, and missing energy, named as the
branches of Delphes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingestion.generation import parameters
from ingestion.generation.calorimeter import Flow, Hits, MeasuredTracks, ecal, hcal
from ingestion.generation.generator import GeneratedBlock
from ingestion.generation.jets import FoundJets, b_tags, find_jets, flavours
from ingestion.generation.particles import Floats, Integers, StableParticles, pseudorapidity
from ingestion.generation.pile_up import Crossing, overlay
from ingestion.generation.propagation import Arrival, propagate
from ingestion.generation.puppi import Flowing, puppi_weights
from ingestion.generation.settings import PileUpSettings

#: Additional relative smearing of photons.
_PHOTON_SMEARING: Final = 0.01
_PHOTON_LIKE: Final = (11, 22)
_UNSEEN: Final = (12, 13, 14, 16)


class Collection(NamedTuple):
    """Candidates of one kind: event i owns `offsets[i]:offsets[i + 1]` of each column."""

    offsets: Integers
    columns: dict[str, NDArray[Any]]


class _TrackArrays(NamedTuple):
    """Charged particles with a track, in order of the events."""

    place: Integers
    """Place of the particle."""
    event: Integers
    pid: Integers
    charge: Integers
    pt: Floats
    eta: Floats
    phi: Floats
    mass: Floats
    arrival_eta: Floats
    arrival_phi: Floats
    resolution: Floats
    is_pile_up: NDArray[np.bool_]

    @property
    def energy(self) -> Floats:
        """(n,) [GeV]."""
        energy: Floats = np.sqrt(np.square(self.pt * np.cosh(self.eta)) + np.square(self.mass))
        return energy

    def scaled(self, mask: NDArray[np.bool_], scale: Floats) -> _TrackArrays:
        """With factors on the pT of some."""
        pt = self.pt.copy()
        pt[mask] *= scale
        return self._replace(pt=pt)


def simulate(
    block: GeneratedBlock, pool: StableParticles | None, pile_up: PileUpSettings, rng: np.random.Generator
) -> dict[str, Collection]:
    """Detect a block of generated events; the collections by the names of Delphes' branches.

    Args:
        block: The hard events.
        pool: Minimum-bias events for the pile-up.
        pile_up: Number and spread of the collisions.
        rng: All randomness of the detector.
    """
    crossing = overlay(block.particles, pool, pile_up, rng)
    particles, num_events = crossing.particles, crossing.particles.num_events
    arrival = propagate(particles)
    tracks = _tracks(crossing, arrival, rng)
    code = np.abs(particles.pid)
    seen = arrival.arrives & ~np.isin(code, _UNSEEN)
    is_photon_like = np.isin(code, _PHOTON_LIKE)
    is_electron, is_hadron = np.abs(tracks.pid) == 11, ~np.isin(np.abs(tracks.pid), (11, 13))
    photons = ecal(_hits(particles, arrival, seen & is_photon_like), _measured(tracks, is_electron), rng)
    tracks = tracks.scaled(is_electron, photons.scale)
    neutrals = hcal(_hits(particles, arrival, seen & ~is_photon_like), _measured(tracks, is_hadron), rng)
    unscaled_muons = tracks
    tracks = tracks.scaled(is_hadron, neutrals.scale)
    photon_energy = np.maximum(
        photons.neutral.energy * (1 + _PHOTON_SMEARING * rng.standard_normal(len(photons.neutral.energy))), 0.0
    )
    jets, tags = _jets(block, crossing, tracks, photons, photon_energy, neutrals, rng)
    electrons = _identified(tracks, 11, parameters.electron_identification, rng)
    muons = _identified(unscaled_muons, 13, parameters.muon_identification, rng)
    met, met_phi = _missing_energy(tracks, photons.neutral._replace(energy=photon_energy), neutrals.neutral, num_events)
    one_each = np.arange(num_events + 1)
    return {
        "Event": Collection(one_each, {"Weight": block.weights.astype(np.float32)}),
        "EFlowTrack": _track_collection(tracks, particles, num_events),
        "EFlowPhoton": _tower_collection(photons.neutral, num_events),
        "EFlowNeutralHadron": _tower_collection(neutrals.neutral, num_events),
        "Electron": electrons.collection(num_events),
        "MuonTight": muons.collection(num_events),
        "Jet": _collection(
            jets.event, num_events, {"PT": jets.pt, "Eta": jets.eta, "Phi": jets.phi, "BTag": tags.astype(np.uint32)}
        ),
        "MissingET": Collection(one_each, {"MET": met.astype(np.float32), "Phi": met_phi.astype(np.float32)}),
    }


def _tracks(crossing: Crossing, arrival: Arrival, rng: np.random.Generator) -> _TrackArrays:
    """Draw which charged particles have a track, and smear their momenta."""
    particles = crossing.particles
    charge, pt = particles.charge, particles.pt
    charged = np.flatnonzero(arrival.arrives & (charge != 0))
    pid, arrival_eta = particles.pid[charged].astype(np.int64), arrival.eta[charged]
    efficiency = parameters.tracking_efficiency(pid, pt[charged], arrival_eta)
    kept = rng.random(len(charged)) < efficiency
    place, pid, arrival_eta = charged[kept], pid[kept], arrival_eta[kept]
    px, py, pz, energy = (column[place] for column in (particles.px, particles.py, particles.pz, particles.energy))
    resolution = parameters.momentum_resolution(pid, pt[place], arrival_eta)
    mass = np.sqrt(np.maximum(np.square(energy) - np.square(px) - np.square(py) - np.square(pz), 0.0))
    return _TrackArrays(
        place,
        particles.event[place],
        pid,
        charge[place],
        parameters.lognormal(pt[place], resolution * pt[place], rng),
        pseudorapidity(px, py, pz),
        np.arctan2(py, px),
        mass,
        arrival_eta,
        arrival.phi[place],
        resolution,
        crossing.is_pile_up[place],
    )


def _hits(particles: StableParticles, arrival: Arrival, chosen: NDArray[np.bool_]) -> Hits:
    return Hits(*(column[chosen] for column in (particles.event, arrival.eta, arrival.phi, particles.energy)))


def _measured(tracks: _TrackArrays, chosen: NDArray[np.bool_]) -> MeasuredTracks:
    columns = (tracks.event, tracks.arrival_eta, tracks.arrival_phi, tracks.energy)
    return MeasuredTracks(Hits(*(column[chosen] for column in columns)), tracks.resolution[chosen])


class _Identified(NamedTuple):
    event: Integers
    pt: Floats
    eta: Floats
    phi: Floats
    charge: Integers

    def collection(self, num_events: int) -> Collection:
        """Of falling pT in each event."""
        order = np.lexsort([-self.pt, self.event])
        columns = {"PT": self.pt, "Eta": self.eta, "Phi": self.phi, "Charge": self.charge}
        return _collection(self.event[order], num_events, {name: each[order] for name, each in columns.items()})


def _identified(
    tracks: _TrackArrays, code: int, efficiency: Callable[[Floats, Floats], Floats], rng: np.random.Generator
) -> _Identified:
    """Leptons of a kind that are identified."""
    chosen = np.flatnonzero(np.abs(tracks.pid) == code)
    share = efficiency(tracks.pt[chosen], tracks.arrival_eta[chosen])
    kept = chosen[rng.random(len(chosen)) < share]
    return _Identified(*(column[kept] for column in (tracks.event, tracks.pt, tracks.eta, tracks.phi, tracks.charge)))


def _jets(
    block: GeneratedBlock,
    crossing: Crossing,
    tracks: _TrackArrays,
    photons: Flow,
    photon_energy: Floats,
    neutrals: Flow,
    rng: np.random.Generator,
) -> tuple[FoundJets, Integers]:
    """Jets of candidates weighted by PUPPI, leptons included, and their tags."""
    is_lepton = np.isin(np.abs(tracks.pid), (11, 13))
    charged = ~is_lepton
    parts = [
        (tracks.event[charged], tracks.pt[charged], tracks.eta[charged], tracks.phi[charged]),
        (photons.neutral.event, photon_energy / np.cosh(photons.neutral.eta), photons.neutral.eta, photons.neutral.phi),
        (
            neutrals.neutral.event,
            neutrals.neutral.energy / np.cosh(neutrals.neutral.eta),
            neutrals.neutral.eta,
            neutrals.neutral.phi,
        ),
    ]
    event, pt, eta, phi = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    num_charged, num_neutral = int(charged.sum()), len(event) - int(charged.sum())
    is_charged = np.repeat([True, False], [num_charged, num_neutral])
    is_pile_up = np.concatenate([tracks.is_pile_up[charged], np.zeros(num_neutral, np.bool_)])
    weights = puppi_weights(Flowing(event, pt, eta, phi, is_charged, is_pile_up), crossing.num_vertices)
    kept = weights > 0
    leptons = (tracks.event[is_lepton], tracks.pt[is_lepton], tracks.eta[is_lepton], tracks.phi[is_lepton])
    weighted = (event[kept], (weights * pt)[kept], eta[kept], phi[kept])
    event, pt, eta, phi = (np.concatenate(columns) for columns in zip(weighted, leptons, strict=True))
    order = np.argsort(event, kind="stable")
    jets = find_jets(event[order], pt[order], eta[order], phi[order], crossing.particles.num_events)
    return jets, b_tags(jets, flavours(jets, block.quarks), rng)


def _missing_energy(tracks: _TrackArrays, photons: Hits, neutrals: Hits, num_events: int) -> tuple[Floats, Floats]:
    """Size and azimuth of the negative vector sum of all candidates, those of pile-up included."""
    event = np.concatenate([tracks.event, photons.event, neutrals.event])
    pt = np.concatenate([tracks.pt, photons.energy / np.cosh(photons.eta), neutrals.energy / np.cosh(neutrals.eta)])
    phi = np.concatenate([tracks.phi, photons.phi, neutrals.phi])
    x = -np.bincount(event, pt * np.cos(phi), num_events)
    y = -np.bincount(event, pt * np.sin(phi), num_events)
    return np.hypot(x, y), np.arctan2(y, x)


def _track_collection(tracks: _TrackArrays, particles: StableParticles, num_events: int) -> Collection:
    position = {name: column[tracks.place] for name, column in zip("XYZ", particles[-3:], strict=True)}
    columns = {"PT": tracks.pt, "Eta": tracks.eta, "Phi": tracks.phi, **position}
    whole = {"PID": tracks.pid.astype(np.int32), "Charge": tracks.charge.astype(np.int32)}
    return _collection(tracks.event, num_events, {**whole, **columns})


def _tower_collection(hits: Hits, num_events: int) -> Collection:
    return _collection(
        hits.event, num_events, {"ET": hits.energy / np.cosh(hits.eta), "Eta": hits.eta, "Phi": hits.phi}
    )


def _collection(event: Integers, num_events: int, columns: dict[str, NDArray[Any]]) -> Collection:
    """Candidates in order of the events; real numbers in single precision, as in Delphes' files."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(event, minlength=num_events))]).astype(np.int64)
    single = {
        name: column.astype(np.float32) if column.dtype == np.float64 else column for name, column in columns.items()
    }
    whole = {name: each.astype(np.int32) if each.dtype == np.int64 else each for name, each in single.items()}
    return Collection(offsets, whole)
