"""One model in an evaluation: its predictions, numbers and curves."""

from __future__ import annotations

from typing import Any, NamedTuple

from models.evaluation.curves import EfficiencyCurve
from models.evaluation.intervals import Floats
from models.evaluation.scored_events import ScoredEvents
from models.prediction import Candidate


class EvaluatedModel(NamedTuple):
    """Predictions, numbers and curves of one model."""

    candidate: Candidate
    test: ScoredEvents
    """All test events."""
    measured: ScoredEvents
    """The test events of the classes that can be measured."""
    numbers: dict[str, Any]
    """Content of `metrics.json` for this model; the evaluation adds to it."""
    curves: dict[str, EfficiencyCurve]
    """Background efficiencies against signal efficiency, by name of the background."""
    area: Floats
    """(1 + num_replicas,) area under the ROC curve against the mixture of backgrounds; the first is
    the measured one."""

    @property
    def name(self) -> str:
        """Name of the model, and of its folder."""
        return self.candidate.name

    @property
    def measurable_points(self) -> list[float]:
        """Signal efficiencies of the working points that can be measured."""
        points = self.numbers["working_points"]
        return [point["wanted"] for point in points if point["measurable"]]
