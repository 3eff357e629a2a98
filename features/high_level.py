"""The 14 high-level features (HLF) of an event, in the order of `features.schema.HLF_NAMES`.

Source: the features of CERN's HLF classifier (Nguyen et al. 2019, Migliorini et al. 2019), with MT as defined (a square
root, which the published notebooks lack).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.arrays import Events
from features.compiling import compiled
from features.kinematics import delta_r2, transverse_mass
from features.leptons import Lepton


class JetCuts(NamedTuple):
    """Which jets count, and which bits make a b-jet."""

    min_pt: float
    max_abs_eta: float
    lepton_cleaning_dr: float
    btag_mask: int
    squared_mt: bool
    """As published: MT without the root."""


@compiled
def high_level_features(events: Events, event: int, lepton: Lepton, cuts: JetCuts, out: NDArray[np.float32]) -> None:
    """Fill `out`, (14,), for one event: HT, MET, phi(MET), MT, jets, b-jets, and the lepton. GeV, radians."""
    jets = events.jets
    ht = 0.0
    num_jets = 0
    num_bjets = 0
    for jet in range(jets.offsets[event], jets.offsets[event + 1]):
        if not (jets.pt[jet] > cuts.min_pt and abs(jets.eta[jet]) < cuts.max_abs_eta):
            continue
        if delta_r2(jets.eta[jet], jets.phi[jet], lepton.eta, lepton.phi) < cuts.lepton_cleaning_dr**2:
            continue
        ht += jets.pt[jet]
        num_jets += 1
        if jets.btag[jet] & cuts.btag_mask:
            num_bjets += 1
    out[0] = ht
    out[1] = events.met[event]
    out[2] = events.met_phi[event]
    mt = transverse_mass(lepton.pt, lepton.phi, events.met[event], events.met_phi[event])
    out[3] = mt * mt if cuts.squared_mt else mt
    out[4] = num_jets
    out[5] = num_bjets
    out[6] = lepton.pt
    out[7] = lepton.eta
    out[8] = lepton.phi
    out[9] = lepton.iso_charged
    out[10] = lepton.iso_photon
    out[11] = lepton.iso_neutral
    out[12] = lepton.charge
    out[13] = lepton.is_electron
