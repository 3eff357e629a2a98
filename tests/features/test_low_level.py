"""Rows of particles, their order and their caps, by hand."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
from extracted_features import ELECTRON, column, extract
from made_events import lepton, made_event, tower, track

from features import low_level
from features.columns import PARTICLE_FEATURE_NAMES, PHOTON
from features.isolation import Candidates
from features.low_level import highest_pt, sorted_by


def test_lepton_row_is_massless_at_vertex_zero() -> None:
    eta = math.asinh(0.75)  # pz = 0.75 pT, E = 1.25 pT
    (rows,) = extract(made_event(electrons=[lepton(40.0, eta, 0.0, charge=-1)])).particles
    expected = dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0)
    expected |= {"energy": 50.0, "px": 40.0, "pz": 30.0, "pt": 40.0, "eta": eta}
    expected |= {"is_electron": 1.0, "charge": -1.0}
    assert rows == [pytest.approx(expected, rel=1e-6)]


def test_track_row_is_massless_with_its_vertex_and_charge() -> None:
    eta, phi = -math.asinh(0.75), math.asin(0.6)  # pz = -0.75 pT, E = 1.25 pT, px = 0.8 pT, py = 0.6 pT
    tracks = [track(20.0, eta, phi, charge=-1, vertex=(1.5, -2.5, 3.5))]
    event = made_event(electrons=[ELECTRON], tracks=tracks)
    (rows,) = extract(event).particles
    expected = dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0)
    expected |= {"energy": 25.0, "px": 16.0, "py": 12.0, "pz": -15.0, "pt": 20.0, "eta": eta, "phi": phi}
    expected |= {"vertex_x": 1.5, "vertex_y": -2.5, "vertex_z": 3.5, "is_charged_hadron": 1.0, "charge": -1.0}
    assert rows[1] == pytest.approx(expected, rel=1e-6)


def test_photons_and_neutral_hadrons_have_no_charge_and_vertex_zero() -> None:
    event = made_event(
        electrons=[ELECTRON],
        tracks=[track(2.0, -1.0, -1.0, vertex=(1.0, 2.0, 3.0))],
        photons=[tower(20.0, math.asinh(0.75), 0.0)],
        neutral_hadrons=[tower(40.0, 0.0, math.pi / 2)],
    )
    (rows,) = extract(event, ordering="file").particles
    photon = dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0)
    photon |= {"energy": 25.0, "px": 20.0, "pz": 15.0, "pt": 20.0, "eta": math.asinh(0.75), "is_photon": 1.0}
    hadron = dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0)
    hadron |= {"energy": 40.0, "py": 40.0, "pt": 40.0, "phi": math.pi / 2, "is_neutral_hadron": 1.0}
    assert rows[2] == pytest.approx(photon, rel=1e-6, abs=1e-5)
    assert rows[3] == pytest.approx(hadron, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [
        ("increasing", [40.0, 5.0, 4.0, 3.0, 2.0]),
        ("decreasing", [40.0, 2.0, 3.0, 4.0, 5.0]),
        ("file", [40.0, 2.0, 4.0, 3.0, 5.0]),
    ],
)
def test_rows_after_the_lepton_are_in_the_order_asked_for(ordering: str, expected: list[float]) -> None:
    event = made_event(
        electrons=[ELECTRON],
        tracks=[track(2.0, 2.0, 0.0), track(4.0, 0.0, -1.0)],
        photons=[tower(3.0, 0.0, 1.5)],
        neutral_hadrons=[tower(5.0, 0.5, 0.0)],
    )
    (rows,) = extract(event, ordering=ordering).particles
    assert column(rows, "pt") == expected


def test_distance_from_the_lepton_is_taken_across_the_phi_seam() -> None:
    event = made_event(muons=[lepton(40.0, 0.0, 3.0)], photons=[tower(2.0, 0.0, 2.0), tower(3.0, 0.0, -3.0)])
    assert column(extract(event).particles[0], "pt") == [40.0, 3.0, 2.0]


@pytest.mark.parametrize("ordering", ["increasing", "decreasing"])
def test_equal_distances_go_by_kind_then_pt_then_eta_then_phi(ordering: str) -> None:
    event = made_event(
        electrons=[ELECTRON],
        tracks=[
            track(2.0, 1.0, 0.0),
            track(2.0, 0.0, 1.0),
            track(2.0, 0.0, -1.0),
            track(2.0, -1.0, 0.0),
            track(3.0, 1.0, 0.0),
        ],
        photons=[tower(4.0, -1.0, 0.0), tower(5.0, 1.0, 0.0)],
        neutral_hadrons=[tower(6.0, -1.0, 0.0)],
    )
    (rows,) = extract(event, ordering=ordering).particles
    assert [(row["pt"], row["eta"], row["phi"]) for row in rows[1:]] == [
        (3.0, 1.0, 0.0),
        (2.0, -1.0, 0.0),
        (2.0, 0.0, -1.0),
        (2.0, 0.0, 1.0),
        (2.0, 1.0, 0.0),
        (5.0, 1.0, 0.0),
        (4.0, -1.0, 0.0),
        (6.0, -1.0, 0.0),
    ]


@pytest.mark.parametrize(("kind", "cap"), [("tracks", 450), ("photons", 150), ("neutral_hadrons", 200)])
def test_highest_pt_of_each_kind_are_kept_in_file_order(kind: str, cap: int) -> None:
    make = track if kind == "tracks" else tower
    # 11 shares no factor with cap + 3: every pT occurs once.
    pts = [2.0 + 0.25 * ((11 * index) % (cap + 3)) for index in range(cap + 3)]
    event = made_event(electrons=[ELECTRON], **{kind: [make(pt, 2.0, 2.0) for pt in pts]})
    (rows,) = extract(event, ordering="file").particles
    assert column(rows[1:], "pt") == [pt for pt in pts if pt > 2.5]


class Counted(np.ndarray):
    """Numbers that count how often one of them is read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        Counted.reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize(
    "pt",
    [
        0.5 + np.random.default_rng(1).exponential(1, 1000),
        np.random.default_rng(1).exponential(1, 1000),
        np.append(0.5 + np.random.default_rng(1).exponential(1, 999), 1e-4),
        np.append(0.5 + np.random.default_rng(1).exponential(1, 999), 1e4),
        0.25 * np.random.default_rng(1).integers(2, 100, 1000),
    ],
    ids=["above a threshold", "without a threshold", "one very soft", "one very hard", "in steps"],
)
def test_the_work_to_find_the_highest_pt_grows_as_their_number(pt: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(key: np.ndarray, *rest: Any) -> Any:
        return cast("Any", sorted_by).py_func(key.view(Counted), *rest)

    monkeypatch.setattr(low_level, "sorted_by", counted)
    monkeypatch.setattr(Counted, "reads", 0)
    candidates = Candidates(np.full(1000, PHOTON), pt, np.zeros(1000), np.zeros(1000))
    kept = cast("Any", highest_pt).py_func(np.arange(1000), 10, candidates)
    assert kept.tolist() == sorted(np.argsort(-pt, kind="stable")[:10].tolist())
    assert Counted.reads < 10_000


@pytest.mark.parametrize(("places", "expected"), [(2, [(1.0, 1.5), (1.0, 1.0)]), (1, [(1.0, 1.0)])], ids=["eta", "phi"])
def test_equal_pt_at_the_cap_is_decided_by_smaller_eta_then_smaller_phi(
    places: int, expected: list[tuple[float, float]]
) -> None:
    photons = [tower(2.0, 1.0, 1.5), tower(2.0, 1.5, 0.5), tower(2.0, 1.0, 1.0)]
    hard = [tower(3.0, 2.0, 2.0) for _ in range(150 - places)]
    event = made_event(electrons=[ELECTRON], photons=[*photons, *hard])
    (rows,) = extract(event, ordering="file").particles
    assert [(row["eta"], row["phi"]) for row in rows if row["pt"] == 2.0] == expected
