"""The cutflow of events with weights, some of them negative, and of two samples of one class:
numbers by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from analyses import Analysis, write_sample_file
from event_rows import distinct, event_row, lepton, track

pytestmark = pytest.mark.slow

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
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    analysis = Analysis(tmp_path_factory.mktemp("weighted"))
    analysis.data.mkdir()
    analysis.samples = [
        # Cross-section / sum of weights: 2 and 0.5.
        {
            "name": name,
            "label": label,
            "files": [str(analysis.data / f"{name}.root")],
            "cross_section_pb": expected,
        }
        for name, label, expected in zip(
            WEIGHT_FILES, (0, 0, 1, 2), (118.0, 33.0, None, None), strict=True
        )
    ]
    for name, groups in WEIGHT_FILES.items():
        rows = [
            event_row(**KINDS[kind_name], weight=weight)
            for kind_name, weight, count in groups
            for _ in range(count)
        ]
        write_sample_file(analysis.data / f"{name}.root", distinct(rows))
    # Small parts: their sums must be added up.
    analysis.run(ingest={"entries_per_task": 4})
    return analysis


def test_ingest_sums_weights_and_their_squares(weighted: Analysis) -> None:
    weights = weighted.counters("ingest")["weights"]
    actual = {
        name: {step: weights[name][step] for step in ("entries", "events")} for name in WEIGHT_FILES
    }
    assert actual == {
        # 30 x 2, 5 x -1, 4 x -1, 3 x 2, 1 x 2
        "qcd_a": {"entries": [59.0, 145.0], "events": [61.0, 137.0]},
        "qcd_b": {"entries": [66.0, 132.0], "events": [50.0, 100.0]},
        "ttbar": {"entries": [60.0, 120.0], "events": [60.0, 120.0]},
        "wjets": {"entries": [70.0, 170.0], "events": [70.0, 170.0]},
    }
    assert weights["qcd_a"]["rejected_nonfinite"] == [2.0, 4.0]
    assert weights["qcd_a"]["rejected_no_lepton"] == [-4.0, 4.0]


def steps_of(weighted: Analysis, column: str, *, by: str = "classes") -> list[dict[str, Any]]:
    document = json.loads((weighted.folder_of("features") / "cutflow.json").read_text())
    return [step["columns"][column] for step in document[by]]


def test_the_cutflow_counts_events_and_weights_by_class(weighted: Analysis) -> None:
    results = [
        (step["events"], step["weight"], step["weight2"]) for step in steps_of(weighted, "QCD")
    ]
    assert results == [
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


def test_weighted_efficiencies_may_be_above_one_where_events_of_negative_weight_are_rejected(
    weighted: Analysis,
) -> None:
    (*_, last) = steps_of(weighted, "W+jets")
    assert last["efficiency"]["value"] == pytest.approx(40 / 50)
    assert last["weighted_efficiency"]["value"] == pytest.approx(80 / 70)
