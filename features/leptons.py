"""Selects the lepton of an event: isolated and above threshold."""

from __future__ import annotations

from typing import NamedTuple

from features.arrays import EventArrays, Floats, Leptons
from features.compiling import compiled
from features.isolation import TRACK, Candidates, lepton_sums
from features.kinematics import delta_r2


class LeptonCuts(NamedTuple):
    """The cuts on a lepton, and the definition of its isolation."""

    min_pt: float
    max_abs_eta: float
    max_isolation: float
    cone: float
    own_track_dr: float
    as_published: bool
    """Whether the convention is `sparkdltrigger`."""
    electrons: bool = True
    """Whether electrons count."""
    muons: bool = True


class Lepton(NamedTuple):
    """The selected lepton of an event: GeV, radians, units of e, isolations relative to its pT."""

    pt: float
    eta: float
    phi: float
    charge: float
    is_electron: float
    """1 for an electron, 0 for a muon."""
    iso_charged: float
    iso_photon: float
    iso_neutral: float


class SelectedLeptons(NamedTuple):
    """The selected leptons of many events: the fields of `Lepton` as arrays (num_events,)."""

    pt: Floats
    eta: Floats
    phi: Floats
    charge: Floats
    is_electron: Floats
    iso_charged: Floats
    iso_photon: Floats
    iso_neutral: Floats


@compiled
def isolated(candidates: Candidates, leptons: Leptons, index: int, is_electron: float, cuts: LeptonCuts) -> Lepton:
    """One lepton of an event with its isolation from tracks (except its own), photons and neutral hadrons.

    As published, the lepton's own track counts, and 1 is subtracted instead, even if there is no such track.
    """
    pt, eta, phi = leptons.pt[index], leptons.eta[index], leptons.phi[index]
    sums = lepton_sums(candidates, eta, phi, cuts.cone, cuts.own_track_dr, cuts.as_published)
    itself = 1.0 if cuts.as_published else 0.0
    return Lepton(pt, eta, phi, leptons.charge[index], is_electron, sums[0] / pt - itself, sums[1] / pt, sums[2] / pt)


@compiled
def passes(lepton: Lepton, cuts: LeptonCuts) -> bool:
    """Whether the summed isolation is small enough."""
    return bool(lepton.iso_charged + lepton.iso_photon + lepton.iso_neutral < cuts.max_isolation)


@compiled
def best_of(
    candidates: Candidates, leptons: Leptons, first: int, last: int, is_electron: float, cuts: LeptonCuts
) -> Lepton:
    """The lepton of highest pT among those from `first` to `last` (exclusive) that pass; as published, the first.

    Returns:
        The lepton; its pT is 0 if none passes.
    """
    best = Lepton(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    for index in range(first, last):
        if leptons.pt[index] > max(cuts.min_pt, best.pt) and abs(leptons.eta[index]) < cuts.max_abs_eta:
            lepton = isolated(candidates, leptons, index, is_electron, cuts)
            if passes(lepton, cuts):
                best = lepton
                if cuts.as_published:
                    break
    return best


@compiled
def range_of(events: EventArrays, event: int, is_electron: bool, cuts: LeptonCuts) -> tuple[int, int]:
    """First and last (exclusive) lepton of a kind in an event; none if the kind does not count."""
    at = events.electrons.offsets if is_electron else events.muons.offsets
    counts = cuts.electrons if is_electron else cuts.muons
    return at[event], at[event + 1] if counts else at[event]


@compiled
def num_all_leptons(events: EventArrays, event: int) -> int:
    """Number of all electrons and muons of an event."""
    electrons, muons = events.electrons.offsets, events.muons.offsets
    return int(electrons[event + 1] - electrons[event] + muons[event + 1] - muons[event])


@compiled
def num_leptons(events: EventArrays, event: int, candidates: Candidates, cuts: LeptonCuts) -> tuple[int, int]:
    """Number of leptons that pass the cuts on kind, pT and eta, and of those that are isolated too."""
    found, num_isolated = 0, 0
    for is_electron in (True, False):
        leptons = events.electrons if is_electron else events.muons
        first, last = range_of(events, event, is_electron, cuts)
        for index in range(first, last):
            if leptons.pt[index] > cuts.min_pt and abs(leptons.eta[index]) < cuts.max_abs_eta:
                found += 1
                num_isolated += passes(isolated(candidates, leptons, index, 0.0, cuts), cuts)
    return found, num_isolated


@compiled
def lacks_own_track(events: EventArrays, event: int, candidates: Candidates, cuts: LeptonCuts) -> bool:
    """Whether the lepton of highest pT above threshold has no own track; False for an event without such a lepton.

    Another track of the same particle, a little farther away, would count in the isolation: it would be above 1.
    """
    pt, eta, phi = cuts.min_pt, 0.0, 0.0
    for is_electron in (True, False):
        leptons = events.electrons if is_electron else events.muons
        first, last = range_of(events, event, is_electron, cuts)
        for index in range(first, last):
            if leptons.pt[index] > pt and abs(leptons.eta[index]) < cuts.max_abs_eta:
                pt, eta, phi = leptons.pt[index], leptons.eta[index], leptons.phi[index]
    if pt == cuts.min_pt:
        return False
    for index in range(candidates.pt.size):
        if (
            candidates.kind[index] == TRACK
            and delta_r2(candidates.eta[index], candidates.phi[index], eta, phi) < cuts.own_track_dr**2
        ):
            return False
    return True


@compiled
def select_lepton(events: EventArrays, event: int, candidates: Candidates, cuts: LeptonCuts) -> Lepton:
    """The selected lepton of an event.

    The one of higher pT of the best electron and the best muon; for equal pT the electron. As published, the one of
    larger eta; for equal eta the muon (`selection` of the notebook compares index 5, which was meant to be pT).

    Returns:
        The lepton; its pT is 0 if none passes.
    """
    first, last = range_of(events, event, True, cuts)
    electron = best_of(candidates, events.electrons, first, last, 1.0, cuts)
    first, last = range_of(events, event, False, cuts)
    muon = best_of(candidates, events.muons, first, last, 0.0, cuts)
    if cuts.as_published and electron.pt > 0.0 and muon.pt > 0.0:
        return electron if electron.eta > muon.eta else muon
    return muon if muon.pt > electron.pt else electron
