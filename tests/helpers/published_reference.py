"""Slow features of one event as CERN's published notebook computed them, mistakes included.

Written from a description of `1-DataIngestion.ipynb` and `utilFunctions.py` of SparkDLTrigger. Only loops, `math` and
Python floats (double precision). Nothing here is shared with the `features` package; of `reference_features`, the
reference of the correct definitions, only the particles and the names of their columns.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from reference_features import CANDIDATES, Candidates, Features, Particle, particle_row, particles

CONE = 0.3
MIN_LEPTON_PT = 23.0
MAX_LEPTON_ISOLATION = 0.45
OWN_TRACK_DR = 1e-4
MIN_JET_PT = 30.0
MAX_JET_ABS_ETA = 2.6

Outcome = Literal[
    "selected", "rejected_lacks_a_kind", "rejected_no_lepton_in_acceptance", "rejected_no_isolated_lepton"
]


class Published(NamedTuple):
    """What the notebook made of one event; nothing if it was rejected."""

    outcome: Outcome
    hlf: dict[str, float]
    rows: list[dict[str, float]]


def published_event(event: dict[str, Any]) -> Published:
    """Features of one event, a row of the events Parquet as `table.to_pylist()` gives it: lepton first, no padding."""
    candidates = {name: particles(event, name) for name in CANDIDATES}
    if not all(candidates.values()):
        return Published("rejected_lacks_a_kind", {}, [])
    lepton = selected_lepton(event, candidates)
    if lepton is None:
        some = any(row["pt"] > MIN_LEPTON_PT for row in (*event["electrons"], *event["muons"]))
        return Published("rejected_no_isolated_lepton" if some else "rejected_no_lepton_in_acceptance", {}, [])
    return Published("selected", high_level(event, lepton, candidates), particle_rows(event, lepton, candidates))


def isolation(at: Particle, candidates: Candidates) -> Features:
    """Relative pT in the cone; the difference of the angles is wrapped only beyond 2 pi, so the seam is a wall.

    The same for every particle: itself counted wherever it is listed, one taken off the charged sum.
    """
    found = {}
    for name, others in candidates.items():
        total = 0.0
        for other in others:
            deta = other.eta - at.eta
            dphi = other.phi - at.phi
            if dphi > 2.0 * math.pi:
                dphi -= 2.0 * math.pi
            elif dphi < -2.0 * math.pi:
                dphi += 2.0 * math.pi
            if dphi * dphi + deta * deta < CONE * CONE:
                total += other.pt
        found[CANDIDATES[name][3]] = total / at.pt
    found["iso_charged"] -= 1.0
    return found


def selected_lepton(event: dict[str, Any], candidates: Candidates) -> Particle | None:
    """The first passing electron or the first passing muon, whichever has the larger eta; of equals the muon.

    They pass in file order, above threshold and isolated.
    """
    electron, muon = (
        next(
            (
                each
                for each in particles(event, name)
                if each.pt > MIN_LEPTON_PT and sum(isolation(each, candidates).values()) < MAX_LEPTON_ISOLATION
            ),
            None,
        )
        for name in ("electrons", "muons")
    )
    if electron is None or muon is None:
        return electron or muon
    return electron if electron.eta > muon.eta else muon


def high_level(event: dict[str, Any], lepton: Particle, candidates: Candidates) -> Features:
    """The high-level features by name."""
    jets = [jet for jet in event["jets"] if jet["pt"] > MIN_JET_PT and abs(jet["eta"]) < MAX_JET_ABS_ETA]
    met, met_phi = event["met"], event["met_phi"]
    return {
        "ht": sum(jet["pt"] for jet in jets),
        "met": met,
        "met_phi": met_phi,
        # The square of the transverse mass.
        "mt": 2.0 * met * lepton.pt * (1.0 - math.cos(lepton.phi - met_phi)),
        "num_jets": float(len(jets)),
        "num_bjets": float(sum(jet["btag"] > 0 for jet in jets)),
        **{f"lepton_{name}": getattr(lepton, name) for name in ("pt", "eta", "phi", "charge")},
        **{f"lepton_{name}": value for name, value in isolation(lepton, candidates).items()},
        "lepton_is_electron": float(lepton.collection == "electrons"),
    }


def particle_rows(event: dict[str, Any], lepton: Particle, candidates: Candidates) -> list[Features]:
    """The lepton, the first tracks but its own, the first photons, the first neutral hadrons."""
    rows = [lepton]
    for name, (most, *_) in CANDIDATES.items():
        listed = candidates[name]
        if name == "tracks":
            # The charge is that of the particle's number, which is wrong for leptons.
            signs = [math.copysign(1.0, row["pid"]) if row["pid"] else 0.0 for row in event["tracks"]]
            charged = [at._replace(charge=sign) for at, sign in zip(listed, signs, strict=True)]
            listed = [at for at in charged if distance(lepton, at) > OWN_TRACK_DR]
        rows += listed[:most]
    return [particle_row(at, isolation(at, candidates)) for at in rows]


def distance(a: Particle, b: Particle) -> float:
    """Delta R, wrapped as it should be."""
    return math.hypot(a.eta - b.eta, math.remainder(a.phi - b.phi, 2.0 * math.pi))
