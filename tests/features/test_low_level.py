"""Rows of particles, their order and their caps, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from event_rows import event_row, lepton, tower, track
from extracted_features import ELECTRON, column, particle_rows

from features.columns import PARTICLE_FEATURE_NAMES


def particle_row(**numbers: float) -> dict[str, float]:
    """A row of a particle that is 0 but for these numbers."""
    return dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0) | numbers


def test_lepton_row_is_massless_at_vertex_zero() -> None:
    eta = math.asinh(0.75)  # pz = 0.75 pT, E = 1.25 pT

    electron = lepton(40.0, eta, 0.0, charge=-1)

    rows = particle_rows(event_row(electrons=[electron]))

    momentum = {"energy": 50.0, "px": 40.0, "pz": 30.0, "pt": 40.0, "eta": eta}
    expected = particle_row(**momentum, is_electron=1.0, charge=-1.0)
    assert rows == [pytest.approx(expected, rel=1e-6)]


def test_track_row_is_massless_with_its_vertex_and_charge() -> None:
    # pz = -0.75 pT, E = 1.25 pT, px = 0.8 pT, py = 0.6 pT.
    eta = -math.asinh(0.75)
    phi = math.asin(0.6)
    displaced = track(20.0, eta, phi, charge=-1, vertex=(1.5, -2.5, 3.5))

    rows = particle_rows(event_row(electrons=[ELECTRON], tracks=[displaced]))

    momentum = {"energy": 25.0, "px": 16.0, "py": 12.0, "pz": -15.0}
    direction = {"pt": 20.0, "eta": eta, "phi": phi}
    vertex = {"vertex_x": 1.5, "vertex_y": -2.5, "vertex_z": 3.5}
    expected = particle_row(**momentum, **direction, **vertex, is_charged_hadron=1.0, charge=-1.0)
    assert rows[1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [
        ("increasing", [40.0, 5.0, 4.0, 3.0, 2.0]),
        ("decreasing", [40.0, 2.0, 3.0, 4.0, 5.0]),
        ("file", [40.0, 2.0, 4.0, 3.0, 5.0]),
    ],
)
def test_rows_after_the_lepton_have_the_order_of_the_settings(
    ordering: str, expected: list[float]
) -> None:
    # The larger the pT, the nearer to the lepton.
    tracks = [track(2.0, 2.0, 0.0), track(4.0, 0.0, -1.0)]
    photon = tower(3.0, 0.0, 1.5)
    neutral_hadron = tower(5.0, 0.5, 0.0)
    event = event_row(
        electrons=[ELECTRON], tracks=tracks, photons=[photon], neutral_hadrons=[neutral_hadron]
    )

    rows = particle_rows(event, ordering=ordering)

    assert column(rows, "pt") == expected


def test_distance_from_the_lepton_is_taken_across_the_phi_seam() -> None:
    photons = [tower(2.0, 0.0, 2.0), tower(3.0, 0.0, -3.0)]
    event = event_row(muons=[lepton(40.0, 0.0, 3.0)], photons=photons)

    rows = particle_rows(event)

    assert column(rows, "pt") == [40.0, 3.0, 2.0]


@pytest.mark.parametrize("ordering", ["increasing", "decreasing"])
def test_equal_distances_are_ordered_by_species_pt_eta_and_phi(ordering: str) -> None:
    tracks = [(2.0, 1.0, 0.0), (2.0, 0.0, 1.0), (2.0, 0.0, -1.0), (2.0, -1.0, 0.0), (3.0, 1.0, 0.0)]
    photons = [(4.0, -1.0, 0.0), (5.0, 1.0, 0.0)]
    neutral_hadron = (6.0, -1.0, 0.0)
    event = event_row(
        electrons=[ELECTRON],
        tracks=[track(*momentum) for momentum in tracks],
        photons=[tower(*momentum) for momentum in photons],
        neutral_hadrons=[tower(*neutral_hadron)],
    )

    rows = particle_rows(event, ordering=ordering)

    sorted_tracks = [
        (3.0, 1.0, 0.0),
        (2.0, -1.0, 0.0),
        (2.0, 0.0, -1.0),
        (2.0, 0.0, 1.0),
        (2.0, 1.0, 0.0),
    ]
    sorted_photons = [(5.0, 1.0, 0.0), (4.0, -1.0, 0.0)]
    momenta = [(row["pt"], row["eta"], row["phi"]) for row in rows[1:]]
    assert momenta == [*sorted_tracks, *sorted_photons, neutral_hadron]


@pytest.mark.parametrize(
    ("collection", "cap"), [("tracks", 450), ("photons", 150), ("neutral_hadrons", 200)]
)
def test_the_hardest_candidates_stay_in_file_order(collection: str, cap: int) -> None:
    make_candidate = track if collection == "tracks" else tower
    num_candidates = cap + 3
    # 11 shares no factor with the number of candidates: every pT occurs once.
    ranks_of_pt = 11 * np.arange(num_candidates) % num_candidates
    pts = (2.0 + 0.25 * ranks_of_pt).tolist()
    candidates = [make_candidate(pt, 2.0, 2.0) for pt in pts]
    event = event_row(electrons=[ELECTRON], **{collection: candidates})

    rows = particle_rows(event, ordering="file")

    # The three that are softest have a pT of 2, 2.25 and 2.5.
    hardest_pts = [pt for pt in pts if pt > 2.5]
    assert column(rows[1:], "pt") == hardest_pts


@pytest.mark.parametrize(
    ("num_free_rows", "expected"),
    [(2, [(1.0, 1.5), (1.0, 1.0)]), (1, [(1.0, 1.0)])],
    ids=["eta", "phi"],
)
def test_at_the_cap_equal_pt_is_ordered_by_eta_and_phi(
    num_free_rows: int, expected: list[tuple[float, float]]
) -> None:
    equal_photons = [tower(2.0, 1.0, 1.5), tower(2.0, 1.5, 0.5), tower(2.0, 1.0, 1.0)]
    harder_photons = [tower(3.0, 2.0, 2.0)] * (150 - num_free_rows)
    event = event_row(electrons=[ELECTRON], photons=equal_photons + harder_photons)

    rows = particle_rows(event, ordering="file")

    equal_rows = [row for row in rows if row["pt"] == 2.0]
    directions = [(row["eta"], row["phi"]) for row in equal_rows]
    assert directions == expected
