"""The runs that check the simulator take the way of averaging that they are predicted with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from training.settings import TrainSettings
from training.simulation.probe import Measurement
from training.studies.calibration import _ways, read_or_measure


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


def test_messages_were_not_measured_anew_after_a_change_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([1.0, 2.0])
    monkeypatch.setattr(
        "training.studies.calibration.measure_messages", lambda *_: [Measurement("locked", 2, 256, next(seconds))]
    )
    found = [read_or_measure(tmp_path, TrainSettings(), code=code)[0].seconds for code in ("old", "old", "new")]
    assert found == [1.0, 1.0, 2.0]
