"""Slow features of one event at a time, straight from the definitions, to test the fast kernels against.

Only loops, `math` and Python floats (double precision). Nothing here is shared with the `features` package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

MAX_TRACKS = 450
MAX_PHOTONS = 150
MAX_NEUTRAL_HADRONS = 200


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


@dataclass(frozen=True)
class Candidate:
    """One track, photon or neutral hadron; `kind` is 0, 1 or 2, `index` its place in its collection."""

    kind: int
    index: int
    pt: float
    eta: float
    phi: float
    charge: float = 0.0
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


@dataclass(frozen=True)
class Candidates:
    """All candidates of one event, in input order."""

    tracks: list[Candidate]
    photons: list[Candidate]
    neutral_hadrons: list[Candidate]


@dataclass(frozen=True)
class Lepton:
    """A lepton candidate with its isolation from charged, photons and neutral hadrons."""

    pt: float
    eta: float
    phi: float
    charge: float
    is_electron: bool
    isolation: tuple[float, float, float]


def reference_event(
    event: dict[str, Any], settings: ReferenceSettings
) -> tuple[dict[str, float], list[dict[str, float]]] | None:
    """Features of one event.

    Args:
        event: One row of the events Parquet, as `table.to_pylist()` gives it.
        settings: The choices.

    Returns:
        The high-level features and the particle rows (lepton first, no padding), both by name, or None if no lepton
        passes.
    """
    candidates = read_candidates(event)
    lepton = select_lepton(event, candidates, settings)
    if lepton is None:
        return None
    return high_level(event, lepton, settings), particle_rows(candidates, lepton, settings)


def delta_phi(phi_a: float, phi_b: float) -> float:
    """Difference of two angles, wrapped to (-pi, pi]."""
    difference = phi_a - phi_b
    while difference > math.pi:
        difference -= 2.0 * math.pi
    while difference <= -math.pi:
        difference += 2.0 * math.pi
    return difference


def delta_r(eta_a: float, phi_a: float, eta_b: float, phi_b: float) -> float:
    """Distance of two directions in (eta, phi)."""
    deta = eta_a - eta_b
    dphi = delta_phi(phi_a, phi_b)
    return math.sqrt(deta * deta + dphi * dphi)


def read_candidates(event: dict[str, Any]) -> Candidates:
    """The candidates of an event; charge and vertex are those of the tracks and 0 for the others."""
    tracks = []
    for index, track in enumerate(event["tracks"]):
        tracks.append(
            Candidate(
                kind=0,
                index=index,
                pt=track["pt"],
                eta=track["eta"],
                phi=track["phi"],
                charge=float(track["charge"]),
                x=track["x"],
                y=track["y"],
                z=track["z"],
            )
        )
    photons = []
    for index, photon in enumerate(event["photons"]):
        photons.append(Candidate(kind=1, index=index, pt=photon["et"], eta=photon["eta"], phi=photon["phi"]))
    neutral_hadrons = []
    for index, hadron in enumerate(event["neutral_hadrons"]):
        neutral_hadrons.append(Candidate(kind=2, index=index, pt=hadron["et"], eta=hadron["eta"], phi=hadron["phi"]))
    return Candidates(tracks, photons, neutral_hadrons)


def select_lepton(event: dict[str, Any], candidates: Candidates, settings: ReferenceSettings) -> Lepton | None:
    """The passing lepton of highest pT; of equals the first, electrons before muons."""
    best: Lepton | None = None
    for collection, is_electron in (("electrons", True), ("muons", False)):
        for row in event[collection]:
            isolation = lepton_isolation(row["pt"], row["eta"], row["phi"], candidates, settings)
            if not row["pt"] > settings.min_lepton_pt:
                continue
            if not isolation[0] + isolation[1] + isolation[2] < settings.max_lepton_isolation:
                continue
            if best is None or row["pt"] > best.pt:
                best = Lepton(row["pt"], row["eta"], row["phi"], float(row["charge"]), is_electron, isolation)
    return best


def lepton_isolation(
    pt: float, eta: float, phi: float, candidates: Candidates, settings: ReferenceSettings
) -> tuple[float, float, float]:
    """Isolation of a lepton; every track within `own_track_dr` of it is its own and left out."""
    charged = 0.0
    for track in candidates.tracks:
        distance = delta_r(eta, phi, track.eta, track.phi)
        if distance < settings.own_track_dr:
            continue
        if distance < settings.isolation_cone:
            charged += track.pt
    photon = 0.0
    for other in candidates.photons:
        if delta_r(eta, phi, other.eta, other.phi) < settings.isolation_cone:
            photon += other.pt
    neutral = 0.0
    for other in candidates.neutral_hadrons:
        if delta_r(eta, phi, other.eta, other.phi) < settings.isolation_cone:
            neutral += other.pt
    return charged / pt, photon / pt, neutral / pt


def candidate_isolation(particle: Candidate, others: list[Candidate], settings: ReferenceSettings) -> float:
    """Isolation of a candidate from all candidates of one kind, itself left out."""
    total = 0.0
    for other in others:
        if other.kind == particle.kind and other.index == particle.index:
            continue
        if delta_r(particle.eta, particle.phi, other.eta, other.phi) < settings.isolation_cone:
            total += other.pt
    return total / particle.pt


def high_level(event: dict[str, Any], lepton: Lepton, settings: ReferenceSettings) -> dict[str, float]:
    """The high-level features by name."""
    ht = 0.0
    num_jets = 0
    num_bjets = 0
    for jet in event["jets"]:
        if not jet["pt"] > settings.min_jet_pt:
            continue
        if not abs(jet["eta"]) < settings.max_jet_abs_eta:
            continue
        if settings.jet_lepton_cleaning_dr > 0.0:
            distance = delta_r(lepton.eta, lepton.phi, jet["eta"], jet["phi"])
            if distance < settings.jet_lepton_cleaning_dr:
                continue
        ht += jet["pt"]
        num_jets += 1
        if jet["btag"] & settings.btag_mask != 0:
            num_bjets += 1
    dphi = delta_phi(lepton.phi, event["met_phi"])
    mt = math.sqrt(2.0 * lepton.pt * event["met"] * (1.0 - math.cos(dphi)))
    return {
        "ht": ht,
        "met": event["met"],
        "met_phi": event["met_phi"],
        "mt": mt,
        "num_jets": float(num_jets),
        "num_bjets": float(num_bjets),
        "lepton_pt": lepton.pt,
        "lepton_eta": lepton.eta,
        "lepton_phi": lepton.phi,
        "lepton_iso_charged": lepton.isolation[0],
        "lepton_iso_photon": lepton.isolation[1],
        "lepton_iso_neutral": lepton.isolation[2],
        "lepton_charge": lepton.charge,
        "lepton_is_electron": 1.0 if lepton.is_electron else 0.0,
    }


def particle_rows(candidates: Candidates, lepton: Lepton, settings: ReferenceSettings) -> list[dict[str, float]]:
    """The lepton, then the kept candidates in the order asked for; features by name."""
    tracks = [
        track
        for track in candidates.tracks
        if not delta_r(lepton.eta, lepton.phi, track.eta, track.phi) < settings.own_track_dr
    ]
    kept = [
        *highest_pt(tracks, MAX_TRACKS),
        *highest_pt(candidates.photons, MAX_PHOTONS),
        *highest_pt(candidates.neutral_hadrons, MAX_NEUTRAL_HADRONS),
    ]
    in_order = ordered(kept, lepton, settings.ordering)
    return [lepton_row(lepton)] + [candidate_row(candidate, candidates, settings) for candidate in in_order]


def highest_pt(candidates: list[Candidate], number: int) -> list[Candidate]:
    """The candidates of highest pT (of equals: smaller eta, then smaller phi), left in input order."""
    by_pt = sorted(candidates, key=lambda candidate: (-candidate.pt, candidate.eta, candidate.phi))
    return sorted(by_pt[:number], key=lambda candidate: candidate.index)


def ordered(kept: list[Candidate], lepton: Lepton, ordering: str) -> list[Candidate]:
    """The kept candidates (tracks, photons, neutral hadrons, each in input order) in the order asked for."""
    if ordering == "file":
        return kept
    sign = {"increasing": 1.0, "decreasing": -1.0}[ordering]

    def key(candidate: Candidate) -> tuple[float, int, float, float, float]:
        distance = delta_r(lepton.eta, lepton.phi, candidate.eta, candidate.phi)
        return sign * distance, candidate.kind, -candidate.pt, candidate.eta, candidate.phi

    return sorted(kept, key=key)


def lepton_row(lepton: Lepton) -> dict[str, float]:
    """Row 0: the selected lepton, massless, at vertex 0."""
    return {
        **massless(lepton.pt, lepton.eta, lepton.phi),
        "vertex_x": 0.0,
        "vertex_y": 0.0,
        "vertex_z": 0.0,
        "iso_charged": lepton.isolation[0],
        "iso_photon": lepton.isolation[1],
        "iso_neutral": lepton.isolation[2],
        "is_charged_hadron": 0.0,
        "is_neutral_hadron": 0.0,
        "is_photon": 0.0,
        "is_electron": 1.0 if lepton.is_electron else 0.0,
        "is_muon": 0.0 if lepton.is_electron else 1.0,
        "charge": lepton.charge,
    }


def candidate_row(candidate: Candidate, candidates: Candidates, settings: ReferenceSettings) -> dict[str, float]:
    """The row of a track, photon or neutral hadron; only the lepton is ever marked as electron or muon."""
    return {
        **massless(candidate.pt, candidate.eta, candidate.phi),
        "vertex_x": candidate.x,
        "vertex_y": candidate.y,
        "vertex_z": candidate.z,
        "iso_charged": candidate_isolation(candidate, candidates.tracks, settings),
        "iso_photon": candidate_isolation(candidate, candidates.photons, settings),
        "iso_neutral": candidate_isolation(candidate, candidates.neutral_hadrons, settings),
        "is_charged_hadron": 1.0 if candidate.kind == 0 else 0.0,
        "is_neutral_hadron": 1.0 if candidate.kind == 2 else 0.0,
        "is_photon": 1.0 if candidate.kind == 1 else 0.0,
        "is_electron": 0.0,
        "is_muon": 0.0,
        "charge": candidate.charge,
    }


def massless(pt: float, eta: float, phi: float) -> dict[str, float]:
    """Energy and momentum of a massless particle."""
    return {
        "energy": pt * math.cosh(eta),
        "px": pt * math.cos(phi),
        "py": pt * math.sin(phi),
        "pz": pt * math.sinh(eta),
        "pt": pt,
        "eta": eta,
        "phi": phi,
    }
