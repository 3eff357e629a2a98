"""The table of columns: the published names, and complete rows."""

from __future__ import annotations

import pytest

from features.columns import HIGH_LEVEL, INPUT_COLUMNS, MAX_PARTICLES, PARTICLE, hlf_names
from features.distributions import histogrammed_features

#: Models that were trained elsewhere take these, in this order; new features come after them.
PUBLISHED = (
    *("ht", "met", "met_phi", "mt", "num_jets", "num_bjets"),
    *("lepton_pt", "lepton_eta", "lepton_phi"),
    *("lepton_iso_charged", "lepton_iso_photon", "lepton_iso_neutral"),
    *("lepton_charge", "lepton_is_electron"),
)
PUBLISHED_OF_A_PARTICLE = (
    *("energy", "px", "py", "pz", "pt", "eta", "phi", "vertex_x", "vertex_y", "vertex_z"),
    *("iso_charged", "iso_photon", "iso_neutral"),
    *("is_charged_hadron", "is_neutral_hadron", "is_photon", "is_electron", "is_muon", "charge"),
)


def test_the_published_features_come_first_and_in_order() -> None:
    assert hlf_names()[:14] == PUBLISHED, (
        "the row of a new feature belongs at the end of HIGH_LEVEL"
    )
    assert INPUT_COLUMNS["particles"].names == PUBLISHED_OF_A_PARTICLE
    assert INPUT_COLUMNS["particles"].shape == (801, 19)


@pytest.mark.parametrize("features", [HIGH_LEVEL, PARTICLE], ids=["of an event", "of a particle"])
def test_names_differ_and_every_row_is_filled_in(features: tuple) -> None:
    assert len({feature.name for feature in features}) == len(features)
    for feature in features:
        assert feature.unit in {"GeV", "rad", "mm", "e", "1"}
        assert feature.is_scaled
        assert feature.log_above >= 0
        is_steep = feature.unit in {"GeV", "mm"} or "iso_" in feature.name
        assert (feature.log_above > 0) == is_steep


def test_every_high_level_feature_has_a_histogram_that_its_flags_and_counts_fit() -> None:
    features = histogrammed_features()

    hlf_histograms = [name for name in features if name.startswith("hlf.")]
    expected_histograms = [f"hlf.{name}" for name in hlf_names()]
    assert hlf_histograms == [*expected_histograms, "hlf.num_particles"]
    for _, binning in features.values():
        assert binning.low < binning.high
        assert binning.bins > 1
    _, binning_of_counts = features["hlf.num_particles"]
    assert binning_of_counts.high > MAX_PARTICLES


def test_histograms_of_steep_spectra_are_logarithmic() -> None:
    features = histogrammed_features()

    logarithmic = {name for name, (_, binning) in features.items() if binning.log}
    assert logarithmic == {
        "hlf.lepton_iso_photon",
        "hlf.lepton_iso_neutral",
        "particles.energy",
        "particles.pt",
        "particles.vertex_z",
        "particles.iso_charged",
        "particles.iso_photon",
        "particles.iso_neutral",
    }
