"""Slow features of one event as CERN's published notebook computed them, mistakes included.

Written from a description of `1-DataIngestion.ipynb` and `utilFunctions.py` of SparkDLTrigger. Only loops, `math` and
Python floats (double precision). Nothing here is shared with the `features` package, nor with `reference_features`,
the reference of the correct definitions.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

CONE = 0.3
MIN_LEPTON_PT = 23.0
MAX_LEPTON_ISOLATION = 0.45
OWN_TRACK_DR = 1e-4
MIN_JET_PT = 30.0
MAX_JET_ABS_ETA = 2.6
MAX_TRACKS = 450
MAX_PHOTONS = 150
MAX_NEUTRAL_HADRONS = 200

Outcome = Literal[
    "selected", "rejected_lacks_a_kind", "rejected_no_lepton_in_acceptance", "rejected_no_isolated_lepton"
]


class Direction(NamedTuple):
    """What isolation needs to know of a particle."""

    pt: float
    eta: float
    phi: float


class Maps(NamedTuple):
    """The three lists that isolation sums over: all candidates, nothing left out."""

    charged: list[Direction]
    photon: list[Direction]
    neutral: list[Direction]


class Isolation(NamedTuple):
    """Isolation from each kind; relative to the particle's pT."""

    charged: float
    photon: float
    neutral: float


class Lepton(NamedTuple):
    """A lepton that passes, with its isolation."""

    at: Direction
    charge: float
    is_electron: bool
    isolation: Isolation


class Published(NamedTuple):
    """What the notebook made of one event; nothing if it was rejected."""

    outcome: Outcome
    hlf: dict[str, float]
    rows: list[dict[str, float]]


def published_event(event: dict[str, Any]) -> Published:
    """Features of one event, a row of the events Parquet as `table.to_pylist()` gives it: lepton first, no padding."""
    maps = Maps(
        [Direction(row["pt"], row["eta"], row["phi"]) for row in event["tracks"]],
        [Direction(row["et"], row["eta"], row["phi"]) for row in event["photons"]],
        [Direction(row["et"], row["eta"], row["phi"]) for row in event["neutral_hadrons"]],
    )
    if not (maps.charged and maps.photon and maps.neutral):
        return Published("rejected_lacks_a_kind", {}, [])
    lepton = selected_lepton(event, maps)
    if lepton is None:
        some = any(row["pt"] > MIN_LEPTON_PT for row in (*event["electrons"], *event["muons"]))
        return Published("rejected_no_isolated_lepton" if some else "rejected_no_lepton_in_acceptance", {}, [])
    return Published("selected", high_level(event, lepton), particle_rows(event, lepton, maps))


def isolation_sum(particle: Direction, others: list[Direction]) -> float:
    """Relative pT in the cone; the difference of the angles is wrapped only beyond 2 pi, so the seam is a wall."""
    total = 0.0
    for other in others:
        deta = other.eta - particle.eta
        dphi = other.phi - particle.phi
        if dphi > 2.0 * math.pi:
            dphi -= 2.0 * math.pi
        elif dphi < -2.0 * math.pi:
            dphi += 2.0 * math.pi
        if dphi * dphi + deta * deta < CONE * CONE:
            total += other.pt
    return total / particle.pt


def isolation_of(particle: Direction, maps: Maps) -> Isolation:
    """The same for every particle: itself counted wherever it is listed, one taken off the charged sum."""
    return Isolation(
        charged=isolation_sum(particle, maps.charged) - 1.0,
        photon=isolation_sum(particle, maps.photon),
        neutral=isolation_sum(particle, maps.neutral),
    )


def selected_lepton(event: dict[str, Any], maps: Maps) -> Lepton | None:
    """The first passing electron or the first passing muon, whichever has the larger eta; of equals the muon."""
    electron = first_passing(event["electrons"], maps, is_electron=True)
    muon = first_passing(event["muons"], maps, is_electron=False)
    if electron is None or muon is None:
        return electron or muon
    return electron if electron.at.eta > muon.at.eta else muon


