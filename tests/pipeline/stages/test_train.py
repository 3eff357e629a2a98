"""What a training depends on, and trainings that are refused since the model never moved."""

from __future__ import annotations

from typing import Any

import pytest
from minimal_configs import MINIMAL

from pipeline.config import Config
from pipeline.stages.features import Features
from pipeline.stages.train import Train, check_model_moved
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


def test_the_term_of_the_loss_and_its_signal_concern_the_training_alone() -> None:
    def config(strength: float, signal: str = "ttbar") -> Config:
        decorrelate = {"from": ["met"], "strength": strength, "classes": ["QCD"]}
        changes = {"train": {"decorrelate": decorrelate}, "evaluate": {"signal": signal}}
        return Config.model_validate({**MINIMAL, **changes})

    def training_items(config: Config) -> dict[str, Any]:
        items = {name: part.config_items for name, part in Train().parts(config).items()}
        assert items
        return items

    assert training_items(config(1)) != training_items(config(2))
    assert training_items(config(1)) != training_items(config(1, signal="QCD"))
    assert Features().config_items(config(1)) == Features().config_items(config(2))
