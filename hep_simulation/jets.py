"""Anti-kt jets of weighted candidates, their flavour from generated quarks, and b-tags."""

from __future__ import annotations

from typing import Final, NamedTuple

import awkward as ak
import numpy as np

from hep_simulation import parameters
from hep_simulation.generator import HeavyQuarks
from hep_simulation.particles import Floats, Integers, wrapped
from ingestion.thresholds import Jagged

RADIUS: Final = 0.4
#: Least pT of a jet [GeV].
MIN_PT: Final = 15.0
#: Largest distance of a quark that gives a jet its flavour, and its largest |eta|.
_FLAVOUR_CONE: Final = 0.5
_FLAVOUR_ETA: Final = 4.0


class FoundJets(NamedTuple):
    """Jets of a block of events, in order of the events and of falling pT."""

    event: Integers
    pt: Floats
    eta: Floats
    phi: Floats


def find_jets(event: Integers, pt: Floats, eta: Floats, phi: Floats, num_events: int) -> FoundJets:
    """Cluster (n,) massless candidates with anti-kt, R = 0.4; `event` is the number of each one's event, rising."""
    import fastjet  # noqa: PLC0415 - the extra `simulate`

    offsets = np.concatenate([[0], np.cumsum(np.bincount(event, minlength=num_events))])
    columns = {
        "px": pt * np.cos(phi),
        "py": pt * np.sin(phi),
        "pz": pt * np.sinh(eta),
        "E": pt * np.cosh(eta),
    }
    # Of the library below, which prints a banner at its first clustering.
    fastjet._swig.ClusterSequence.set_fastjet_banner_stream(None)
    listed = Jagged(offsets, columns).to_awkward()
    sequence = fastjet.ClusterSequence(
        listed, fastjet.JetDefinition(fastjet.antikt_algorithm, RADIUS)
    )
    jets = sequence.inclusive_jets(min_pt=MIN_PT)
    counts = ak.to_numpy(ak.num(jets, axis=1))
    flat = ak.flatten(jets)
    px, py, pz = (ak.to_numpy(flat[name]) for name in ("px", "py", "pz"))
    of_event, found = np.repeat(np.arange(num_events), counts), np.hypot(px, py)
    order = np.lexsort([-found, of_event])
    return FoundJets(
        of_event[order],
        found[order],
        np.arcsinh(pz[order] / found[order]),
        np.arctan2(py[order], px[order]),
    )


def flavours(jets: FoundJets, quarks: HeavyQuarks) -> Integers:
    """5 for jets with a bottom quark within the cone, else 4 with a charm quark, else 0; (num_jets,)."""
    found = np.zeros(len(jets.pt), np.int64)
    near = np.flatnonzero(np.abs(quarks.eta) < _FLAVOUR_ETA)
    order = near[np.argsort(quarks.event[near], kind="stable")]
    event, flavour, eta, phi = (column[order] for column in quarks)
    low, high = np.searchsorted(event, jets.event), np.searchsorted(event, jets.event + 1)
    counts = high - low
    jet = np.repeat(np.arange(len(jets.pt)), counts)
    ends = np.cumsum(counts)
    quark = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts) + low[jet]
    inside = (
        np.hypot(jets.eta[jet] - eta[quark], wrapped(jets.phi[jet] - phi[quark])) < _FLAVOUR_CONE
    )
    np.maximum.at(found, jet[inside], flavour[quark[inside]])
    return found


def b_tags(jets: FoundJets, flavour: Integers, rng: np.random.Generator) -> Integers:
    """Bits of the loose (0), medium (1) and tight (2) tag, drawn independently of each other; (num_jets,)."""
    tags = np.zeros(len(jets.pt), np.int64)
    for bit in range(3):
        drawn = rng.random(len(jets.pt)) < parameters.tag_efficiency(
            flavour, jets.pt, jets.eta, bit
        )
        tags |= drawn.astype(np.int64) << bit
    return tags
