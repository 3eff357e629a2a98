"""Selects the lepton of an event: isolated and above threshold."""

from __future__ import annotations

import math
import sys
from typing import Generic, NamedTuple, TypeVar

from features.arrays import Floats, Leptons
from features.columns import NEUTRAL, PHOTON, TRACK
from features.isolation import Candidates, lepton_sums
from hep_core.compiling import compiled

Value = TypeVar("Value", float, Floats)


class Cuts(NamedTuple):
    """The settings that the compiled kernels need, with the names that they have in the config.

    Two are numbers here, since kernels take no text: `as_published` and `ordering`. pT in GeV.
    """

    as_published: bool
    """Whether the convention is `sparkdltrigger`."""
    ordering: int
    """One of `features.low_level.ORDERINGS`."""
    min_lepton_pt: float
    min_leptons: int
    """Least number of isolated leptons of an event."""
    isolation_cone: float
    """Radius of the isolation cone, in eta and phi."""
    own_track_dr: float
    """A track nearer to the lepton than this is the lepton's own, in eta and phi."""
    max_tracks: int
    """Caps on the candidates of each kind in the particle list."""
    max_photons: int
    max_neutral_hadrons: int
    max_lepton_isolation: float = math.inf
    """Limit of the sum of the three relative isolations."""
    max_lepton_abs_eta: float = math.inf
    max_leptons: int = sys.maxsize


class Lepton(NamedTuple, Generic[Value]):
    """The selected lepton of one event, or of many events, with (num_events,) arrays.

    pT in GeV, angles in radians, charge in units of e. An isolation is the sum of pT of the nearby
    candidates of a kind, divided by the pT of the lepton.
    """

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
def select_lepton(
    leptons: Leptons, event: int, candidates: Candidates, cuts: Cuts
) -> tuple[Lepton[float], int, int, bool]:
    """Select the lepton of highest pT that passes the cuts; for equal pT the electron.

    The cuts are on pT, eta and the sum of the relative isolations from tracks (except the lepton's
    own), photons and neutral hadrons.

    As published, its own track counts, and 1 is subtracted instead, even if there is no such track.
    Of the first electron and the first muon that pass, the lepton of larger eta is selected; for
    equal eta the muon (`selection` of the notebook compares index 5, which was meant to be pT).

    Returns:
        The lepton (its pT is 0 if none passes); numbers of leptons that pass the cuts on pT and
        eta, and of those that are isolated too; whether the one of highest pT among the former has
        no own track. A lepton whose own track is a little too far away has an isolation above 1,
        since this track counts in it.
    """
    best = Lepton(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    num_accepted = 0
    num_isolated = 0
    highest_pt = 0.0
    lacks_own_track = False
    # -1 for no lepton yet, else 1 or 0.
    previous_is_electron = -1.0
    for index in range(leptons.offsets[event], leptons.offsets[event + 1]):
        pt = leptons.pt[index]
        eta = leptons.eta[index]
        phi = leptons.phi[index]
        is_hard = pt > cuts.min_lepton_pt
        is_central = abs(eta) < cuts.max_lepton_abs_eta
        if not (is_hard and is_central):
            continue
        num_accepted += 1
        sums, has_own_track = lepton_sums(
            candidates, eta, phi, cuts.isolation_cone, cuts.own_track_dr, cuts.as_published
        )
        # The own track is of interest for the hardest lepton, whether it is isolated or not.
        if pt > highest_pt:
            highest_pt = pt
            lacks_own_track = not has_own_track

        is_electron = leptons.is_electron[index]
        iso_charged = sums[TRACK] / pt
        if cuts.as_published:
            iso_charged -= 1.0
        iso_photon = sums[PHOTON] / pt
        iso_neutral = sums[NEUTRAL] / pt
        isolation = iso_charged + iso_photon + iso_neutral
        # An isolation that is not a number rejects the lepton too.
        if not isolation < cuts.max_lepton_isolation:
            continue
        num_isolated += 1
        if cuts.as_published:
            # Electrons come first, so the flavour changes at most once.
            is_first_of_flavour = is_electron != previous_is_electron
            is_better = is_first_of_flavour and (num_isolated == 1 or eta >= best.eta)
        else:
            is_better = pt > best.pt
        previous_is_electron = is_electron
        if is_better:
            charge = leptons.charge[index]
            best = Lepton(pt, eta, phi, charge, is_electron, iso_charged, iso_photon, iso_neutral)
    return best, num_accepted, num_isolated, lacks_own_track
