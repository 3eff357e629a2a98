"""The workload of two parameters: its loss is the function, and its events are noise on the gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hep_studies.run_in_simulator import simulate_workload
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.workloads.surface import Beale, Surface
from training.settings import TrainSettings


def test_the_loss_is_the_function_and_noise_moves_only_the_gradient() -> None:
    beale, step = Beale(), 1e-3
    beale.weights.data = torch.tensor([1.0, -1.0])
    slopes = [
        (value_at(1 + step, -1) - value_at(1 - step, -1)) / (2 * step),
        (value_at(1, -1 + step) - value_at(1, -1 - step)) / (2 * step),
    ]
    for noise in ([0.0, 0.0], [2.0, -3.0]):
        loss = functional.cross_entropy(
            beale(torch.tensor([noise])), torch.zeros(1, dtype=torch.int64)
        )
        assert loss.item() == pytest.approx(value_at(1, -1), rel=1e-5)
        (actual,) = torch.autograd.grad(loss, [beale.weights])
        assert actual.tolist() == pytest.approx(
            [slope + n for slope, n in zip(slopes, noise, strict=True)], rel=1e-3
        )


def value_at(x: float, y: float) -> float:
    return (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2


def test_training_goes_to_the_minimum_from_a_start_of_its_seed() -> None:
    plain = {"algorithm": "ar-sgd", "workers": 4, "batch_size": 1, "epochs": 4, "optimizer": "sgd"}
    settings = TrainSettings.model_validate(
        {**plain, "learning_rate": 3e-3, "scale_learning_rate": False}
    )
    results = [
        simulate_workload(Surface(noise), settings, ClusterSettings()).records[0]
        for noise in (0.0, 0.0, 10.0)
    ]
    losses = [[record["val_loss"] for record in history] for history in results]
    assert losses[0] == losses[1] != losses[2]
    assert losses[0][-1] < 0.7 * losses[0][0]
