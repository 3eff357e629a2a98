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
    muon, photon = lepton(60.0, 1.0, 1.0), tower(30.0, 1.0, 1.1)

    hlf = hlf_of(event_row(electrons=[ELECTRON], muons=[muon], photons=[photon]))

    assert hlf["lepton_pt"] == 40.0
    assert hlf["lepton_is_electron"] == 1.0


def test_isolation_of_the_three_kinds_is_summed_for_the_selection() -> None:
    event = event_row(
        electrons=[ELECTRON], tracks=[track(8.0, 0.1, 0.0)], photons=[tower(8.0, 0.0, 0.1)]
    )
    crowded_event = event | {"neutral_hadrons": [tower(8.0, 0.0, -0.1)]}

    assert extract(crowded_event).selected == []
    hlf = hlf_of(event)
    isolations = [hlf[f"lepton_iso_{species}"] for species in ("charged", "photon", "neutral")]
    assert isolations == near(0.2, 0.2, 0.0)


def test_electron_wins_a_tie_in_pt() -> None:
    event = event_row(electrons=[ELECTRON], muons=[lepton(40.0, 1.0, 1.0)])

    assert hlf_of(event)["lepton_is_electron"] == 1.0


def test_first_in_the_file_wins_a_tie_in_pt() -> None:
    event = event_row(muons=[lepton(40.0, eta, 1.0) for eta in (-1.0, 1.0, -2.0)])

    assert hlf_of(event)["lepton_eta"] == -1.0


def test_lepton_thresholds_are_strict() -> None:
    events = [
        event_row(electrons=[lepton(23.0, 0.0, 0.0)]),
        event_row(electrons=[lepton(23.000002, 0.0, 0.0)]),
        event_row(electrons=[ELECTRON], photons=[tower(10.0, 0.1, 0.0)]),
        event_row(electrons=[ELECTRON], photons=[tower(9.999, 0.1, 0.0)]),
    ]

    assert extract(*events, max_lepton_isolation=0.25).selected == [1, 3]
