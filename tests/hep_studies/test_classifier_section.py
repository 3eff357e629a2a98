"""The section of the page of claims on classifiers: calibration beside the areas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hep_studies.classifier_section import classifier_section
from hep_studies.pages import render_claims

METRICS = Path(__file__).parents[2] / "docs" / "studies" / "networks" / "metrics.json"


@pytest.fixture
def metrics() -> dict[str, Any]:
    """The published evaluation, as if all classifiers were calibrated."""
    metrics: dict[str, Any] = json.loads(METRICS.read_text(encoding="utf-8"))
    for run in metrics["runs"].values():
        for numbers in run["calibration"].values():
            numbers["p_value"] = 0.5
    return metrics


def test_the_best_classifier_is_named_with_its_failed_calibration(metrics: dict[str, Any]) -> None:
    metrics["best"] = "inclusive"
    calibration = metrics["runs"]["inclusive"]["calibration"]
    calibration["QCD"] = {"error": 0.0171, "expected": 0.0059, "p_value": 0.0025}

    page = render_claims({}, command="", evaluations=[classifier_section(metrics)])

    assert "by rate): **inclusive**" in page
    assert "**Miscalibrated: inclusive (p = 0.0025).** Areas and efficiencies are" in page
    assert "|inclusive|0.0171, perfect 0.0059, p = 0.0025|" in page


def test_calibrated_classifiers_need_no_words(metrics: dict[str, Any]) -> None:
    page = render_claims({}, command="", evaluations=[classifier_section(metrics)])

    assert "Miscalibrated" not in page


@pytest.mark.parametrize(("p_value", "fails"), [(0.016, True), (0.017, False)])
def test_a_classifier_fails_at_a_level_for_all_its_classes_together(
    metrics: dict[str, Any], p_value: float, fails: bool
) -> None:
    metrics["runs"]["hlf"]["calibration"]["QCD"]["p_value"] = p_value

    section = classifier_section(metrics)

    assert section["miscalibrated"] == ({"hlf": p_value} if fails else {})
