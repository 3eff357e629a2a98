"""The page took the number of a variation for that of a working point: it stopped, or showed points of no meaning."""

from __future__ import annotations

from pathlib import Path

from made_manifests import REPORT, Page, made_versions

from pipeline.reporting.page import render

VARIATIONS = ("jet scale +2 %", "jet scale -2 %", "MET scale +5 %")


def test_each_variation_stands_at_the_points_that_can_be_measured(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    metrics = made["evaluate"].manifest["counters"]
    name, run = next(iter(metrics["runs"].items()))
    number = {"value": 0.5, "shift": -0.0123, "error": 0.001}
    # Only the first of the two points can be measured.
    points = [{"wanted": wanted, "efficiencies": dict.fromkeys(metrics["classes"], number)} for wanted in (0.9, 0.999)]
    run["systematics"] = {each: {"accuracy": None, "working_points": points} for each in VARIATIONS}
    page = Page(render(made, REPORT, tmp_path / "card"))
    shown = next(each for each in page.tables if each[0][1] == "Variation")
    assert [row[:3] for row in shown[1:]] == [[name, each, "90 %"] for each in VARIATIONS]
