"""What a training that has ended is refused for."""

from __future__ import annotations

import pytest

from pipeline.stages.train import check_model_moved
from training.errors import IdleSettingError
from training.settings import TrainSettings


@pytest.mark.parametrize(
    ("not_finite", "key"),
    [(0, "20 steps, and train.algorithm.local_steps is 50. Lower it"), (3, "train.learning_rate")],
)
def test_a_training_without_a_push_is_refused(not_finite: int, key: str) -> None:
    """The first weights were published, with exit code 0."""
    settings = TrainSettings.model_validate(
        {"algorithm": {"name": "agn", "local_steps": 50}, "workers": 2}
    )
    summary = {"acted": {"pushes": 0}, "steps": 20, "per_rank": [{"steps_not_finite": not_finite}]}
    with pytest.raises(
        IdleSettingError, match=f"hlf: no worker sent a step to the server of agn, .*{key}"
    ):
        check_model_moved("hlf", settings, summary)


@pytest.mark.parametrize("acted", [{"pushes": 1}, {"pushes": 0, "slowmo_steps": 2}])
def test_a_training_with_a_push_or_an_outer_step_is_not_refused(acted: dict[str, int]) -> None:
    settings = TrainSettings.model_validate(
        {"algorithm": {"name": "agn", "local_steps": 50}, "workers": 2}
    )
    check_model_moved(
        "hlf", settings, {"acted": acted, "steps": 100, "per_rank": [{"steps_not_finite": 3}]}
    )
