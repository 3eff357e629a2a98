"""Anti-kt jets of weighted candidates, their flavour from generated quarks, and b-tags."""

from __future__ import annotations

from typing import Final, NamedTuple

import awkward as ak
import numpy as np

from hep_simulation import parameters
from hep_simulation.generator import HeavyQuarks
from hep_simulation.particles import Floats, Integers, event_offsets, wrapped
from ingestion.thresholds import Jagged

#: Radius parameter R of anti-kt.
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

    def select(self, rows: Integers) -> FoundJets:
        """Some of the jets, or all in another order."""
        return FoundJets._make(column[rows] for column in self)


def find_jets(event: Integers, pt: Floats, eta: Floats, phi: Floats, num_events: int) -> FoundJets:
    """Cluster (n,) massless candidates to jets above 15 GeV, with anti-kt, R = 0.4.

    `event` is the index of the event of each candidate, in rising order; events are clustered
    separately. pT is in GeV.
    """
    import fastjet  # noqa: PLC0415 - the extra `simulate`

    px = pt * np.cos(phi)
    py = pt * np.sin(phi)
    pz = pt * np.sinh(eta)
    energy = pt * np.cosh(eta)
    momenta = {"px": px, "py": py, "pz": pz, "E": energy}
    offsets = event_offsets(event, num_events)
    candidates = Jagged(offsets, momenta).to_awkward()
    # The library below fastjet prints a banner at its first clustering.
    fastjet._swig.ClusterSequence.set_fastjet_banner_stream(None)
    definition = fastjet.JetDefinition(fastjet.antikt_algorithm, RADIUS)
    sequence = fastjet.ClusterSequence(candidates, definition)
    jets = sequence.inclusive_jets(min_pt=MIN_PT)

    num_jets = ak.to_numpy(ak.num(jets, axis=1))
    jet_event = np.repeat(np.arange(num_events), num_jets)
    jet_px = ak.to_numpy(ak.flatten(jets["px"]))
    jet_py = ak.to_numpy(ak.flatten(jets["py"]))
    jet_pz = ak.to_numpy(ak.flatten(jets["pz"]))
    jet_pt = np.hypot(jet_px, jet_py)
    jet_eta = np.arcsinh(jet_pz / jet_pt)
    jet_phi = np.arctan2(jet_py, jet_px)
    order = np.lexsort([-jet_pt, jet_event])
    return FoundJets(jet_event, jet_pt, jet_eta, jet_phi).select(order)


def jet_flavours(jets: FoundJets, quarks: HeavyQuarks) -> Integers:
    """(num_jets,) 5 for a jet with a bottom quark in the cone, 4 with a charm quark, else 0.

    All pairs of jets and quarks of the same event are compared; a jet takes the highest flavour.
    """
    is_central = np.abs(quarks.eta) < _FLAVOUR_ETA
    quarks = HeavyQuarks._make(column[is_central] for column in quarks)
    jet, quark = _pairs_of_same_event(jets.event, quarks.event)
    delta_eta = jets.eta[jet] - quarks.eta[quark]
    delta_phi = wrapped(jets.phi[jet] - quarks.phi[quark])
    distance = np.hypot(delta_eta, delta_phi)
    in_cone = distance < _FLAVOUR_CONE
    jet_with_quark = jet[in_cone]
    quark_in_cone = quark[in_cone]
    quark_flavours = quarks.flavour[quark_in_cone]
    flavours = np.zeros(len(jets.pt), np.int64)
    np.maximum.at(flavours, jet_with_quark, quark_flavours)
    return flavours


def _pairs_of_same_event(jet_event: Integers, quark_event: Integers) -> tuple[Integers, Integers]:
    """Return the indices of jet and quark, (num_pairs,) each, of all pairs in the same event.

    `jet_event` (num_jets,) is in increasing order, `quark_event` (num_quarks,) need not be.
    """
    last_event = max(jet_event.max(initial=0), quark_event.max(initial=0))
    num_events = last_event + 1
    num_jets = np.bincount(jet_event, minlength=num_events)
    num_quarks = np.bincount(quark_event, minlength=num_events)
    jets = np.arange(len(jet_event))
    quarks = np.argsort(quark_event, kind="stable")
    jets_in_event = ak.unflatten(jets, num_jets)
    quarks_in_event = ak.unflatten(quarks, num_quarks)
    pairs_in_event = ak.cartesian({"jet": jets_in_event, "quark": quarks_in_event})
    pairs = ak.flatten(pairs_in_event)
    return ak.to_numpy(pairs.jet), ak.to_numpy(pairs.quark)


def b_tags(jets: FoundJets, flavour: Integers, rng: np.random.Generator) -> Integers:
    """(num_jets,) bits of the loose (0), medium (1) and tight (2) tag, drawn independently.

    `flavour` (num_jets,) is 5, 4, or 0 for all others.
    """
    num_jets = len(jets.pt)
    tags = np.zeros(num_jets, np.int64)
    for bit in range(3):
        efficiency = parameters.tag_efficiency(flavour, jets.pt, jets.eta, bit)
        is_tagged = rng.random(num_jets) < efficiency
        tags |= is_tagged.astype(np.int64) << bit
    return tags
