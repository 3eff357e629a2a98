"""Parameters of the fast detector: efficiencies and resolutions as functions of pT, eta and energy.

The numbers follow the published Delphes parametrisation of CMS for the High-Luminosity LHC (tracker up to |eta| = 4,
endcaps of high granularity). Tables there in narrow bins are shortened to a few numbers here. docs/simulation.md says
where the samples agree.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hep_simulation.particles import Floats, Integers

#: Highest |eta| of tracks, and lowest pT [GeV].
TRACKER_ETA: Final = 4.0
TRACK_PT: Final = 0.2

#: Edges in |eta| and efficiencies of the tracker above 1 GeV: charged hadrons, electrons above 10 GeV, muons.
_EFFICIENCY_EDGES: Final = np.array([1.2, 2.5])
_HADRONS: Final = np.array([0.97, 0.87, 0.82])
_HADRONS_BELOW: Final = np.array([0.96, 0.85, 0.80])
_ELECTRONS: Final = np.array([0.97, 0.90, 0.85])
_ELECTRON_SLOPE: Final = np.array([0.0, 0.01, 0.01])
_ELECTRONS_AT_0: Final = np.array([0.97, 0.82, 0.80])
_MUON_ETA: Final = 2.8
_MUONS: Final = (1.0, 0.95)

#: Momentum resolution of charged hadrons: constant and slope [1/GeV], added in quadrature, in steps of 0.4 in |eta|.
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

#: Energy resolution of the calorimeters by |eta|: relative constant, sampling term [sqrt(GeV)], noise [GeV].
ECAL_EDGES: Final = np.array([1.5, 1.75, 2.15, 3.0])
ECAL_TERMS: Final = np.array(
    [[0.009, 0.12, 0.45], [0.006, 0.20, 0], [0.007, 0.21, 0], [0.008, 0.24, 0], [0.08, 1.98, 0]]
)
HCAL_EDGES: Final = np.array([3.0])
HCAL_TERMS: Final = np.array([[0.05, 1.0, 0], [0.11, 2.8, 0]])
#: Least energy of a tower and of a neutral excess [GeV].
ECAL_MIN: Final = 0.5
HCAL_MIN: Final = 1.0

#: Identification of electrons: rows |eta| up to 1.45, 1.55, 2.0 and 4.0, columns the pT edges above them [GeV].
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
#: Tight identification of muons above 5 GeV, by |eta| up to 2.4 in steps of 0.2 and up to 2.8 in steps of 0.1.
_TIGHT_EDGES: Final = np.array([*np.arange(0.2, 2.41, 0.2), 2.5, 2.6, 2.7, 2.8])
_TIGHT: Final = np.array(
    [
        0.970,
        0.937,
        0.990,
        0.979,
        0.958,
        0.977,
        0.982,
        0.982,
        0.979,
        0.985,
        0.967,
        0.960,
        0.859,
        0.823,
        0.786,
        0.758,
        0,
    ]
)

#: Transverse momenta of the points of the b-tagging curves [GeV]; jets up to `BTAG_PT` have no tag.
BTAG_PT: Final = 20.0
BTAG_ETA: Final = 3.4
_TAG_PT: Final = np.array([25.0, 35, 45, 55, 75, 110, 150, 190, 275, 375, 450, 650, 1000])
#: Efficiency at |eta| < 1.8 of the loose, medium and tight tag (bits 0, 1 and 2), and factors from 1.8, 2.4 and 3.0 on.
_TAGS: Final = {
    5: np.array(
        [
            [
                0.712,
                0.788,
                0.837,
                0.856,
                0.884,
                0.883,
                0.876,
                0.867,
                0.831,
                0.791,
                0.740,
                0.631,
                0.52,
            ],
            [
                0.528,
                0.611,
                0.666,
                0.701,
                0.741,
                0.742,
                0.711,
                0.684,
                0.602,
                0.488,
                0.417,
                0.284,
                0.19,
            ],
            [
                0.349,
                0.435,
                0.485,
                0.504,
                0.537,
                0.514,
                0.447,
                0.373,
                0.267,
                0.138,
                0.101,
                0.048,
                0.025,
            ],
        ]
    ),
    4: np.array(
        [
            [
                0.341,
                0.389,
                0.416,
                0.432,
                0.451,
                0.447,
                0.430,
                0.419,
                0.384,
                0.353,
                0.303,
                0.249,
                0.20,
            ],
            [
                0.144,
                0.173,
                0.188,
                0.200,
                0.210,
                0.198,
                0.175,
                0.157,
                0.118,
                0.083,
                0.062,
                0.044,
                0.03,
            ],
            [
                0.038,
                0.047,
                0.046,
                0.044,
                0.044,
                0.034,
                0.022,
                0.016,
                0.009,
                0.004,
                0.003,
                0.002,
                0.001,
            ],
        ]
    ),
}
_TAG_ETA: Final = np.array([1.8, 2.4, 3.0])
_TAG_FACTORS: Final = {
    5: np.array([[1, 0.85, 0.68, 0.33], [1, 0.73, 0.50, 0.25], [1, 0.65, 0.35, 0.18]]),
    4: np.array([[1, 0.75, 0.54, 0.27], [1, 0.57, 0.30, 0.15], [1, 0.62, 0.33, 0.16]]),
}
_MISTAGS: Final = (0.1, 0.01, 0.001)


def tracking_efficiency(pid: Integers, pt: Floats, eta: Floats) -> Floats:
    """Share of charged particles with a track; |eta| at the calorimeter."""
    size = np.abs(eta)
    row = np.searchsorted(_EFFICIENCY_EDGES, size)
    below = np.minimum(pt, 1.0)
    hadrons = np.where(pt > 1, _HADRONS[row], _HADRONS_BELOW[row] * below)
    electrons = np.where(
        pt > 10,
        _ELECTRONS[row],
        np.where(
            pt > 1, _ELECTRONS_AT_0[row] + _ELECTRON_SLOPE[row] * pt, _HADRONS_BELOW[row] * below
        ),
    )
    muons = np.where(size <= _MUON_ETA, *_MUONS) * below
    code = np.abs(pid)
    found = np.select([code == 11, code == 13], [electrons, muons], hadrons)
    return np.where((pt > TRACK_PT) & (size <= TRACKER_ETA), found, 0.0)


def momentum_resolution(pid: Integers, pt: Floats, eta: Floats) -> Floats:
    """Relative resolution of the momentum of tracks; for electrons of the energy."""
    size = np.abs(eta)
    row = np.minimum((size / 0.4).astype(np.int64), len(_HADRON_CONSTANT) - 1)
    hadrons = np.hypot(_HADRON_CONSTANT[row], _HADRON_SLOPE[row] * pt)
    muons = np.hypot(_MUON_CONSTANT[row], _MUON_SLOPE[row] * pt)
    electrons = _ELECTRON_RESOLUTION[np.searchsorted(_ELECTRON_EDGES, size)]
    code = np.abs(pid)
    found: Floats = np.minimum(
        np.select([code == 11, code == 13], [electrons, muons], hadrons), 1.0
    )
    return found


def energy_resolution(energy: Floats, eta: Floats, edges: Floats, terms: Floats) -> Floats:
    """Standard deviation of the energy of a tower [GeV]."""
    constant, sampling, noise = terms[np.searchsorted(edges, np.abs(eta))].T
    sigma: Floats = np.sqrt(
        np.square(constant * energy) + np.square(sampling) * energy + np.square(noise)
    )
    return sigma


def electron_identification(pt: Floats, eta: Floats) -> Floats:
    """Share of electrons with a track that are identified; |eta| at the calorimeter."""
    size = np.abs(eta)
    found = _IDENTIFIED[np.searchsorted(_IDENTIFIED_ETA, size), np.searchsorted(_IDENTIFIED_PT, pt)]
    return np.where(size <= TRACKER_ETA, found, 0.0)


def muon_identification(pt: Floats, eta: Floats) -> Floats:
    """Share of muons with a track that pass the tight identification; below 5 GeV it is set to 1, as in the card."""
    return np.where(pt <= 5, 1.0, _TIGHT[np.searchsorted(_TIGHT_EDGES, np.abs(eta))])


def tag_efficiency(flavour: Integers, pt: Floats, eta: Floats, bit: int) -> Floats:
    """Share of jets of a flavour (5, 4, or 0 for all others) with the loose (bit 0), medium or tight b-tag."""
    size = np.abs(eta)
    row = np.searchsorted(_TAG_ETA, size)
    found = np.full(len(pt), _MISTAGS[bit])
    for code, curves in _TAGS.items():
        curve = np.interp(pt, _TAG_PT, curves[bit]) * _TAG_FACTORS[code][bit][row]
        found = np.where(flavour == code, curve, found)
    return np.where((pt > BTAG_PT) & (size <= BTAG_ETA), found, 0.0)


def lognormal(mean: Floats, sigma: Floats, rng: np.random.Generator) -> Floats:
    """Numbers of a mean and a standard deviation that are never negative; 0 where the mean is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        width = np.sqrt(np.log1p(np.square(sigma / mean)))
        drawn = np.exp(np.log(mean) - 0.5 * width**2 + width * rng.standard_normal(len(mean)))
    found: NDArray[np.float64] = np.where(mean > 0, drawn, 0.0)
    return found
