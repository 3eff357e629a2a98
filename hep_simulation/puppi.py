"""Pile-up per particle identification (PUPPI): weights of candidates by the hard collision's charged particles nearby.

After Bertolini, Harris, Low and Tran (JHEP 10 (2014) 059). Charged candidates of the hard collision have weight 1,
those of pile-up 0. A neutral candidate's metric is the logarithm of the sum of (pT / Delta R)^2 of charged candidates
of the hard collision in a cone (forward: all candidates). It is compared with its median over charged candidates.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from hep_simulation.particles import Floats, Integers, compiled

_CONE: Final = 0.2
_CORE: Final = 0.01
_LEAST_WEIGHT: Final = 0.05
#: Share of the collisions that are found as vertices, for the thresholds of neutral candidates.
_FOUND_VERTICES: Final = 0.7


class _Region(NamedTuple):
    low: float
    high: float
    min_pt: float
    """Least pT of the candidates that make the median [GeV]."""
    threshold: float
    """Least weighted pT of a neutral candidate without pile-up [GeV], and its growth per vertex."""
    slope: float
    charged: bool
    """Whether the metric and its median use charged candidates only."""


_REGIONS: Final = (
    _Region(0.0, 1.5, 0.1, 0.2, 0.006, charged=True),
    _Region(1.5, 4.0, 0.5, 0.2, 0.013, charged=True),
    _Region(4.0, 10.0, 0.5, 0.5, 0.067, charged=False),
)


class Flowing(NamedTuple):
    """Candidates of energy flow without leptons, in order of the events; all (n,)."""

    event: Integers
    pt: Floats
    eta: Floats
    phi: Floats
    is_charged: NDArray[np.bool_]
    is_pile_up: NDArray[np.bool_]
    """Of charged candidates only."""


def puppi_weights(candidates: Flowing, num_vertices: Integers) -> Floats:
    """Weights from 0 to 1; (n,)."""
    event, pt, eta, phi, is_charged, is_pile_up = candidates
    weights = np.where(is_charged & ~is_pile_up, 1.0, 0.0)
    found = np.floor(_FOUND_VERTICES * num_vertices)
    hard = np.flatnonzero(is_charged & ~is_pile_up)
    for region in _REGIONS:
        inside = np.flatnonzero((np.abs(eta) >= region.low) & (np.abs(eta) < region.high))
        sources = hard if region.charged else np.flatnonzero(np.abs(eta) >= region.low - _CONE)
        value = _metric(
            *(column[inside] for column in (event, eta, phi)),
            *(column[sources] for column in (event, eta, phi, pt)),
        )
        of_median = (pt[inside] >= region.min_pt) & (is_charged[inside] | (not region.charged))
        of_event, values = event[inside][of_median], value[of_median]
        order = np.lexsort([values, of_event])
        edges = np.searchsorted(of_event[order], np.arange(len(num_vertices) + 1))
        median, spread = _medians(edges, values[order])
        near = event[inside]
        # Without a neighbour the metric says nothing.
        away = np.where(value == 0, 0.0, value - median[near]) / spread[near]
        weight = np.where(away > 0, erf(np.abs(away) / np.sqrt(2)), 0.0)
        weight[weight < _LEAST_WEIGHT] = 0.0
        weight[np.isnan(median[near])] = 1.0
        neutral = ~is_charged[inside]
        threshold = region.threshold + region.slope * found[near]
        weight[weight * pt[inside] < threshold] = 0.0
        weights[inside[neutral]] = weight[neutral]
    return weights


def _metric(
    event: Integers,
    eta: Floats,
    phi: Floats,
    near_event: Integers,
    near_eta: Floats,
    near_phi: Floats,
    near_pt: Floats,
) -> Floats:
    """Logarithm of the sum of (pT / Delta R)^2 of the sources in the cone around each candidate; 0 without any."""
    order = np.lexsort([near_eta, near_event])
    near_event, near_eta, near_phi, near_pt = (
        column[order] for column in (near_event, near_eta, near_phi, near_pt)
    )
    last = max(event.max(initial=0), near_event.max(initial=0))
    edges = np.searchsorted(near_event, np.arange(last + 2))
    sums = _sums(event, eta, phi, edges, near_eta, near_phi, np.square(near_pt))
    with np.errstate(divide="ignore"):
        return np.where(sums > 0, np.log(sums), 0.0)


@compiled
def _sums(
    event: Integers,
    eta: Floats,
    phi: Floats,
    edges: Integers,
    near_eta: Floats,
    near_phi: Floats,
    near_pt2: Floats,
) -> Floats:
    """Sums of (pT / Delta R)^2; the sources of each event lie between two edges, in order of eta."""
    sums = np.zeros(len(event))
    for place in range(len(event)):
        source, end = edges[event[place]], edges[event[place] + 1]
        source += np.searchsorted(near_eta[source:end], eta[place] - _CONE)
        while source < end and near_eta[source] <= eta[place] + _CONE:
            dphi = abs(phi[place] - near_phi[source])
            dphi = min(dphi, 2 * np.pi - dphi)
            distance = (eta[place] - near_eta[source]) ** 2 + dphi**2
            if _CORE**2 <= distance < _CONE**2:
                sums[place] += near_pt2[source] / distance
            source += 1
    return sums


@compiled
def _medians(edges: Integers, value: Floats) -> tuple[Floats, Floats]:
    """Median of the metric in each event, of those that are not zero, and the spread below it; NaN without any.

    The values of each event lie between two edges, in order.
    """
    num_events = len(edges) - 1
    median, spread = np.full(num_events, np.nan), np.ones(num_events)
    for number in range(num_events):
        values = value[edges[number] : edges[number + 1]]
        if len(values) == 0:
            continue
        # Without a neighbour the metric is zero; the median is that of what comes from the last zero on.
        last_zero: int = max(np.searchsorted(values, 0.0, "right") - 1, 0)  # type: ignore[assignment]
        skipped = last_zero if values[last_zero] == 0 else 0
        middle = values[skipped + int((len(values) - skipped) * 0.5)]
        square, count = 0.0, 0
        for each in values:
            if each != 0 and each <= middle:
                square, count = square + (each - middle) ** 2, count + 1
        median[number] = middle
        spread[number] = np.sqrt(square / count) if square > 0 else np.sqrt(1e-5)
    return median, spread
