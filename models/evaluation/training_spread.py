"""Mean and spread of measured numbers over several trainings of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def spread_of_trainings(trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and spread of each number over the trainings, from the numbers of each."""
    points = []
    for index, point in enumerate(trainings[0]["working_points"]):
        shares = [run["working_points"][index]["all_backgrounds"] for run in trainings]
        points.append({"wanted": point["wanted"], **_spread(shares)})
    accuracies = [run["accuracy"] for run in trainings]
    areas = [run["auc"] for run in trainings]
    areas_against = [run["auc_against"] for run in trainings]
    return {
        "count": len(trainings),
        "accuracy": _spread(accuracies),
        "auc": _spread_by_name(areas),
        "auc_against": _spread_by_name(areas_against),
        "working_points": points,
    }


def _spread_by_name(
    trainings: Sequence[Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, float]]:
    """Return mean and spread of each value that all trainings have under the same name."""
    spreads = {}
    for name in trainings[0]:
        values_of_trainings = [numbers[name] for numbers in trainings]
        spreads[name] = _spread(values_of_trainings)
    return spreads


def _spread(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return mean and sample standard deviation of some measured values."""
    values = np.array([number["value"] for number in numbers])
    mean = values.mean()
    spread = values.std(ddof=1)
    return {"mean": float(mean), "spread": float(spread)}
