"""The one lepton that an event is selected by: isolated, above threshold, of highest pT."""

from __future__ import annotations

from typing import NamedTuple

from features.arrays import Events, Leptons
from features.compiling import compiled
from features.isolation import lepton_isolation


class LeptonCuts(NamedTuple):
    """What a lepton must pass."""

    min_pt: float
    max_isolation: float
    cone: float
    own_track_dr: float


class Lepton(NamedTuple):
    """The selected lepton of an event: GeV, radians, units of e, isolations relative to its pT."""

    pt: float
    eta: float
    phi: float
    charge: float
    is_electron: bool
    iso_charged: float
    iso_photon: float
    iso_neutral: float


@compiled
def isolated(events: Events, event: int, leptons: Leptons, index: int, is_electron: bool, cuts: LeptonCuts) -> Lepton:
    """One lepton of an event with its isolation from tracks (but its own), photons and neutral hadrons."""
    pt, eta, phi = leptons.pt[index], leptons.eta[index], leptons.phi[index]
    tracks, photons, neutrals = events.tracks, events.photons, events.neutral_hadrons
    a, b = tracks.offsets[event], tracks.offsets[event + 1]
    charged = lepton_isolation(
        pt, eta, phi, tracks.pt[a:b], tracks.eta[a:b], tracks.phi[a:b], cuts.cone, cuts.own_track_dr
    )
    a, b = photons.offsets[event], photons.offsets[event + 1]
    photon = lepton_isolation(pt, eta, phi, photons.pt[a:b], photons.eta[a:b], photons.phi[a:b], cuts.cone, 0.0)
    a, b = neutrals.offsets[event], neutrals.offsets[event + 1]
    neutral = lepton_isolation(pt, eta, phi, neutrals.pt[a:b], neutrals.eta[a:b], neutrals.phi[a:b], cuts.cone, 0.0)
    return Lepton(pt, eta, phi, leptons.charge[index], is_electron, charged, photon, neutral)


@compiled
def select_lepton(events: Events, event: int, cuts: LeptonCuts) -> Lepton:
    """The lepton of highest pT with pT > min_pt and summed isolation < max_isolation.

    Electrons are looked at before muons, so that an electron wins a tie.

    Returns:
        The lepton; its pT is 0 if none passes.
    """
    best = Lepton(0.0, 0.0, 0.0, 0.0, False, 0.0, 0.0, 0.0)
    for index in range(events.electrons.offsets[event], events.electrons.offsets[event + 1]):
        if events.electrons.pt[index] > max(cuts.min_pt, best.pt):
            lepton = isolated(events, event, events.electrons, index, True, cuts)
            if lepton.iso_charged + lepton.iso_photon + lepton.iso_neutral < cuts.max_isolation:
                best = lepton
    for index in range(events.muons.offsets[event], events.muons.offsets[event + 1]):
        if events.muons.pt[index] > max(cuts.min_pt, best.pt):
            lepton = isolated(events, event, events.muons, index, False, cuts)
            if lepton.iso_charged + lepton.iso_photon + lepton.iso_neutral < cuts.max_isolation:
                best = lepton
    return best
