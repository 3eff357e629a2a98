"""Isolation, and the lepton's own track, by hand."""

from __future__ import annotations

import pytest
from event_rows import event_row, lepton, tower, track
from extracted_features import ELECTRON, column, hlf_of, near, particle_rows


def test_each_species_is_summed_separately_without_the_candidate_itself() -> None:
    tracks = [track(2.0, 1.0, 1.0), track(4.0, 1.1, 1.0)]
    photons = [tower(5.0, 1.0, 1.1), tower(10.0, 0.9, 1.0)]
    neutral_hadron = tower(8.0, 1.0, 0.9)
    event = event_row(
        electrons=[ELECTRON], tracks=tracks, photons=photons, neutral_hadrons=[neutral_hadron]
    )

    rows = particle_rows(event, ordering="file")

    # The lepton, the tracks of 2 and 4, the photons of 5 and 10, the neutral hadron of 8 GeV.
    expected_charged = near(0.0, 4 / 2, 2 / 4, 6 / 5, 6 / 10, 6 / 8)
    expected_photon = near(0.0, 15 / 2, 15 / 4, 10 / 5, 5 / 10, 15 / 8)
    expected_neutral = near(0.0, 8 / 2, 8 / 4, 8 / 5, 8 / 10, 0.0)
    assert column(rows, "iso_charged") == expected_charged
    assert column(rows, "iso_photon") == expected_photon
    assert column(rows, "iso_neutral") == expected_neutral


def test_candidates_of_equal_direction_count_for_each_other() -> None:
    event = event_row(electrons=[ELECTRON], tracks=[track(2.0, 1.0, 1.0)] * 2)

    assert column(particle_rows(event), "iso_charged") == near(0.0, 1.0, 1.0)


def test_isolation_cone_is_open() -> None:
    photons = [tower(2.0, 1.0, 1.0), tower(2.0, 1.25, 1.0), tower(2.0, 1.0, 1.1875)]
    event = event_row(electrons=[ELECTRON], photons=photons)

    rows = particle_rows(event, ordering="file", isolation_cone=0.25)

    assert column(rows, "iso_photon") == near(0.0, 1.0, 0.0, 1.0)


def test_a_candidate_beyond_the_cap_counts_in_isolations_without_a_row() -> None:
    softest = track(1.0, 2.0, 1.0)
    harder = [track(5.0, -2.0, 2.0)] * 450
    photon = tower(4.0, 2.0, 1.1)
    event = event_row(electrons=[ELECTRON], tracks=[softest, *harder], photons=[photon])

    rows = particle_rows(event, ordering="file")

    assert len(rows) == 1 + 450 + 1
    assert set(column(rows[1:451], "pt")) == {5.0}
    assert rows[-1]["iso_charged"] == pytest.approx(1.0 / 4.0)


# The lepton and its own track


def test_own_track_is_no_row_and_counts_only_for_others() -> None:
    electron = lepton(40.0, 0.5, 1.0)
    own_track = track(39.0, 0.5, 1.00005)
    photon = tower(3.0, 0.5, 1.2)
    event = event_row(electrons=[electron], tracks=[own_track], photons=[photon])

    hlf = hlf_of(event)
    rows = particle_rows(event)

    assert hlf["lepton_iso_charged"] == 0.0
    assert hlf["lepton_iso_photon"] == pytest.approx(3.0 / 40.0)
    assert column(rows, "is_electron") == [1.0, 0.0]
    assert column(rows, "is_photon") == [0.0, 1.0]
    assert column(rows, "iso_charged") == near(0.0, 39.0 / 3.0)


def test_own_track_is_found_across_the_phi_seam() -> None:
    muon = lepton(40.0, 0.5, 3.14159)
    own_track = track(40.0, 0.5, -3.14159)
    event = event_row(muons=[muon], tracks=[own_track])

    assert len(particle_rows(event)) == 1


def test_own_track_of_a_lepton_not_selected_is_a_row() -> None:
    muon = lepton(30.0, 1.0, 1.0)
    muon_track = track(30.0, 1.0, 1.0)
    event = event_row(electrons=[ELECTRON], muons=[muon], tracks=[muon_track])

    rows = particle_rows(event)

    assert column(rows, "pt") == [40.0, 30.0]
    assert column(rows, "is_charged_hadron") == [0.0, 1.0]
    assert column(rows, "is_muon") == [0.0, 0.0]


def test_a_photon_on_the_lepton_counts_in_its_isolation() -> None:
    electron = lepton(50.0, 0.5, 1.0)
    photon = tower(10.0, 0.5, 1.0)

    hlf = hlf_of(event_row(electrons=[electron], photons=[photon]))

    assert hlf["lepton_iso_photon"] == pytest.approx(10 / 50)


def test_a_track_just_beyond_the_own_track_distance_is_a_row_and_counts() -> None:
    electron = lepton(40.0, 0.5, 1.0)
    # The distance is 1e-4.
    near_track = track(10.0, 0.5, 1.00015)
    event = event_row(electrons=[electron], tracks=[near_track])

    hlf = hlf_of(event)
    rows = particle_rows(event)

    assert hlf["lepton_iso_charged"] == pytest.approx(10 / 40)
    assert len(rows) == 2