def first_passing(leptons: list[dict[str, Any]], maps: Maps, *, is_electron: bool) -> Lepton | None:
    """The first lepton of a collection, in file order, above threshold and isolated."""
    for row in leptons:
        at = Direction(row["pt"], row["eta"], row["phi"])
        if at.pt > MIN_LEPTON_PT:
            isolation = isolation_of(at, maps)
            if isolation.charged + isolation.neutral + isolation.photon < MAX_LEPTON_ISOLATION:
                return Lepton(at, float(row["charge"]), is_electron, isolation)
    return None


def distance(a: Direction, b: Direction) -> float:
    """Delta R, wrapped as it should be."""
    return math.hypot(a.eta - b.eta, math.remainder(a.phi - b.phi, 2.0 * math.pi))


def high_level(event: dict[str, Any], lepton: Lepton) -> dict[str, float]:
    """The high-level features by name."""
    jets = [jet for jet in event["jets"] if jet["pt"] > MIN_JET_PT and abs(jet["eta"]) < MAX_JET_ABS_ETA]
    met, met_phi = event["met"], event["met_phi"]
    return {
        "ht": sum(jet["pt"] for jet in jets),
        "met": met,
        "met_phi": met_phi,
        # The square of the transverse mass.
        "mt": 2.0 * met * lepton.at.pt * (1.0 - math.cos(lepton.at.phi - met_phi)),
        "num_jets": float(len(jets)),
        "num_bjets": float(sum(jet["btag"] > 0 for jet in jets)),
        **{f"lepton_{name}": value for name, value in lepton.at._asdict().items()},
        **{f"lepton_iso_{name}": value for name, value in lepton.isolation._asdict().items()},
        "lepton_charge": lepton.charge,
        "lepton_is_electron": float(lepton.is_electron),
    }


def particle_rows(event: dict[str, Any], lepton: Lepton, maps: Maps) -> list[dict[str, float]]:
    """The lepton, the first tracks but its own, the first photons, the first neutral hadrons."""
    flavour = [0.0, 0.0, 0.0, float(lepton.is_electron), float(not lepton.is_electron)]
    rows = [particle_row(lepton.at, [0.0, 0.0, 0.0], lepton.isolation, flavour, lepton.charge)]
    foreign = [
        (at, track)
        for at, track in zip(maps.charged, event["tracks"], strict=True)
        if distance(lepton.at, at) > OWN_TRACK_DR
    ]
    for at, track in foreign[:MAX_TRACKS]:
        vertex = [track["x"], track["y"], track["z"]]
        charge = math.copysign(1.0, track["pid"]) if track["pid"] else 0.0  # wrong for leptons
        rows.append(particle_row(at, vertex, isolation_of(at, maps), [1.0, 0.0, 0.0, 0.0, 0.0], charge))
    neutrals = [(at, [0.0, 0.0, 1.0, 0.0, 0.0]) for at in maps.photon[:MAX_PHOTONS]]
    neutrals += [(at, [0.0, 1.0, 0.0, 0.0, 0.0]) for at in maps.neutral[:MAX_NEUTRAL_HADRONS]]
    rows += [particle_row(at, [0.0, 0.0, 0.0], isolation_of(at, maps), flags, 0.0) for at, flags in neutrals]
    return rows


def particle_row(
    at: Direction, vertex: list[float], isolation: Isolation, flags: list[float], charge: float
) -> dict[str, float]:
    """Features by name: massless four-momentum, pT and direction, vertex, isolation, flags, charge.

    The flags are: charged hadron, neutral hadron, photon, electron, muon.
    """
    pt, eta, phi = at
    kinds = ("is_charged_hadron", "is_neutral_hadron", "is_photon", "is_electron", "is_muon")
    return {
        "energy": pt * math.cosh(eta),
        "px": pt * math.cos(phi),
        "py": pt * math.sin(phi),
        "pz": pt * math.sinh(eta),
        **at._asdict(),
        **dict(zip(("vertex_x", "vertex_y", "vertex_z"), vertex, strict=True)),
        **{f"iso_{name}": value for name, value in isolation._asdict().items()},
        **dict(zip(kinds, flags, strict=True)),
        "charge": charge,
    }
