"""Trainings that are refused at their end, since the model never moved."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.stages.train import check_model_moved
from training.errors import IdleSettingError
from training.settings import TrainSettings

SETTINGS = TrainSettings.model_validate(
    {"algorithm": {"name": "agn", "local_steps": 50}, "workers": 2}
)


def summary(acted: dict[str, int], steps_not_finite: int) -> dict[str, Any]:
    return {"acted": acted, "steps": 20, "per_rank": [{"steps_not_finite": steps_not_finite}]}


@pytest.mark.parametrize(
    ("steps_not_finite", "key"),
    [(0, "20 steps, and train.algorithm.local_steps is 50. Lower it"), (3, "train.learning_rate")],
)
def test_a_training_without_a_push_is_refused(steps_not_finite: int, key: str) -> None:
    with pytest.raises(
        IdleSettingError, match=f"hlf: no worker sent a step to the server of agn, .*{key}"
    ):
        check_model_moved("hlf", SETTINGS, summary({"pushes": 0}, steps_not_finite))


@pytest.mark.parametrize("acted", [{"pushes": 1}, {"pushes": 0, "slowmo_steps": 2}])
def test_a_training_with_a_push_or_an_outer_step_is_not_refused(acted: dict[str, int]) -> None:
    check_model_moved("hlf", SETTINGS, summary(acted, steps_not_finite=3))
