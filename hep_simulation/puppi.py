"""Pile-up per particle identification (PUPPI): weights of candidates, from charged ones nearby.

After Bertolini, Harris, Low and Tran (JHEP 10 (2014) 059). Charged candidates of the hard collision
have weight 1, those of pile-up 0. A neutral candidate's metric is the logarithm of the sum of
(pT / Delta R)^2 of charged candidates of the hard collision in a cone (forward: all candidates). It
is compared with its median over charged candidates.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from hep_simulation.particles import Floats, Integers, compiled

#: Radius of the cone around a candidate, in eta and phi.
_CONE: Final = 0.2
#: Nearer candidates are the candidate itself.
_CORE: Final = 0.01
#: Smaller weights become 0.
_MIN_WEIGHT: Final = 0.05
#: Share of the collisions that are found as vertices, for the thresholds of neutral candidates.
_VERTEX_EFFICIENCY: Final = 0.7


class _Region(NamedTuple):
    """A range in |eta| with its own parameters of PUPPI."""

    min_eta: float
    """Limits in |eta|."""
    max_eta: float
    min_pt: float
    """Least pT of the candidates that make the median [GeV]."""
    threshold: float
    """Least weighted pT of a neutral candidate without pile-up [GeV]."""
    slope: float
    """Growth of the threshold per vertex [GeV]."""
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
    """For charged candidates only."""

    def select(self, rows: Integers | NDArray[np.bool_]) -> Flowing:
        """Some of the candidates."""
        return Flowing._make(column[rows] for column in self)


def puppi_weights(candidates: Flowing, num_vertices: Integers) -> Floats:
    """(n,) weights from 0 to 1 of candidates; `num_vertices` (num_events,) counts the collisions.

    Charged candidates have 1 or 0. Of a neutral one, the metric is compared with its median and
    spread over the event; a weighted pT below a threshold, which grows with the number of vertices,
    gives 0.
    """
    is_hard = candidates.is_charged & ~candidates.is_pile_up
    weights = np.where(is_hard, 1.0, 0.0)
    num_found_vertices = np.floor(_VERTEX_EFFICIENCY * num_vertices)
    abs_eta = np.abs(candidates.eta)
    for region in _REGIONS:
        is_in_region = (abs_eta >= region.min_eta) & (abs_eta < region.max_eta)
        rows = np.flatnonzero(is_in_region)
        # Sources beyond the edge of the region count if their cone may reach into it.
        inside = candidates.select(rows)
        is_source = is_hard if region.charged else abs_eta >= region.min_eta - _CONE
        sources = candidates.select(is_source)
        metric = _metric(inside, sources)
        median, spread = _pile_up_level(inside, metric, region, len(num_vertices))
        event_median = median[inside.event]
        event_spread = spread[inside.event]
        weight = _weight(metric, event_median, event_spread)
        thresholds = region.threshold + region.slope * num_found_vertices
        is_soft = weight * inside.pt < thresholds[inside.event]
        weight[is_soft] = 0.0
        is_neutral = ~inside.is_charged
        weights[rows[is_neutral]] = weight[is_neutral]
    return weights


def _metric(candidates: Flowing, sources: Flowing) -> Floats:
    """(n,) logarithm of the sum of (pT / Delta R)^2 of the sources in the cone; 0 without any.

    `sources` are the candidates that count in the sums.
    """
    by_event_and_eta = np.lexsort([sources.eta, sources.event])
    sources = sources.select(by_event_and_eta)
    last_event = max(candidates.event.max(initial=0), sources.event.max(initial=0))
    offsets = np.searchsorted(sources.event, np.arange(last_event + 2))
    event, _, eta, phi, *_ = candidates
    source_pt2 = np.square(sources.pt)
    sums = _cone_sums(event, eta, phi, offsets, sources.eta, sources.phi, source_pt2)
    with np.errstate(divide="ignore"):
        return np.where(sums > 0, np.log(sums), 0.0)


@compiled
def _cone_sums(
    event: Integers,
    eta: Floats,
    phi: Floats,
    source_offsets: Integers,
    source_eta: Floats,
    source_phi: Floats,
    source_pt2: Floats,
) -> Floats:
    """(n,) sums of (pT / Delta R)^2 of the sources in the cone around each candidate.

    The sources of event i are `source_offsets[i]:source_offsets[i + 1]`, in order of eta, so that
    only those within the cone in eta are compared. `source_pt2` are squared pT [GeV^2].
    """
    sums = np.zeros(len(event))
    for i in range(len(event)):
        source = source_offsets[event[i]]
        end = source_offsets[event[i] + 1]
        min_eta = eta[i] - _CONE
        max_eta = eta[i] + _CONE
        # Sources of smaller eta are skipped; the loop ends at those of larger eta.
        source += np.searchsorted(source_eta[source:end], min_eta)
        while source < end and source_eta[source] <= max_eta:
            delta_eta = eta[i] - source_eta[source]
            delta_phi = abs(phi[i] - source_phi[source])
            delta_phi = min(delta_phi, 2 * np.pi - delta_phi)
            distance2 = delta_eta**2 + delta_phi**2
            if _CORE**2 <= distance2 < _CONE**2:
                sums[i] += source_pt2[source] / distance2
            source += 1
    return sums


def _pile_up_level(
    candidates: Flowing, metric: Floats, region: _Region, num_events: int
) -> tuple[Floats, Floats]:
    """Median and spread of the metric in each event, (num_events,) each, as the level of pile-up.

    They are taken over the candidates of the region above its `min_pt`; only charged ones where the
    region uses these.
    """
    is_used = candidates.pt >= region.min_pt
    if region.charged:
        is_used &= candidates.is_charged
    event = candidates.event[is_used]
    metric = metric[is_used]
    order = np.lexsort([metric, event])
    sorted_event = event[order]
    offsets = np.searchsorted(sorted_event, np.arange(num_events + 1))
    return _medians(offsets, metric[order])


@compiled
def _medians(offsets: Integers, metric: Floats) -> tuple[Floats, Floats]:
    """Median of the metrics of each event that are not zero, and the spread below it.

    The spread is the root mean square distance from the median of the metrics not above it. An
    event without candidates has the median NaN. The metrics of event i are
    `metric[offsets[i]:offsets[i + 1]]`, in rising order.
    """
    num_events = len(offsets) - 1
    medians = np.full(num_events, np.nan)
    spreads = np.ones(num_events)
    for event in range(num_events):
        start = offsets[event]
        stop = offsets[event + 1]
        metrics = metric[start:stop]
        if len(metrics) == 0:
            continue
        # A candidate of metric zero has no neighbour. The median is taken from the last zero on.
        num_not_positive = int(np.sum(metrics <= 0.0))
        num_skipped = max(num_not_positive - 1, 0)
        if metrics[num_skipped] != 0:
            num_skipped = 0
        num_counted = len(metrics) - num_skipped
        median = metrics[num_skipped + int(num_counted * 0.5)]
        medians[event] = median
        spreads[event] = _spread_below(metrics, median)
    return medians, spreads


@compiled
def _spread_below(metrics: Floats, median: float) -> float:
    """Root mean square distance from the median of the metrics not above it, but for zeros."""
    squares = 0.0
    count = 0
    for metric in metrics:
        if metric != 0 and metric <= median:
            squares += (metric - median) ** 2
            count += 1
    mean_square = squares / count if squares > 0 else 1e-5
    spread: float = np.sqrt(mean_square)
    return spread


def _weight(metric: Floats, median: Floats, spread: Floats) -> Floats:
    """(n,) probability that a candidate is not pile-up, from its metric beyond the median.

    The distance above the median, in units of the spread, is taken as Gaussian. An event without a
    median gives 1.
    """
    # A metric of 0 means no neighbour, and shows nothing.
    distance = np.where(metric == 0, 0.0, metric - median)
    significance = distance / spread
    probability = erf(np.abs(significance) / np.sqrt(2))
    weight = np.where(significance > 0, probability, 0.0)
    weight[weight < _MIN_WEIGHT] = 0.0
    weight[np.isnan(median)] = 1.0
    return weight
