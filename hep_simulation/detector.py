"""The fast detector: from particles of a crossing to what a reconstruction would give.

Tracks, electrons, muons, photons and neutral hadrons of energy flow, jets with b-tags, and missing energy, named as the
branches of Delphes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_simulation import parameters
from hep_simulation.calorimeter import ECAL, HCAL, Hits, MeasuredTracks, measure
from hep_simulation.generator import GeneratedBlock
from hep_simulation.jets import FoundJets, b_tags, find_jets, flavours
from hep_simulation.particles import Floats, Integers, StableParticles, pseudorapidity
from hep_simulation.pile_up import Crossing, overlay
from hep_simulation.propagation import Arrival, propagate
from hep_simulation.puppi import Flowing, puppi_weights
from ingestion.thresholds import Jagged
from pipeline.configuration.simulate_section import PileUpSettings

#: Additional relative smearing of photons.
_PHOTON_SMEARING: Final = 0.01
_PHOTON_LIKE: Final = (11, 22)
_UNSEEN: Final = (12, 13, 14, 16)


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

    def chosen(self, mask: NDArray[np.bool_] | Integers) -> _TrackArrays:
        """Some of them."""
        return _TrackArrays(*(column[mask] for column in self))


def simulate(
    block: GeneratedBlock,
    pool: StableParticles | None,
    pile_up: PileUpSettings,
    rng: np.random.Generator,
) -> dict[str, Jagged]:
    """Detect a block of generated events; the collections by the names of Delphes' branches."""
    crossing = overlay(block.particles, pool, pile_up, rng)
    particles, num_events = crossing.particles, crossing.particles.num_events
    arrival = propagate(particles)
    tracks = _tracks(crossing, arrival, rng)
    code = np.abs(particles.pid)
    seen = arrival.arrives & ~np.isin(code, _UNSEEN)
    is_photon_like = np.isin(code, _PHOTON_LIKE)
    is_electron, is_hadron = np.abs(tracks.pid) == 11, ~np.isin(np.abs(tracks.pid), (11, 13))
    photons = measure(
        ECAL, _hits(particles, arrival, seen & is_photon_like), _measured(tracks, is_electron), rng
    )
    tracks = tracks.scaled(is_electron, photons.scale)
    neutrals = measure(
        HCAL, _hits(particles, arrival, seen & ~is_photon_like), _measured(tracks, is_hadron), rng
    )
    tracks = tracks.scaled(is_hadron, neutrals.scale)
    energy = photons.neutral.energy
    energy = np.maximum(energy * (1 + _PHOTON_SMEARING * rng.standard_normal(len(energy))), 0.0)
    neutral = (photons.neutral._replace(energy=energy), neutrals.neutral)
    jets, tags = _jets(block, crossing, tracks, neutral, rng)
    met, met_phi = _missing_energy(tracks, neutral, num_events)
    numbers = np.arange(num_events)
    return {
        "Event": _collection(numbers, num_events, {"Weight": block.weights}),
        "EFlowTrack": _collection(
            tracks.event,
            num_events,
            {
                "PID": tracks.pid,
                "Charge": tracks.charge,
                "PT": tracks.pt,
                "Eta": tracks.eta,
                "Phi": tracks.phi,
            }
            | {
                name: column[tracks.place]
                for name, column in zip("XYZ", particles[-3:], strict=True)
            },
        ),
        "EFlowPhoton": _tower_collection(photons.neutral, num_events),
        "EFlowNeutralHadron": _tower_collection(neutrals.neutral, num_events),
        "Electron": _identified(tracks, 11, parameters.electron_identification, num_events, rng),
        "MuonTight": _identified(tracks, 13, parameters.muon_identification, num_events, rng),
        "Jet": _collection(
            jets.event,
            num_events,
            {"PT": jets.pt, "Eta": jets.eta, "Phi": jets.phi, "BTag": tags.astype(np.uint32)},
        ),
        "MissingET": _collection(numbers, num_events, {"MET": met, "Phi": met_phi}),
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
    px, py, pz, energy = (
        column[place] for column in (particles.px, particles.py, particles.pz, particles.energy)
    )
    resolution = parameters.momentum_resolution(pid, pt[place], arrival_eta)
    mass = np.sqrt(
        np.maximum(np.square(energy) - np.square(px) - np.square(py) - np.square(pz), 0.0)
    )
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
    return Hits(
        *(
            column[chosen]
            for column in (particles.event, arrival.eta, arrival.phi, particles.energy)
        )
    )


def _measured(tracks: _TrackArrays, chosen: NDArray[np.bool_]) -> MeasuredTracks:
    columns = (tracks.event, tracks.arrival_eta, tracks.arrival_phi, tracks.energy)
    return MeasuredTracks(Hits(*(column[chosen] for column in columns)), tracks.resolution[chosen])


def _identified(
    tracks: _TrackArrays,
    code: int,
    efficiency: Callable[[Floats, Floats], Floats],
    num_events: int,
    rng: np.random.Generator,
) -> Jagged:
    """Leptons of a kind that are identified, of falling pT in each event."""
    leptons = tracks.chosen(np.abs(tracks.pid) == code)
    leptons = leptons.chosen(
        rng.random(len(leptons.pt)) < efficiency(leptons.pt, leptons.arrival_eta)
    )
    leptons = leptons.chosen(np.lexsort([-leptons.pt, leptons.event]))
    columns = {"PT": leptons.pt, "Eta": leptons.eta, "Phi": leptons.phi, "Charge": leptons.charge}
    return _collection(leptons.event, num_events, columns)


def _momenta(*parts: _TrackArrays | Hits) -> tuple[Integers, Floats, Floats, Floats]:
    columns = zip(*((part.event, part.pt, part.eta, part.phi) for part in parts), strict=True)
    event, pt, eta, phi = map(np.concatenate, columns)
    return event, pt, eta, phi


def _jets(
    block: GeneratedBlock,
    crossing: Crossing,
    tracks: _TrackArrays,
    neutral: tuple[Hits, ...],
    rng: np.random.Generator,
) -> tuple[FoundJets, Integers]:
    """Jets of candidates weighted by PUPPI, leptons included, and their tags."""
    is_lepton = np.isin(np.abs(tracks.pid), (11, 13))
    charged, leptons = tracks.chosen(~is_lepton), tracks.chosen(is_lepton)
    event, pt, eta, phi = _momenta(charged, *neutral)
    is_charged = np.arange(len(event)) < len(charged.pt)
    is_pile_up = np.zeros(len(event), np.bool_)
    is_pile_up[is_charged] = charged.is_pile_up
    weights = puppi_weights(
        Flowing(event, pt, eta, phi, is_charged, is_pile_up), crossing.num_vertices
    )
    kept = weights > 0
    weighted = (event[kept], (weights * pt)[kept], eta[kept], phi[kept])
    event, pt, eta, phi = (
        np.concatenate(pair) for pair in zip(weighted, _momenta(leptons), strict=True)
    )
    order = np.argsort(event, kind="stable")
    jets = find_jets(event[order], pt[order], eta[order], phi[order], crossing.particles.num_events)
    return jets, b_tags(jets, flavours(jets, block.quarks), rng)


def _missing_energy(
    tracks: _TrackArrays, neutral: tuple[Hits, ...], num_events: int
) -> tuple[Floats, Floats]:
    """Size and azimuth of the negative vector sum of all candidates, those of pile-up included."""
    event, pt, _, phi = _momenta(tracks, *neutral)
    x = -np.bincount(event, pt * np.cos(phi), num_events)
    y = -np.bincount(event, pt * np.sin(phi), num_events)
    return np.hypot(x, y), np.arctan2(y, x)


def _tower_collection(hits: Hits, num_events: int) -> Jagged:
    return _collection(hits.event, num_events, {"ET": hits.pt, "Eta": hits.eta, "Phi": hits.phi})


def _collection(event: Integers, num_events: int, columns: dict[str, NDArray[Any]]) -> Jagged:
    """Candidates in order of the events; numbers of 32 bits, as in Delphes' files."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(event, minlength=num_events))]).astype(
        np.int64
    )
    return Jagged(
        offsets, {name: column.astype(f"{column.dtype.kind}4") for name, column in columns.items()}
    )
