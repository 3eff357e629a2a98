"""ROC curves of two models against two backgrounds, for figures."""

from __future__ import annotations

import numpy as np

from models.evaluation.bootstrap import Replicas
from models.evaluation.curve_figures import Curves
from models.evaluation.curves import EfficiencyCurve, background_curve
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.measurements import GRID

POINTS = [0.75, 0.9]
WORDS = {"all backgrounds": "91 % QCD, 9 % W+jets, by rate"}


def example_curve(
    separation: float, *, lightest: float = 1.0, background: int = 300
) -> EfficiencyCurve:
    """Curves of events whose signal lies a number of widths above the background."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], [background, 300])
    weights = np.where(rng.random(len(labels)) < 0.1, lightest, 1.0)
    replicas = Replicas(labels, np.full(len(labels), "a"), weights, seed=1, num=60)
    return background_curve(
        ReplicatedScore(replicas, rng.normal(separation * labels, 1.0), {1: 1.0}, GRID), {0: 1.0}
    )


CURVES: Curves = {
    "all backgrounds": {"hlf": example_curve(3), r"$x_1$": example_curve(1)},
    r"$t\bar{t}$_2": {"hlf": example_curve(2), r"$x_1$": example_curve(4)},
}
