"""Parameters of the fast detector: efficiencies and resolutions as functions of pT, eta and energy.

The numbers follow the published Delphes parametrisation of CMS for the High-Luminosity LHC (tracker
up to |eta| = 4, endcaps of high granularity). Tables there in narrow bins are shortened to a few
numbers here. docs/simulation.md says where the samples agree.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hep_simulation.particles import Floats, Integers

#: Highest |eta| of tracks, and lowest pT [GeV].
TRACKER_ETA: Final = 4.0
TRACK_PT: Final = 0.2

#: Edges in |eta|, and efficiencies of the tracker between them: of charged hadrons above 1 GeV and
#: below, of electrons above 10 GeV, and slope and value at 0 of a line in pT from 1 to 10 GeV.
#: Muons have one efficiency up to `_MUON_ETA`, another one beyond.
_EFFICIENCY_EDGES: Final = np.array([1.2, 2.5])
_HADRONS: Final = np.array([0.97, 0.87, 0.82])
_HADRONS_BELOW: Final = np.array([0.96, 0.85, 0.80])
_ELECTRONS: Final = np.array([0.97, 0.90, 0.85])
_ELECTRON_SLOPE: Final = np.array([0.0, 0.01, 0.01])
_ELECTRONS_AT_0: Final = np.array([0.97, 0.82, 0.80])
_MUON_ETA: Final = 2.8
_MUONS: Final = (1.0, 0.95)

#: Relative momentum resolution of charged hadrons, in steps of 0.4 in |eta|: a constant, and a
#: slope [1/GeV] times pT, added in quadrature.
_HADRON_CONSTANT: Final = np.array(
    [0.0048, 0.0053, 0.0083, 0.0150, 0.0172, 0.0205, 0.0270, 0.0400, 0.0560, 0.0950]
)
_HADRON_SLOPE: Final = np.array(
    [8.0e-5, 7.6e-5, 9.4e-5, 9.0e-5, 1.0e-4, 1.2e-4, 1.3e-4, 1.4e-4, 2.0e-4, 3.5e-4]
)
#: The same for muons; the last bins have no muon chambers.
_MUON_CONSTANT: Final = np.array(
    [0.0057, 0.0062, 0.0088, 0.0100, 0.0140, 0.0265, 0.0480, 0.0600, 0.0700, 0.0900]
)
_MUON_SLOPE: Final = np.array(
    [4.0e-5, 4.5e-5, 5.5e-5, 5.0e-5, 1.2e-4, 2.5e-4, 6.0e-4, 3.0e-3, 4.5e-3, 7.0e-3]
)
#: Relative energy resolution of electrons in the tracker, by |eta|.
_ELECTRON_EDGES: Final = np.array([1.5, 1.75, 2.15, 3.0])
_ELECTRON_RESOLUTION: Final = np.array([0.028, 0.037, 0.038, 0.044, 0.10])

#: Energy resolution of the calorimeters by |eta|: relative constant, sampling term [sqrt(GeV)],
#: noise [GeV].
ECAL_EDGES: Final = np.array([1.5, 1.75, 2.15, 3.0])
ECAL_TERMS: Final = np.array(
    [[0.009, 0.12, 0.45], [0.006, 0.20, 0], [0.007, 0.21, 0], [0.008, 0.24, 0], [0.08, 1.98, 0]]
)
HCAL_EDGES: Final = np.array([3.0])
HCAL_TERMS: Final = np.array([[0.05, 1.0, 0], [0.11, 2.8, 0]])
#: Least energy of a tower and of a neutral excess [GeV].
ECAL_MIN: Final = 0.5
HCAL_MIN: Final = 1.0

#: Identification of electrons: rows |eta| up to 1.45, 1.55, 2.0 and 4.0, columns the pT edges above
#: them [GeV].
_IDENTIFIED_ETA: Final = np.array([1.45, 1.55, 2.0])
_IDENTIFIED_PT: Final = np.array([4.0, 6.0, 8.0, 10.0, 30.0, 50.0, 70.0])
_IDENTIFIED: Final = np.array(
    [
        [0, 0.50, 0.70, 0.85, 0.94, 0.97, 0.98, 1.00],
        [0, 0.35, 0.35, 0.35, 0.40, 0.45, 0.45, 0.55],
        [0, 0.75, 0.75, 0.75, 0.85, 0.95, 0.95, 1.00],
        [0, 0.65, 0.65, 0.65, 0.75, 0.90, 0.90, 0.90],
    ]
)
#: Tight identification of muons above 5 GeV, by |eta| up to 2.4 in steps of 0.2 and up to 2.8 in
#: steps of 0.1.
_TIGHT_EDGES: Final = np.array([*np.arange(0.2, 2.41, 0.2), 2.5, 2.6, 2.7, 2.8])
# fmt: off
_TIGHT: Final = np.array([
    0.970, 0.937, 0.990, 0.979, 0.958, 0.977, 0.982, 0.982, 0.979,
    0.985, 0.967, 0.960, 0.859, 0.823, 0.786, 0.758, 0,
])
# fmt: on

#: Transverse momenta of the points of the b-tagging curves [GeV]; jets up to `BTAG_PT` have no tag.
BTAG_PT: Final = 20.0
BTAG_ETA: Final = 3.4
_TAG_PT: Final = np.array([25.0, 35, 45, 55, 75, 110, 150, 190, 275, 375, 450, 650, 1000])
#: Efficiency at |eta| < 1.8 of the loose, medium and tight tag (bits 0, 1 and 2) of jets of bottom
#: (5) and charm (4), and factors from 1.8, 2.4 and 3.0 on.
# fmt: off
_TAGS: Final = {
    5: np.array([
        [0.712, 0.788, 0.837, 0.856, 0.884, 0.883, 0.876, 0.867, 0.831, 0.791, 0.740, 0.631, 0.52],
        [0.528, 0.611, 0.666, 0.701, 0.741, 0.742, 0.711, 0.684, 0.602, 0.488, 0.417, 0.284, 0.19],
        [0.349, 0.435, 0.485, 0.504, 0.537, 0.514, 0.447, 0.373, 0.267, 0.138, 0.101, 0.048, 0.025],
    ]),
    4: np.array([
        [0.341, 0.389, 0.416, 0.432, 0.451, 0.447, 0.430, 0.419, 0.384, 0.353, 0.303, 0.249, 0.20],
        [0.144, 0.173, 0.188, 0.200, 0.210, 0.198, 0.175, 0.157, 0.118, 0.083, 0.062, 0.044, 0.03],
        [0.038, 0.047, 0.046, 0.044, 0.044, 0.034, 0.022, 0.016, 0.009, 0.004, 0.003, 0.002, 0.001],
    ]),
}
# fmt: on
_TAG_ETA: Final = np.array([1.8, 2.4, 3.0])
_TAG_FACTORS: Final = {
    5: np.array([[1, 0.85, 0.68, 0.33], [1, 0.73, 0.50, 0.25], [1, 0.65, 0.35, 0.18]]),
    4: np.array([[1, 0.75, 0.54, 0.27], [1, 0.57, 0.30, 0.15], [1, 0.62, 0.33, 0.16]]),
}
#: Share of other jets that have the loose, medium and tight tag.
_MISTAGS: Final = (0.1, 0.01, 0.001)


def tracking_efficiency(pid: Integers, pt: Floats, eta: Floats) -> Floats:
    """(n,) share of charged particles with a track.

    `pid` are PDG codes, `pt` in GeV, `eta` that at the calorimeter; all (n,). Below 1 GeV the share
    falls in proportion to pT.
    """
    abs_eta = np.abs(eta)
    row = np.searchsorted(_EFFICIENCY_EDGES, abs_eta)
    turn_on = np.minimum(pt, 1.0)
    soft = _HADRONS_BELOW[row] * turn_on
    hadrons = np.where(pt > 1, _HADRONS[row], soft)
    hard_electrons = _ELECTRONS[row]
    growth = _ELECTRON_SLOPE[row] * pt
    medium_electrons = _ELECTRONS_AT_0[row] + growth
    electrons = np.select([pt > 10, pt > 1], [hard_electrons, medium_electrons], soft)
    hard_muons = np.where(abs_eta <= _MUON_ETA, *_MUONS)
    muons = hard_muons * turn_on
    code = np.abs(pid)
    is_electron = code == 11
    is_muon = code == 13
    efficiency = np.select([is_electron, is_muon], [electrons, muons], hadrons)
    is_in_acceptance = (pt > TRACK_PT) & (abs_eta <= TRACKER_ETA)
    return np.where(is_in_acceptance, efficiency, 0.0)


def momentum_resolution(pid: Integers, pt: Floats, eta: Floats) -> Floats:
    """(n,) relative resolution of the momentum of tracks, at most 1; for electrons of the energy.

    The arguments are as for `tracking_efficiency`.
    """
    abs_eta = np.abs(eta)
    last_row = len(_HADRON_CONSTANT) - 1
    row = np.minimum((abs_eta / 0.4).astype(np.int64), last_row)
    hadron_term = _HADRON_SLOPE[row] * pt
    hadrons = np.hypot(_HADRON_CONSTANT[row], hadron_term)
    muon_term = _MUON_SLOPE[row] * pt
    muons = np.hypot(_MUON_CONSTANT[row], muon_term)
    electron_row = np.searchsorted(_ELECTRON_EDGES, abs_eta)
    electrons = _ELECTRON_RESOLUTION[electron_row]
    code = np.abs(pid)
    is_electron = code == 11
    is_muon = code == 13
    resolution = np.select([is_electron, is_muon], [electrons, muons], hadrons)
    capped: Floats = np.minimum(resolution, 1.0)
    return capped


def energy_resolution(energy: Floats, eta: Floats, edges: Floats, terms: Floats) -> Floats:
    """(n,) standard deviation of the energy of towers [GeV].

    It adds in quadrature a constant x E, a sampling term x sqrt(E), and noise. `terms` are these
    three for each range of |eta| between the `edges`, (num_ranges, 3).
    """
    row = np.searchsorted(edges, np.abs(eta))
    constant, sampling, noise = terms[row].T
    constant_variance = np.square(constant * energy)
    sampling_variance = np.square(sampling) * energy
    variance = constant_variance + sampling_variance + np.square(noise)
    sigma: Floats = np.sqrt(variance)
    return sigma


def electron_identification(pt: Floats, eta: Floats) -> Floats:
    """(n,) share of electrons with a track that are identified.

    `eta` is that at the calorimeter, `pt` in GeV.
    """
    abs_eta = np.abs(eta)
    row = np.searchsorted(_IDENTIFIED_ETA, abs_eta)
    column = np.searchsorted(_IDENTIFIED_PT, pt)
    efficiency = _IDENTIFIED[row, column]
    return np.where(abs_eta <= TRACKER_ETA, efficiency, 0.0)


def muon_identification(pt: Floats, eta: Floats) -> Floats:
    """(n,) share of muons with a track that pass the tight identification.

    Up to 5 GeV it is 1, as in the card of Delphes.
    """
    row = np.searchsorted(_TIGHT_EDGES, np.abs(eta))
    return np.where(pt <= 5, 1.0, _TIGHT[row])


def tag_efficiency(flavour: Integers, pt: Floats, eta: Floats, bit: int) -> Floats:
    """(num_jets,) share of jets with the loose (bit 0), medium (1) or tight (2) b-tag.

    `flavour` is 5 for bottom, 4 for charm, 0 for all others. The curve in pT is interpolated, and
    multiplied by a factor of the range in |eta|.
    """
    abs_eta = np.abs(eta)
    row = np.searchsorted(_TAG_ETA, abs_eta)
    efficiency = np.full(len(pt), _MISTAGS[bit])
    for code, curves in _TAGS.items():
        curve = np.interp(pt, _TAG_PT, curves[bit])
        factors = _TAG_FACTORS[code][bit]
        efficiency_of_code = curve * factors[row]
        efficiency = np.where(flavour == code, efficiency_of_code, efficiency)
    is_in_acceptance = (pt > BTAG_PT) & (abs_eta <= BTAG_ETA)
    return np.where(is_in_acceptance, efficiency, 0.0)


def lognormal(mean: Floats, sigma: Floats, rng: np.random.Generator) -> Floats:
    """Draw (n,) log-normal numbers of a mean and standard deviation; 0 where the mean is 0.

    They are never negative, unlike those of a Gaussian.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        relative_variance = np.square(sigma / mean)
        width = np.sqrt(np.log1p(relative_variance))
        # The mean of a log-normal distribution is above its median, exp(log_median).
        log_median = np.log(mean) - 0.5 * width**2
        deviations = width * rng.standard_normal(len(mean))
        numbers = np.exp(log_median + deviations)
        return np.where(mean > 0, numbers, 0.0)
