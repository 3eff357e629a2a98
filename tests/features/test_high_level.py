"""Jets and the transverse mass, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from event_rows import event_row, jet, lepton
from extracted_features import ELECTRON, hlf_of, near
from numpy.typing import NDArray

from features.columns import hlf_names
from features.errors import FeatureError
from features.functions import FUNCTIONS
from features.high_level import check_independence


@pytest.mark.parametrize(
    ("met", "phi", "met_phi", "expected"),
    [
        (30.0, 0.0, 2.0, 58.298820),  # sqrt(2 * 40 * 30 * (1 + 0.4161468))
        (30.0, 1.5, -0.5, 58.298820),
        (40.0, 0.0, math.pi, 80.0),  # back to back: sqrt(2 * 40 * 40 * 2)
        (30.0, 0.5, 0.5, 0.0),
        (30.0, 3.0, -3.0, 9.777081),  # across the seam: sqrt(2400 * (1 - 0.9601703))
    ],
)
def test_mt_has_the_square_root(met: float, phi: float, met_phi: float, expected: float) -> None:
    electron = lepton(40.0, 0.0, phi)

    hlf = hlf_of(event_row(electrons=[electron], met=met, met_phi=met_phi))

    assert hlf["mt"] == pytest.approx(expected, rel=1e-6)
    assert [hlf["met"], hlf["met_phi"]] == near(met, met_phi)


def test_jets_at_the_thresholds_do_not_count() -> None:
    jets = [
        jet(30.0, 0.0, 1.0, btag=1),
        jet(30.5, 0.0, 1.0, btag=1),
        jet(50.0, 2.5, 1.0),
        jet(60.0, 2.6000001, 1.0, btag=1),  # the first float32 above 2.6; 2.6 itself is no float32
        jet(70.0, -2.6000001, 1.0),
        jet(80.0, -2.59, 1.0),
    ]

    hlf = hlf_of(event_row(electrons=[ELECTRON], jets=jets))

    assert hlf["ht"] == 30.5 + 50.0 + 80.0
    assert hlf["num_jets"] == 3.0
    assert hlf["num_bjets"] == 1.0


@pytest.mark.parametrize(
    ("mask", "expected"), [(0xFFFFFFFF, 4.0), (1, 2.0), (2, 2.0), (4, 0.0), (0x80000000, 1.0)]
)
def test_b_jets_are_counted_by_the_mask(mask: int, expected: float) -> None:
    jets = [jet(40.0, 0.0, 1.0, btag=btag) for btag in (0, 1, 2, 3, 0x80000000)]

    hlf = hlf_of(event_row(electrons=[ELECTRON], jets=jets), btag_mask=mask)

    assert hlf["num_jets"] == 5.0
    assert hlf["num_bjets"] == expected


def test_jets_on_the_lepton_do_not_count_with_cleaning() -> None:
    jet_on_lepton = jet(40.0, 0.0, 0.0, btag=1)
    jet_in_cone = jet(50.0, 0.0, -0.375, btag=1)
    jet_on_edge = jet(60.0, 0.5, 0.0, btag=1)
    event = event_row(electrons=[ELECTRON], jets=[jet_on_lepton, jet_in_cone, jet_on_edge])

    uncleaned = hlf_of(event, jet_lepton_cleaning_dr=0.0)
    cleaned = hlf_of(event, jet_lepton_cleaning_dr=0.5)

    jet_features = ("ht", "num_jets", "num_bjets")
    assert [uncleaned[name] for name in jet_features] == [150.0, 3.0, 3.0]
    assert [cleaned[name] for name in jet_features] == [60.0, 1.0, 1.0]


def test_jet_at_exactly_the_largest_eta_does_not_count() -> None:
    jets = [jet(40.0, 2.5, 1.0), jet(50.0, -2.5, 1.0), jet(60.0, 2.25, 1.0)]

    hlf = hlf_of(event_row(electrons=[ELECTRON], jets=jets), max_jet_abs_eta=2.5)

    assert hlf["ht"] == 60.0
    assert hlf["num_jets"] == 1.0


#: Two values of a feature of the same event, computed with different numbers of events.
EQUAL_BUT_FOR_ROUNDING = [(0.0, 5e-7), (100.0, 100.0005)]
DIFFERENT = [(0.0, 1e-5), (100.0, 100.01)]


def recomputed_features(first: float, second: float) -> NDArray[np.float32]:
    """Features computed twice, (2, num_events, num_features), with two HT of one event."""
    hlf = np.ones((2, 3, len(hlf_names())), np.float32)
    hlf[:, 1, hlf_names().index("ht")] = first, second
    # Built-in features may depend on the number of events in their last digits.
    hlf[1, :, hlf_names().index("mt")] = 2
    return hlf


@pytest.mark.parametrize("values", DIFFERENT)
def test_a_feature_of_a_plugin_that_depends_on_further_events_is_refused(
    monkeypatch: pytest.MonkeyPatch, values: tuple[float, float]
) -> None:
    monkeypatch.setitem(FUNCTIONS, "ht", FUNCTIONS["ht"]._replace(is_plugin=True))

    with pytest.raises(FeatureError, match=r"the feature 'ht' .* depends on the other events"):
        check_independence(*recomputed_features(*values))


@pytest.mark.parametrize(
    ("is_plugin", "values"),
    [*((True, values) for values in EQUAL_BUT_FOR_ROUNDING), (False, DIFFERENT[1])],
)
def test_rounding_and_built_in_features_are_not_refused(
    monkeypatch: pytest.MonkeyPatch, is_plugin: bool, values: tuple[float, float]
) -> None:
    monkeypatch.setitem(FUNCTIONS, "ht", FUNCTIONS["ht"]._replace(is_plugin=is_plugin))

    check_independence(*recomputed_features(*values))
