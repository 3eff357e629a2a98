"""Several trainings of a network, which differ in their seeds: how much its results depend on chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def over_trainings(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and spread of the main numbers of some trainings, ready for JSON.

    The spread is the standard deviation over the trainings. All of them are measured on the same events, so the
    statistical error of these events comes on top, and is common to all.

    Args:
        runs: Numbers of each training from `models.evaluation.measurements.measure`, at least 2.

    Returns:
        `count`, and `mean` and `spread` of `accuracy`, `auc` and `auc_against` by name, and of the share of all
        backgrounds that is left at each of the `working_points`.
    """
    areas = {
        name: {key: _spread(run[name][key]["value"] for run in runs) for key in runs[0][name]}
        for name in ("auc", "auc_against")
    }
    points = [
        {"wanted": point["wanted"], **_spread(run["working_points"][place]["all_backgrounds"]["value"] for run in runs)}
        for place, point in enumerate(runs[0]["working_points"])
    ]
    accuracy = _spread(run["accuracy"]["value"] for run in runs)
    return {"count": len(runs), "accuracy": accuracy, **areas, "working_points": points}


def _spread(values: Iterable[float]) -> dict[str, float]:
    found = np.fromiter(values, dtype=np.float64)
    return {"mean": float(found.mean()), "spread": float(found.std(ddof=1))}
