"""What a search decides reaches a training whole, and nothing else of it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.networks.hlf_settings import HlfSettings
from training.errors import TrainingError
from training.gridsearch.settings import Choice
from training.settings import TrainSettings

BEST = Choice([9, 5], 64, 0.02, 7)


def trained_as(choice: Choice, **train: Any) -> TrainSettings:
    return choice.applied_to(HlfSettings(), TrainSettings.model_validate(train))[1]


def test_a_choice_survives_its_file(tmp_path: Path) -> None:
    BEST.save(tmp_path / "best.json")
    assert Choice.load(tmp_path / "best.json") == BEST


@pytest.mark.parametrize(
    "content",
    ['{"hidden": [9', '{"hidden": [9], "batch_size": 64, "learning_rate": 0.1}'],
    ids=["cut off", "a key is missing"],
)
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    path = tmp_path / "best.json"
    path.write_text(content)
    with pytest.raises(TrainingError, match=r"best\.json holds no result .* gridsearch --force"):
        Choice.load(path)


@pytest.mark.parametrize(
    ("train", "batch_size"),
    [
        ({"algorithm": "ar-sgd", "workers": 3}, 21),
        ({"algorithm": "ar-sgd", "workers": 100}, 1),
        ({"algorithm": "local-sgd", "workers": 4}, 64),
    ],
    ids=lambda each: f"{each['algorithm']}-{each['workers']}" if isinstance(each, dict) else None,
)
def test_workers_share_the_batch_only_where_they_average_gradients(train: dict[str, Any], batch_size: int) -> None:
    assert trained_as(BEST, **train).batch_size == batch_size


def test_everything_else_stays() -> None:
    train = TrainSettings.model_validate(
        {
            "algorithm": {"name": "ad-psgd", "topology": "ring"},
            "workers": 2,
            "seed": 5,
            "epochs": 99,
            "weight_decay": 0.1,
        }
    )
    applied, settings = BEST.applied_to(HlfSettings(from_gridsearch=True), train)
    assert applied == HlfSettings(hidden=[9, 5])
    assert settings == train.model_copy(
        update={"batch_size": 64, "learning_rate": 0.02, "epochs": 7, "scale_learning_rate": False}
    )
