"""Slow features of one event at a time, straight from the definitions, for tests of the kernels.

Only loops, `math` and Python floats (double precision). Nothing here is shared with the `features`
package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

#: Lists of candidates: the most that are kept, the name of their pT, their flag and the name of
#: their isolation.
CANDIDATES = {
    "tracks": (450, "pt", "is_charged_hadron", "iso_charged"),
    "photons": (150, "et", "is_photon", "iso_photon"),
    "neutral_hadrons": (200, "et", "is_neutral_hadron", "iso_neutral"),
}
LEPTONS = {"electrons": "is_electron", "muons": "is_muon"}
FLAGS = ("is_charged_hadron", "is_neutral_hadron", "is_photon", "is_electron", "is_muon")


@dataclass(frozen=True)
class ReferenceSettings:
    """The settings that change the features, with the names and defaults of the real ones."""

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
    position: int
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
    """High-level features and particles (lepton first) of an event; None if no lepton passes."""
    candidates = {name: particles(event, name) for name in CANDIDATES}
    lepton = select_lepton(event, candidates, settings)
    if lepton is None:
        return None
    hardest = hardest_candidates(lepton, candidates, settings)
    rows = []
    for particle in [lepton, *ordered(hardest, lepton, settings.ordering)]:
        isolations = isolation(particle, candidates, settings)
        rows.append(particle_row(particle, isolations))
    return high_level(event, lepton, candidates, settings), rows


def particles(event: dict[str, Any], collection: str) -> list[Particle]:
    """A collection of an event; only tracks have a vertex, and towers no charge."""
    _, pt, _, _ = CANDIDATES.get(collection, (0, "pt", "", ""))
    results = []
    for index, row in enumerate(event[collection]):
        charge = float(row.get("charge", 0.0))
        particle = Particle(collection, index, row[pt], row["eta"], row["phi"], charge)
        if collection == "tracks":
            particle = particle._replace(vertex=(row["x"], row["y"], row["z"]))
        results.append(particle)
    return results


def delta_phi(phi_a: float, phi_b: float) -> float:
    """Difference of two angles, wrapped to (-pi, pi]."""
    difference = phi_a - phi_b
    while difference > math.pi:
        difference -= 2.0 * math.pi
    while difference <= -math.pi:
        difference += 2.0 * math.pi
    return difference


def delta_r(a: Particle, b: Particle) -> float:
    deta = a.eta - b.eta
    dphi = delta_phi(a.phi, b.phi)
    return math.sqrt(deta * deta + dphi * dphi)


def select_lepton(
    event: dict[str, Any], candidates: Candidates, settings: ReferenceSettings
) -> Particle | None:
    """The passing lepton of highest pT; of equals the first, electrons before muons."""
    best: Particle | None = None
    for lepton in [*particles(event, "electrons"), *particles(event, "muons")]:
        isolations = isolation(lepton, candidates, settings)
        is_isolated = sum(isolations.values()) < settings.max_lepton_isolation
        is_hard = lepton.pt > settings.min_lepton_pt
        is_hardest = best is None or lepton.pt > best.pt
        if is_isolated and is_hard and is_hardest:
            best = lepton
    return best


def isolation(particle: Particle, candidates: Candidates, settings: ReferenceSettings) -> Features:
    """Isolation from each kind of candidates, without the particle and a lepton's own tracks.

    Every track within `own_track_dr` of a lepton is its own.
    """
    isolations = {}
    for collection, neighbours in candidates.items():
        may_be_own = particle.collection in LEPTONS and collection == "tracks"
        sum_of_pt = 0.0
        for neighbour in neighbours:
            distance = delta_r(particle, neighbour)
            is_own_track = may_be_own and distance < settings.own_track_dr
            is_in_cone = distance < settings.isolation_cone
            if neighbour is not particle and is_in_cone and not is_own_track:
                sum_of_pt += neighbour.pt
        isolations[CANDIDATES[collection][3]] = sum_of_pt / particle.pt
    return isolations


def high_level(
    event: dict[str, Any], lepton: Particle, candidates: Candidates, settings: ReferenceSettings
) -> Features:
    ht = 0.0
    num_jets = 0
    num_bjets = 0
    for jet, row in zip(particles(event, "jets"), event["jets"], strict=True):
        is_soft = jet.pt <= settings.min_jet_pt
        is_forward = abs(jet.eta) >= settings.max_jet_abs_eta
        is_lepton = delta_r(lepton, jet) < settings.jet_lepton_cleaning_dr
        if is_soft or is_forward or is_lepton:
            continue
        ht += jet.pt
        num_jets += 1
        if row["btag"] & settings.btag_mask:
            num_bjets += 1
    dphi = delta_phi(lepton.phi, event["met_phi"])
    mt2 = 2.0 * lepton.pt * event["met"] * (1.0 - math.cos(dphi))
    isolations = isolation(lepton, candidates, settings)
    return {
        "ht": ht,
        "met": event["met"],
        "met_phi": event["met_phi"],
        "mt": math.sqrt(mt2),
        "num_jets": float(num_jets),
        "num_bjets": float(num_bjets),
        "lepton_pt": lepton.pt,
        "lepton_eta": lepton.eta,
        "lepton_phi": lepton.phi,
        **{f"lepton_{name}": value for name, value in isolations.items()},
        "lepton_charge": lepton.charge,
        "lepton_is_electron": float(lepton.collection == "electrons"),
    }


def hardest_candidates(
    lepton: Particle, candidates: Candidates, settings: ReferenceSettings
) -> list[Particle]:
    """The candidates of highest pT of each kind, in input order, without own tracks of the lepton.

    Of equal pT, the candidate of smaller eta comes first, then that of smaller phi.
    """
    hardest = []
    for collection, (max_candidates, *_) in CANDIDATES.items():
        eligible = candidates[collection]
        if collection == "tracks":
            own_track_dr = settings.own_track_dr
            eligible = [track for track in eligible if delta_r(lepton, track) >= own_track_dr]
        by_pt = sorted(eligible, key=lambda particle: (-particle.pt, particle.eta, particle.phi))
        hardest_of_kind = by_pt[:max_candidates]
        hardest += sorted(hardest_of_kind, key=lambda particle: particle.position)
    return hardest


def ordered(candidates: list[Particle], lepton: Particle, ordering: str) -> list[Particle]:
    """Candidates (tracks, photons, neutral hadrons, each in input order) in another order."""
    if ordering == "file":
        return candidates
    sign = {"increasing": 1.0, "decreasing": -1.0}[ordering]
    collections = list(CANDIDATES)

    def key(particle: Particle) -> tuple[float, int, float, float, float]:
        return (
            sign * delta_r(lepton, particle),
            collections.index(particle.collection),
            -particle.pt,
            particle.eta,
            particle.phi,
        )

    return sorted(candidates, key=key)


def particle_row(particle: Particle, isolations: Features) -> Features:
    """Features by name: massless four-momentum, direction, vertex, isolation, flags, charge."""
    particle_flag = LEPTONS.get(particle.collection) or CANDIDATES[particle.collection][2]
    x, y, z = particle.vertex
    return {
        "energy": particle.pt * math.cosh(particle.eta),
        "px": particle.pt * math.cos(particle.phi),
        "py": particle.pt * math.sin(particle.phi),
        "pz": particle.pt * math.sinh(particle.eta),
        "pt": particle.pt,
        "eta": particle.eta,
        "phi": particle.phi,
        "vertex_x": x,
        "vertex_y": y,
        "vertex_z": z,
        **isolations,
        **{flag: float(flag == particle_flag) for flag in FLAGS},
        "charge": particle.charge,
    }
