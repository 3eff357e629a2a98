"""Which lepton is selected, by hand."""

from __future__ import annotations

from event_rows import event_row, lepton, tower, track
from extracted_features import ELECTRON, extract, near


def test_highest_pt_lepton_wins_over_larger_eta() -> None:
    event = event_row(
        electrons=[lepton(30.0, 2.0, 0.0)], muons=[lepton(50.0, 0.125, 1.0, charge=1)]
    )
    (hlf,), (rows,) = extract(event)[1:]
    assert hlf["lepton_pt"] == 50.0
    assert hlf["lepton_eta"] == 0.125
    assert hlf["lepton_phi"] == 1.0
    assert hlf["lepton_charge"] == 1.0
    assert hlf["lepton_is_electron"] == 0.0
    assert (rows[0]["is_electron"], rows[0]["is_muon"], rows[0]["charge"]) == (0.0, 1.0, 1.0)


def test_harder_muon_that_is_not_isolated_loses_to_an_isolated_electron() -> None:
    event = event_row(
        electrons=[ELECTRON], muons=[lepton(60.0, 1.0, 1.0)], photons=[tower(30.0, 1.0, 1.1)]
    )
    (hlf,) = extract(event).hlf
    assert hlf["lepton_pt"] == 40.0
    assert hlf["lepton_is_electron"] == 1.0


def test_isolation_of_the_three_kinds_is_summed_for_the_selection() -> None:
    around = {
        "tracks": [track(8.0, 0.1, 0.0)],
        "photons": [tower(8.0, 0.0, 0.1)],
        "neutral_hadrons": [tower(8.0, 0.0, -0.1)],
    }
    assert extract(event_row(electrons=[ELECTRON], **around)).selected == []
    around["neutral_hadrons"] = []
    (hlf,) = extract(event_row(electrons=[ELECTRON], **around)).hlf
    isolations = [hlf["lepton_iso_charged"], hlf["lepton_iso_photon"], hlf["lepton_iso_neutral"]]
    assert isolations == near(0.2, 0.2, 0.0)


def test_electron_wins_a_tie_in_pt() -> None:
    event = event_row(electrons=[ELECTRON], muons=[lepton(40.0, 1.0, 1.0)])
    assert extract(event).hlf[0]["lepton_is_electron"] == 1.0


def test_first_in_the_file_wins_a_tie_in_pt() -> None:
    event = event_row(
        muons=[lepton(40.0, -1.0, 1.0), lepton(40.0, 1.0, 1.0), lepton(40.0, -2.0, 1.0)]
    )
    assert extract(event).hlf[0]["lepton_eta"] == -1.0


def test_lepton_thresholds_are_strict() -> None:
    events = [
        event_row(electrons=[lepton(23.0, 0.0, 0.0)]),
        event_row(electrons=[lepton(23.000002, 0.0, 0.0)]),
        event_row(electrons=[ELECTRON], photons=[tower(10.0, 0.1, 0.0)]),
        event_row(electrons=[ELECTRON], photons=[tower(9.999, 0.1, 0.0)]),
    ]
    assert extract(*events, max_lepton_isolation=0.25).selected == [1, 3]
