"""The cutflow of events with weights, some of them negative, and of two samples of one class: numbers by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from analyses import Analysis, write
from made_events import distinct, lepton, made_event, track
from scipy.stats import beta

from pipeline.machine.spark_session import SparkProvider

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WEIGHT_FILES: dict[str, list[tuple[str, float, int]]] = {
    # (kind of event, weight, how many); two samples of the first class
    "qcd_a": [
        ("good", 2.0, 30),
        ("good", -1.0, 5),
        ("soft", -1.0, 4),
        ("not isolated", 2.0, 3),
        ("not finite", 2.0, 1),
    ],
    "qcd_b": [("good", 2.0, 25), ("soft", 2.0, 8)],
    "ttbar": [("good", 2.0, 30)],
    "wjets": [("good", 2.0, 40), ("not isolated", -1.0, 10)],
}
KINDS: dict[str, dict[str, Any]] = {
    "good": {"electrons": [lepton(40.0, 0.1, 0.2)]},
    "soft": {"electrons": [lepton(10.0, 0.1, 0.2)]},
    "not isolated": {"electrons": [lepton(40.0, 0.1, 0.2)], "tracks": [track(40.0, 0.15, 0.25)]},
    "not finite": {"electrons": [lepton(40.0, 0.1, 0.2)], "met": math.nan},
}


@pytest.fixture(scope="module")
def weighted(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    made = Analysis(tmp_path_factory.mktemp("weighted"), provider)
    made.data.mkdir()
    made.samples = [
        # Cross-section / sum of weights: 2 and 0.5.
        {"name": name, "label": label, "files": [str(made.data / f"{name}.root")], "cross_section_pb": known}
        for name, label, known in zip(WEIGHT_FILES, (0, 0, 1, 2), (118.0, 33.0, None, None), strict=True)
    ]
    for name, groups in WEIGHT_FILES.items():
        rows = [made_event(**KINDS[kind], weight=weight) for kind, weight, count in groups for _ in range(count)]
        write(made.data / f"{name}.root", distinct(rows))
    # Small parts: their sums must be added up.
    made.run(ingest={"entries_per_task": 4})
    return made


def test_ingest_sums_weights_and_their_squares(weighted: Analysis) -> None:
    weights = weighted.counters("ingest")["weights"]
    found = {name: {step: weights[name][step] for step in ("entries", "events")} for name in WEIGHT_FILES}
    assert found == {
        # 30 x 2, 5 x -1, 4 x -1, 3 x 2, 1 x 2
        "qcd_a": {"entries": [59.0, 145.0], "events": [61.0, 137.0]},
        "qcd_b": {"entries": [66.0, 132.0], "events": [50.0, 100.0]},
        "ttbar": {"entries": [60.0, 120.0], "events": [60.0, 120.0]},
        "wjets": {"entries": [70.0, 170.0], "events": [70.0, 170.0]},
    }
    assert weights["qcd_a"]["rejected_nonfinite"] == [2.0, 4.0]
    assert weights["qcd_a"]["rejected_no_lepton"] == [-4.0, 4.0]


def steps_of(weighted: Analysis, column: str, *, by: str = "classes") -> list[dict[str, Any]]:
    content = json.loads((weighted.version("features") / "cutflow.json").read_text())
    return [step["columns"][column] for step in content[by]]


def test_the_cutflow_counts_events_and_weights_by_class(weighted: Analysis) -> None:
    found = [(each["events"], each["weight"], each["weight2"]) for each in steps_of(weighted, "QCD")]
    assert found == [
        # Both samples: 43 + 33 entries; less 1 not finite; less 4 + 8 soft; less 3 not isolated.
        # The weights of the first count twice, those of the second half.
        (76, 2 * 59 + 66 / 2, 4 * 145 + 132 / 4),
        (75, 2 * 57 + 66 / 2, 4 * 141 + 132 / 4),
        (63, 2 * 61 + 50 / 2, 4 * 137 + 100 / 4),
        (60, 2 * 55 + 50 / 2, 4 * 125 + 100 / 4),
        (60, 2 * 55 + 50 / 2, 4 * 125 + 100 / 4),
    ]
    (*_, alone) = steps_of(weighted, "qcd_a", by="samples")
    assert (alone["events"], alone["weight"], alone["weight2"]) == (35, 110.0, 500.0)


def test_counters_beside_the_cuts_are_in_both_files(weighted: Analysis) -> None:
    folder = weighted.version("features")
    expected = {"qcd_a": 38, "qcd_b": 25, "ttbar": 30, "wjets": 50}
    assert json.loads((folder / "cutflow.json").read_text())["counters"] == {
        "leptons_without_own_track": expected,
        "events_with_wrapped_azimuths": dict.fromkeys(expected, 0),
    }
    line = "leptons without own track: qcd_a 38, qcd_b 25, ttbar 30, wjets 50\n"
    assert line in (folder / "cutflow.txt").read_text()


def test_efficiencies_are_those_computed_by_hand(weighted: Analysis) -> None:
    (first, *_, last) = steps_of(weighted, "QCD")
    assert first["efficiency"] == first["weighted_efficiency"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    raw, heavy = last["efficiency"], last["weighted_efficiency"]
    # Jeffreys' interval of 60 of 76: quantiles of a beta distribution.
    ends = beta.ppf([0.158655, 0.841345], 60.5, 16.5)
    assert (raw["value"], raw["low"], raw["high"]) == pytest.approx((60 / 76, *ends), rel=1e-4)
    assert heavy["value"] == pytest.approx(135 / 151)
    assert heavy["low"] < 135 / 151 < heavy["high"]


def test_weighted_efficiencies_may_be_above_one_where_events_of_negative_weight_are_rejected(
    weighted: Analysis,
) -> None:
    (*_, last) = steps_of(weighted, "W+jets")
    assert last["efficiency"]["value"] == pytest.approx(40 / 50)
    assert last["weighted_efficiency"]["value"] == pytest.approx(80 / 70)


def test_selected_weights_of_all_splits_are_those_of_the_cutflow(weighted: Analysis) -> None:
    selected = weighted.counters("features")["weights"]
    assert {name: selected[name]["selected"] for name in WEIGHT_FILES} == {
        "qcd_a": [55.0, 125.0],
        "qcd_b": [50.0, 100.0],
        "ttbar": [60.0, 120.0],
        "wjets": [80.0, 160.0],
    }
