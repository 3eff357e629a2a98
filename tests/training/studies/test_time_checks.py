"""The runs that check the simulator take the way of averaging that they are predicted with."""

from __future__ import annotations

from typing import Any

import pytest

from training.settings import TrainSettings
from training.studies.calibration import _ways


@pytest.mark.parametrize(
    ("algorithm", "cores", "overlap"),
    [
        ({"name": "ad-psgd"}, 4, "thread"),
        ({"name": "ad-psgd"}, 3, "inline"),
        ({"name": "ad-psgd", "overlap": "thread"}, 2, None),
        ({"name": "swarm-sgd"}, 2, None),
    ],
)
def test_hidden_averages_were_predicted_for_runs_that_average_at_once(
    algorithm: dict[str, Any], cores: int, overlap: str | None
) -> None:
    settings = TrainSettings.model_validate({"workers": 2, "algorithm": algorithm})
    found = _ways(settings, 2, cores)
    assert found.get("algorithm", {}).get("overlap") == overlap
    # Nothing else of the method changes.
    changed = TrainSettings.model_validate({**settings.model_dump(), **found})
    assert changed.algorithm.model_dump() == settings.algorithm.model_dump() | found.get("algorithm", {})
