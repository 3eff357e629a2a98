"""The settings of the sources are settings of ours."""

from __future__ import annotations

import pytest

from training.loop.schedule import learning_rate
from training.settings import TrainSettings
from training.workloads.published import PUBLISHED, SLOWMO


@pytest.mark.parametrize("network", PUBLISHED)
def test_they_are_valid(network: str) -> None:
    TrainSettings(algorithm="ad-psgd", **PUBLISHED[network], slowmo=SLOWMO.get(network))


def test_the_rate_of_resnet_falls_with_the_first_steps_of_epochs_81_and_121() -> None:
    settings = TrainSettings(algorithm="ad-psgd", **PUBLISHED["resnet20"])
    rates = [learning_rate(settings, done) for done in (80, 80.01, 120, 120.01)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001])
