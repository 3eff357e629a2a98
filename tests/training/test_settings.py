"""Training settings that make no sense are refused; the learning rate in effect is the documented one."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from training.settings import TrainSettings


def test_sgd_on_several_workers_is_refused_with_the_fix() -> None:
    with pytest.raises(ValidationError, match="use ar-sgd"):
        TrainSettings(algorithm="sgd", workers=2)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "scale", "expected"),
    [
        ("ar-sgd", "sgd", True, 0.4),
        ("ar-sgd", "sgd", False, 0.1),
        ("ar-sgd", "adam", True, 0.1),
    ],
)
def test_the_linear_rule_holds_for_ar_sgd_with_sgd_only(
    algorithm: str, optimizer: str, scale: bool, expected: float
) -> None:
    settings = TrainSettings(
        algorithm=algorithm, optimizer=optimizer, workers=4, learning_rate=0.1, scale_learning_rate=scale
    )
    assert settings.effective_learning_rate == pytest.approx(expected)
