"""Selects the lepton of an event: isolated and above threshold."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from features.arrays import Floats, Leptons
from features.columns import TRACK
from features.compiling import compiled
from features.isolation import Candidates, lepton_sums
from features.kinematics import delta_r2

Value = TypeVar("Value", float, Floats)


class LeptonCuts(NamedTuple):
    """The cuts on a lepton, and the definition of its isolation."""

    min_pt: float
    max_abs_eta: float
    max_isolation: float
    cone: float
    own_track_dr: float
    as_published: bool
    """Whether the convention is `sparkdltrigger`."""


class Lepton(NamedTuple, Generic[Value]):
    """The selected lepton of an event, or of many: GeV, radians, units of e, isolations relative to its pT."""

    pt: Value
    eta: Value
    phi: Value
    charge: Value
    is_electron: Value
    """1 for an electron, 0 for a muon."""
    iso_charged: Value
    iso_photon: Value
    iso_neutral: Value


@compiled
def isolated(candidates: Candidates, leptons: Leptons, index: int, cuts: LeptonCuts) -> Lepton[float]:
    """One lepton of an event with its isolation from tracks (except its own), photons and neutral hadrons.

    As published, the lepton's own track counts, and 1 is subtracted instead, even if there is no such track.
    """
    pt, eta, phi = leptons.pt[index], leptons.eta[index], leptons.phi[index]
    sums = lepton_sums(candidates, eta, phi, cuts.cone, cuts.own_track_dr, cuts.as_published)
    charged = sums[0] / pt - (1.0 if cuts.as_published else 0.0)
    charge, is_electron = leptons.charge[index], leptons.is_electron[index]
    return Lepton(pt, eta, phi, charge, is_electron, charged, sums[1] / pt, sums[2] / pt)


@compiled
def passes(lepton: Lepton[float], cuts: LeptonCuts) -> bool:
    """Whether the summed isolation is small enough."""
    return bool(lepton.iso_charged + lepton.iso_photon + lepton.iso_neutral < cuts.max_isolation)


@compiled
def is_accepted(leptons: Leptons, index: int, cuts: LeptonCuts) -> bool:
    """Whether a lepton passes the cuts on pT and eta."""
    return bool(leptons.pt[index] > cuts.min_pt and abs(leptons.eta[index]) < cuts.max_abs_eta)


@compiled
def num_leptons(leptons: Leptons, event: int, candidates: Candidates, cuts: LeptonCuts) -> tuple[int, int]:
    """Number of leptons that pass the cuts on pT and eta, and of those that are isolated too."""
    found, num_isolated = 0, 0
    for index in range(leptons.offsets[event], leptons.offsets[event + 1]):
        if is_accepted(leptons, index, cuts):
            found += 1
            num_isolated += passes(isolated(candidates, leptons, index, cuts), cuts)
    return found, num_isolated


@compiled
def lacks_own_track(leptons: Leptons, event: int, candidates: Candidates, cuts: LeptonCuts) -> bool:
    """Whether the lepton of highest pT above threshold has no own track; False for an event without such a lepton.

    Another track of the same particle, a little farther away, would count in the isolation: it would be above 1.
    """
    hardest = -1
    for index in range(leptons.offsets[event], leptons.offsets[event + 1]):
        if is_accepted(leptons, index, cuts) and (hardest < 0 or leptons.pt[index] > leptons.pt[hardest]):
            hardest = index
    if hardest < 0:
        return False
    eta, phi = leptons.eta[hardest], leptons.phi[hardest]
    for index in range(candidates.pt.size):
        if (
            candidates.kind[index] == TRACK
            and delta_r2(candidates.eta[index], candidates.phi[index], eta, phi) < cuts.own_track_dr**2
        ):
            return False
    return True


@compiled
def select_lepton(leptons: Leptons, event: int, candidates: Candidates, cuts: LeptonCuts) -> Lepton[float]:
    """The selected lepton of an event: of those that pass the one of highest pT; for equal pT the electron.

    As published, of the first electron and the first muon that pass the one of larger eta; for equal eta the muon
    (`selection` of the notebook compares index 5, which was meant to be pT).

    Returns:
        The lepton; its pT is 0 if none passes.
    """
    best = Lepton(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    for index in range(leptons.offsets[event], leptons.offsets[event + 1]):
        is_beaten = leptons.is_electron[index] > 0.0 if cuts.as_published else leptons.pt[index] <= best.pt
        if not is_accepted(leptons, index, cuts) or (best.pt > 0.0 and is_beaten):
            continue
        lepton = isolated(candidates, leptons, index, cuts)
        if passes(lepton, cuts):
            if cuts.as_published and not lepton.is_electron:
                return best if best.pt > 0.0 and best.eta > lepton.eta else lepton
            best = lepton
    return best
