"""Which lepton is selected, by hand."""

from __future__ import annotations

from event_rows import event_row, lepton, tower, track
from extracted_features import ELECTRON, extract, hlf_of, near, particle_rows


def test_highest_pt_lepton_wins_over_larger_eta() -> None:
    muon = lepton(50.0, 0.125, 1.0, charge=1)
    event = event_row(electrons=[lepton(30.0, 2.0, 0.0)], muons=[muon])

    hlf = hlf_of(event)
    lepton_row = particle_rows(event)[0]

    for name in ("pt", "eta", "phi", "charge"):
        assert hlf[f"lepton_{name}"] == muon[name]
    assert hlf["lepton_is_electron"] == 0.0
    assert lepton_row["is_electron"] == 0.0
    assert lepton_row["is_muon"] == 1.0
    assert lepton_row["charge"] == 1.0


def test_harder_muon_that_is_not_isolated_loses_to_an_isolated_electron() -> None:
    muon = lepton(60.0, 1.0, 1.0)
    photon = tower(30.0, 1.0, 1.1)
    event = event_row(electrons=[ELECTRON], muons=[muon], photons=[photon])

    hlf = hlf_of(event)

    assert hlf["lepton_pt"] == 40.0
    assert hlf["lepton_is_electron"] == 1.0


def test_isolation_of_the_three_kinds_is_summed_for_the_selection() -> None:
    # Each has a fifth of the pT of the electron.
    close_track = track(8.0, 0.1, 0.0)
    photon = tower(8.0, 0.0, 0.1)
    neutral_hadron = tower(8.0, 0.0, -0.1)
    event = event_row(electrons=[ELECTRON], tracks=[close_track], photons=[photon])
    crowded_event = event | {"neutral_hadrons": [neutral_hadron]}

    hlf = hlf_of(event)

    assert extract(crowded_event).selected == []
    isolations = [hlf[f"lepton_iso_{species}"] for species in ("charged", "photon", "neutral")]
    assert isolations == near(0.2, 0.2, 0.0)


def test_electron_wins_a_tie_in_pt() -> None:
    muon = lepton(40.0, 1.0, 1.0)

    hlf = hlf_of(event_row(electrons=[ELECTRON], muons=[muon]))

    assert hlf["lepton_is_electron"] == 1.0


def test_first_in_the_file_wins_a_tie_in_pt() -> None:
    muons = [lepton(40.0, eta, 1.0) for eta in (-1.0, 1.0, -2.0)]

    hlf = hlf_of(event_row(muons=muons))

    assert hlf["lepton_eta"] == -1.0


def test_lepton_thresholds_are_strict() -> None:
    electron_at_threshold = lepton(23.0, 0.0, 0.0)
    electron_above_threshold = lepton(23.000002, 0.0, 0.0)
    # 10 / 40 = 0.25.
    photon_at_limit = tower(10.0, 0.1, 0.0)
    photon_below_limit = tower(9.999, 0.1, 0.0)
    events = [
        event_row(electrons=[electron_at_threshold]),
        event_row(electrons=[electron_above_threshold]),
        event_row(electrons=[ELECTRON], photons=[photon_at_limit]),
        event_row(electrons=[ELECTRON], photons=[photon_below_limit]),
    ]

    extracted = extract(*events, max_lepton_isolation=0.25)

    assert extracted.selected == [1, 3]
