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

EVENTS: dict[str, dict[str, Any]] = {
    "good": {"electrons": [lepton(40.0, 0.1, 0.2)]},
    "soft": {"electrons": [lepton(10.0, 0.1, 0.2)]},
    "not isolated": {"electrons": [lepton(40.0, 0.1, 0.2)], "tracks": [track(40.0, 0.15, 0.25)]},
    "not finite": {"electrons": [lepton(40.0, 0.1, 0.2)], "met": math.nan},
}
#: Label and cross-section [pb] of each sample; with the sums of weights below, an event of the
#: first counts 118 / 59 = 2, one of the second 33 / 66 = 0.5.
SAMPLES: dict[str, tuple[int, float | None]] = {
    "qcd_a": (0, 118.0),
    "qcd_b": (0, 33.0),
    "ttbar": (1, None),
    "wjets": (2, None),
}
#: Kind, weight and number of the events of each sample.
WEIGHTED_EVENTS: dict[str, list[tuple[str, float, int]]] = {
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


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Ingested events and features of the weighted samples."""
    analysis = Analysis(tmp_path_factory.mktemp("weighted"))
    analysis.data.mkdir()
    analysis.samples = []
    for name, (label, cross_section) in SAMPLES.items():
        path = analysis.data / f"{name}.root"
        rows = []
        for event, weight, count in WEIGHTED_EVENTS[name]:
            rows += [event_row(**EVENTS[event], weight=weight)] * count
        write_sample_file(path, distinct(rows))
        analysis.samples.append(
            {"name": name, "label": label, "files": [str(path)], "cross_section_pb": cross_section}
        )
    # Small parts: their sums must be added up.
    analysis.run(ingest={"entries_per_task": 4})
    return analysis


def cutflow_steps(analysis: Analysis, column: str, *, by: str = "classes") -> list[dict[str, Any]]:
    cutflow = json.loads((analysis.folder_of("features") / "cutflow.json").read_text())
    return [step["columns"][column] for step in cutflow[by]]


def test_ingest_sums_weights_and_their_squares(weighted: Analysis) -> None:
    weights = weighted.counters("ingest")["weights"]

    entries = {name: weights[name]["entries"] for name in SAMPLES}
    events = {name: weights[name]["events"] for name in SAMPLES}

    assert entries == {
        # 30 x 2, 5 x -1, 4 x -1, 3 x 2, 1 x 2
        "qcd_a": [59.0, 145.0],
        "qcd_b": [66.0, 132.0],
        "ttbar": [60.0, 120.0],
        "wjets": [70.0, 170.0],
    }
    assert events == {
        "qcd_a": [61.0, 137.0],
        "qcd_b": [50.0, 100.0],
        "ttbar": [60.0, 120.0],
        "wjets": [70.0, 170.0],
    }
    assert weights["qcd_a"]["rejected_nonfinite"] == [2.0, 4.0]
    assert weights["qcd_a"]["rejected_no_lepton"] == [-4.0, 4.0]


def test_the_cutflow_counts_events_and_weights_by_class(weighted: Analysis) -> None:
    steps = cutflow_steps(weighted, "QCD")
    last_of_sample = cutflow_steps(weighted, "qcd_a", by="samples")[-1]

    # Both samples: 43 + 33 entries; less 1 not finite; less 4 + 8 soft; less 3 not isolated.
    assert [step["events"] for step in steps] == [76, 75, 63, 60, 60]
    # The weights of the first count twice, those of the second half.
    assert [step["weight"] for step in steps] == [
        2 * 59 + 66 / 2,
        2 * 57 + 66 / 2,
        2 * 61 + 50 / 2,
        2 * 55 + 50 / 2,
        2 * 55 + 50 / 2,
    ]
    assert [step["weight2"] for step in steps] == [
        4 * 145 + 132 / 4,
        4 * 141 + 132 / 4,
        4 * 137 + 100 / 4,
        4 * 125 + 100 / 4,
        4 * 125 + 100 / 4,
    ]
    assert last_of_sample["events"] == 35
    assert last_of_sample["weight"] == 110.0
    assert last_of_sample["weight2"] == 500.0


def test_weighted_efficiencies_exceed_one_where_events_of_negative_weight_are_rejected(
    weighted: Analysis,
) -> None:
    last_step = cutflow_steps(weighted, "W+jets")[-1]

    assert last_step["efficiency"]["value"] == pytest.approx(40 / 50)
    assert last_step["weighted_efficiency"]["value"] == pytest.approx(80 / 70)
