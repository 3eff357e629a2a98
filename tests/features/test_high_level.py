"""Jets and the transverse mass, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from event_rows import event_row, jet, lepton
from extracted_features import ELECTRON, extract, near_pair

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
    event = event_row(electrons=[lepton(40.0, 0.0, phi)], met=met, met_phi=met_phi)
    (hlf,) = extract(event).hlf
    assert hlf["mt"] == pytest.approx(expected, rel=1e-6)
    assert (hlf["met"], hlf["met_phi"]) == near_pair(met, met_phi)


def test_jets_at_the_thresholds_do_not_count() -> None:
    jets = [
        jet(30.0, 0.0, 1.0, btag=1),
        jet(30.5, 0.0, 1.0, btag=1),
        jet(50.0, 2.5, 1.0),
        jet(60.0, 2.6000001, 1.0, btag=1),  # the first float32 above 2.6; 2.6 itself is no float32
        jet(70.0, -2.6000001, 1.0),
        jet(80.0, -2.59, 1.0),
    ]
    (hlf,) = extract(event_row(electrons=[ELECTRON], jets=jets)).hlf
    assert hlf["ht"] == 30.5 + 50.0 + 80.0
    assert (hlf["num_jets"], hlf["num_bjets"]) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("mask", "expected"), [(0xFFFFFFFF, 4.0), (1, 2.0), (2, 2.0), (4, 0.0), (0x80000000, 1.0)]
)
def test_b_jets_are_counted_by_the_mask(mask: int, expected: float) -> None:
    jets = [jet(40.0, 0.0, 1.0, btag=btag) for btag in (0, 1, 2, 3, 0x80000000)]
    (hlf,) = extract(event_row(electrons=[ELECTRON], jets=jets), btag_mask=mask).hlf
    assert (hlf["num_jets"], hlf["num_bjets"]) == (5.0, expected)


def test_jets_on_the_lepton_do_not_count_with_cleaning() -> None:
    jets = [
        jet(40.0, 0.0, 0.0, btag=1),
        jet(50.0, 0.0, -0.375, btag=1),
        jet(60.0, 0.5, 0.0, btag=1),
    ]
    event = event_row(electrons=[ELECTRON], jets=jets)

    (uncleaned,) = extract(event, jet_lepton_cleaning_dr=0.0).hlf
    (cleaned,) = extract(event, jet_lepton_cleaning_dr=0.5).hlf

    assert (uncleaned["ht"], uncleaned["num_jets"], uncleaned["num_bjets"]) == (150.0, 3.0, 3.0)
    assert (cleaned["ht"], cleaned["num_jets"], cleaned["num_bjets"]) == (60.0, 1.0, 1.0)


def test_jet_at_exactly_the_largest_eta_does_not_count() -> None:
    jets = [jet(40.0, 2.5, 1.0), jet(50.0, -2.5, 1.0), jet(60.0, 2.25, 1.0)]
    (hlf,) = extract(event_row(electrons=[ELECTRON], jets=jets), max_jet_abs_eta=2.5).hlf
    assert (hlf["ht"], hlf["num_jets"]) == (60.0, 1.0)


@pytest.mark.parametrize(
    ("values", "is_refused"),
    [
        ((0.0, 5e-7), False),
        ((0.0, 1e-5), True),
        ((100.0, 100.0005), False),
        ((100.0, 100.01), True),
    ],
)
@pytest.mark.parametrize("is_plugin", [True, False])
def test_a_feature_of_a_plugin_is_refused_where_an_event_differs_beyond_rounding(
    monkeypatch: pytest.MonkeyPatch, values: tuple[float, float], is_refused: bool, is_plugin: bool
) -> None:
    monkeypatch.setitem(FUNCTIONS, "ht", FUNCTIONS["ht"]._replace(is_plugin=is_plugin))
    ht, mt = hlf_names().index("ht"), hlf_names().index("mt")
    hlf, recomputed = np.ones((2, 3, len(hlf_names())), np.float32)
    hlf[1, ht], recomputed[1, ht] = values
    # Built-in features may depend on the number of events in their last digits.
    recomputed[:, mt] = 2

    if is_refused and is_plugin:
        with pytest.raises(FeatureError, match=r"the feature 'ht' .* depends on the other events"):
            check_independence(hlf, recomputed)
    else:
        check_independence(hlf, recomputed)
