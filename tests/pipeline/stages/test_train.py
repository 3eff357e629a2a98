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


def workers_in_fingerprint(monkeypatch: pytest.MonkeyPatch, held: int, **sections: Any) -> Any:
    """The workers on which each training depends, on a node that holds a number of them."""
    monkeypatch.setattr("training.allocation.workers_in_allocation", lambda *_: held)
    config = Config.model_validate(
        {**MINIMAL, "model": {"names": ["hlf", "particles"]}, **sections}
    )
    parts = Train().parts(config)
    return {folder: part.config_items["train.workers"] for folder, part in parts.items()}


@pytest.mark.parametrize("held", [1, 4])
def test_trainings_of_auto_do_not_depend_on_the_machine(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    decorrelate = {"from": ["met"], "strength": 1, "classes": ["QCD"]}
    train = {"workers": "auto", "seeds": 2, "decorrelate": decorrelate}

    workers = workers_in_fingerprint(
        monkeypatch, held, train=train, train_by_network={"particles": {"seeds": 1}}
    )

    assert workers == {"hlf": "auto", "hlf-seed-2": "auto", "particles": "auto"}


def test_each_network_depends_on_its_workers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(**train: Any) -> Any:
        return workers_in_fingerprint(
            monkeypatch, 4, train=train, train_by_network={"particles": {"workers": "auto"}}
        )

    assert workers(workers=3) == {"hlf": 3, "particles": "auto"}
    # The number that `auto` stands for here is another setting.
    assert workers(workers=4) == {"hlf": 4, "particles": "auto"}
