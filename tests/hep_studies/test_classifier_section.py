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
    metrics: dict[str, Any] = json.loads(METRICS.read_text(encoding="utf-8"))
    return metrics


def test_the_best_classifier_is_named_with_its_failed_calibration(metrics: dict[str, Any]) -> None:
    page = render_claims({}, command="", evaluations=[classifier_section(metrics)])

    assert "by rate): **inclusive**" in page
    failed = "**Miscalibrated: particles (p = 0.0025), inclusive (p = 0.0025), boosted-trees (p = "
    assert failed in page
    assert "|inclusive|0.0171, perfect 0.0059, p = 0.0025|" in page


@pytest.mark.parametrize(("p_value", "fails"), [(0.016, True), (0.017, False)])
def test_a_classifier_fails_at_a_level_for_all_its_classes_together(
    metrics: dict[str, Any], p_value: float, fails: bool
) -> None:
    metrics["runs"] = {"hlf": metrics["runs"]["hlf"]}
    metrics["runs"]["hlf"]["calibration"]["QCD"]["p_value"] = p_value

    section = classifier_section(metrics)

    assert section["miscalibrated"] == ({"hlf": p_value} if fails else {})
