"""Slow features of one event at a time, straight from the definitions, to test the fast kernels against.

Only loops, `math` and Python floats (double precision). Nothing here is shared with the `features` package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

#: Lists of candidates: the most that are kept, the name of their pT, their flag and the name of their isolation.
CANDIDATES = {
    "tracks": (450, "pt", "is_charged_hadron", "iso_charged"),
    "photons": (150, "et", "is_photon", "iso_photon"),
    "neutral_hadrons": (200, "et", "is_neutral_hadron", "iso_neutral"),
}
LEPTONS = {"electrons": "is_electron", "muons": "is_muon"}
FLAGS = ("is_charged_hadron", "is_neutral_hadron", "is_photon", "is_electron", "is_muon")


@dataclass(frozen=True)
class ReferenceSettings:
    """The choices that change the features, with the same names and defaults as the real settings."""

    isolation_cone: float = 0.3
    max_lepton_isolation: float = 0.45
    min_lepton_pt: float = 23.0
    own_track_dr: float = 1e-4
    min_jet_pt: float = 30.0
    max_jet_abs_eta: float = 2.6
    jet_lepton_cleaning_dr: float = 0.4
    btag_mask: int = 0xFFFFFFFF
    ordering: Literal["increasing", "decreasing", "file"] = "increasing"


class Particle(NamedTuple):
    """A lepton, a jet, or a candidate of one of the lists."""

    collection: str
    place: int
    pt: float
    eta: float
    phi: float
    charge: float = 0.0
    vertex: tuple[float, float, float] = (0.0, 0.0, 0.0)


Candidates = dict[str, list[Particle]]
Features = dict[str, float]


def reference_event(
    event: dict[str, Any], settings: ReferenceSettings
) -> tuple[dict[str, float], list[dict[str, float]]] | None:
    """Features of a row of the events Parquet: high-level, and particles (lepton first); None if no lepton passes."""
    candidates = {name: particles(event, name) for name in CANDIDATES}
    lepton = select_lepton(event, candidates, settings)
    if lepton is None:
        return None
    rows = [lepton, *ordered(kept(lepton, candidates, settings), lepton, settings.ordering)]
    return high_level(event, lepton, candidates, settings), [
        particle_row(row, isolation(row, candidates, settings)) for row in rows
    ]


def particles(event: dict[str, Any], collection: str) -> list[Particle]:
    """A collection of an event; charge and vertex of photons and neutral hadrons are 0, the vertex of leptons too."""
    _, pt, _, _ = CANDIDATES.get(collection, (0, "pt", "", ""))
    return [
        Particle(
            *(collection, index, row[pt], row["eta"], row["phi"], float(row.get("charge", 0.0))),
            (row["x"], row["y"], row["z"]) if collection == "tracks" else (0.0, 0.0, 0.0),
        )
        for index, row in enumerate(event[collection])
    ]


def delta_phi(phi_a: float, phi_b: float) -> float:
    """Difference of two angles, wrapped to (-pi, pi]."""
    difference = phi_a - phi_b
    while difference > math.pi:
        difference -= 2.0 * math.pi
    while difference <= -math.pi:
        difference += 2.0 * math.pi
    return difference


def delta_r(a: Particle, b: Particle) -> float:
    deta, dphi = a.eta - b.eta, delta_phi(a.phi, b.phi)
    return math.sqrt(deta * deta + dphi * dphi)


def select_lepton(
    event: dict[str, Any], candidates: Candidates, settings: ReferenceSettings
) -> Particle | None:
    """The passing lepton of highest pT; of equals the first, electrons before muons."""
    best: Particle | None = None
    for lepton in [*particles(event, "electrons"), *particles(event, "muons")]:
        is_isolated = (
            sum(isolation(lepton, candidates, settings).values()) < settings.max_lepton_isolation
        )
        if (
            lepton.pt > settings.min_lepton_pt
            and is_isolated
            and (best is None or lepton.pt > best.pt)
        ):
            best = lepton
    return best


def isolation(at: Particle, candidates: Candidates, settings: ReferenceSettings) -> Features:
    """From each kind: without itself; every track within `own_track_dr` of a lepton is its own and left out."""
    actual = {}
    for name, remaining in candidates.items():
        total = 0.0
        for second in remaining:
            distance = delta_r(at, second)
            is_own = (
                at.collection in LEPTONS and name == "tracks" and distance < settings.own_track_dr
            )
            if second is not at and not is_own and distance < settings.isolation_cone:
                total += second.pt
        actual[CANDIDATES[name][3]] = total / at.pt
    return actual


def high_level(
    event: dict[str, Any], lepton: Particle, candidates: Candidates, settings: ReferenceSettings
) -> Features:
    ht, num_jets, num_bjets = 0.0, 0, 0
    for jet, row in zip(particles(event, "jets"), event["jets"], strict=True):
        is_lepton = (
            settings.jet_lepton_cleaning_dr > 0.0
            and delta_r(lepton, jet) < settings.jet_lepton_cleaning_dr
        )
        if (
            jet.pt > settings.min_jet_pt
            and abs(jet.eta) < settings.max_jet_abs_eta
            and not is_lepton
        ):
            ht += jet.pt
            num_jets += 1
            num_bjets += row["btag"] & settings.btag_mask != 0
    dphi = delta_phi(lepton.phi, event["met_phi"])
    return {
        "ht": ht,
        "met": event["met"],
        "met_phi": event["met_phi"],
        "mt": math.sqrt(2.0 * lepton.pt * event["met"] * (1.0 - math.cos(dphi))),
        "num_jets": float(num_jets),
        "num_bjets": float(num_bjets),
        "lepton_pt": lepton.pt,
        "lepton_eta": lepton.eta,
        "lepton_phi": lepton.phi,
        **{
            f"lepton_{name}": value
            for name, value in isolation(lepton, candidates, settings).items()
        },
        "lepton_charge": lepton.charge,
        "lepton_is_electron": float(lepton.collection == "electrons"),
    }


def kept(lepton: Particle, candidates: Candidates, settings: ReferenceSettings) -> list[Particle]:
    """Of each kind the candidates of highest pT (of equals: smaller eta, then smaller phi), left in input order.

    Own tracks of the lepton are left out before.
    """
    results = []
    for name, (most, *_) in CANDIDATES.items():
        foreign = [
            candidate
            for candidate in candidates[name]
            if name != "tracks" or delta_r(lepton, candidate) >= settings.own_track_dr
        ]
        by_pt = sorted(foreign, key=lambda particle: (-particle.pt, particle.eta, particle.phi))
        results += sorted(by_pt[:most], key=lambda particle: particle.place)
    return results


def ordered(actual: list[Particle], lepton: Particle, ordering: str) -> list[Particle]:
    """The kept candidates (tracks, photons, neutral hadrons, each in input order) in the order asked for."""
    if ordering == "file":
        return actual
    sign, kinds = {"increasing": 1.0, "decreasing": -1.0}[ordering], list(CANDIDATES)

    def key(particle: Particle) -> tuple[float, int, float, float, float]:
        return (
            sign * delta_r(lepton, particle),
            kinds.index(particle.collection),
            -particle.pt,
            particle.eta,
            particle.phi,
        )

    return sorted(actual, key=key)


def particle_row(at: Particle, isolations: Features) -> Features:
    """Features by name: massless four-momentum, pT and direction, vertex, isolation, flags, charge."""
    flag = LEPTONS.get(at.collection) or CANDIDATES[at.collection][2]
    return {
        "energy": at.pt * math.cosh(at.eta),
        "px": at.pt * math.cos(at.phi),
        "py": at.pt * math.sin(at.phi),
        "pz": at.pt * math.sinh(at.eta),
        "pt": at.pt,
        "eta": at.eta,
        "phi": at.phi,
        **dict(zip(("vertex_x", "vertex_y", "vertex_z"), at.vertex, strict=True)),
        **isolations,
        **{name: float(name == flag) for name in FLAGS},
        "charge": at.charge,
    }
