"""Mean and spread over trainings of one network."""

from __future__ import annotations

from typing import Any

import pytest

from models.evaluation.evaluation import over_trainings


def measured(accuracy: float) -> dict[str, Any]:
    """Numbers of a training; the others follow from its accuracy."""
    area = {"value": accuracy / 2, "error": 0.5}
    return {
        "accuracy": {"value": accuracy, "error": 0.1},
        "auc": {"QCD": area, "ttbar": area},
        "auc_against": {"all backgrounds": area},
        "working_points": [{"wanted": 0.9, "all_backgrounds": {"value": 1 - accuracy, "low": 0.0, "high": 1.0}}],
    }


def test_mean_and_standard_deviation_of_each_number() -> None:
    found = over_trainings([measured(each) for each in (0.5, 0.7, 0.9)])
    area = {"mean": pytest.approx(0.35), "spread": pytest.approx(0.1)}
    assert found == {
        "count": 3,
        "accuracy": {"mean": pytest.approx(0.7), "spread": pytest.approx(0.2)},
        "auc": {"QCD": area, "ttbar": area},
        "auc_against": {"all backgrounds": area},
        "working_points": [{"wanted": 0.9, "mean": pytest.approx(0.3), "spread": pytest.approx(0.2)}],
    }
