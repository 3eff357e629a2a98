"""The workload of two parameters: its loss is a function, its events are noise on the gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hep_studies.run_in_simulator import simulate_workload
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.workloads.surface import Beale, Surface
from training.settings import TrainSettings


def beale_function(x: float, y: float) -> float:
    first_term = 1.5 - x + x * y
    second_term = 2.25 - x + x * y**2
    third_term = 2.625 - x + x * y**3
    return first_term**2 + second_term**2 + third_term**2


def slopes_at(x: float, y: float, step: float = 1e-3) -> tuple[float, float]:
    """Derivatives of the function by both parameters."""
    difference_in_x = beale_function(x + step, y) - beale_function(x - step, y)
    difference_in_y = beale_function(x, y + step) - beale_function(x, y - step)
    return difference_in_x / (2 * step), difference_in_y / (2 * step)


@pytest.mark.parametrize(("noise_x", "noise_y"), [(0.0, 0.0), (2.0, -3.0)])
def test_the_loss_is_the_function_and_noise_moves_only_the_gradient(
    noise_x: float, noise_y: float
) -> None:
    beale = Beale()
    beale.weights.data = torch.tensor([1.0, -1.0])

    event = torch.tensor([[noise_x, noise_y]])
    label = torch.tensor([0])

    logits = beale(event)
    loss = functional.cross_entropy(logits, label)
    (gradient,) = torch.autograd.grad(loss, [beale.weights])

    slope_x, slope_y = slopes_at(1, -1)
    expected_gradient = [slope_x + noise_x, slope_y + noise_y]
    assert loss.item() == pytest.approx(beale_function(1, -1), rel=1e-5)
    assert gradient.tolist() == pytest.approx(expected_gradient, rel=1e-3)


def test_training_goes_to_the_minimum_from_a_start_of_its_seed() -> None:
    settings = TrainSettings.model_validate(
        {
            "algorithm": "ar-sgd",
            "workers": 4,
            "batch_size": 1,
            "epochs": 4,
            "optimizer": "sgd",
            "learning_rate": 3e-3,
            "scale_learning_rate": False,
        }
    )

    def losses_with(noise: float) -> list[float]:
        simulated = simulate_workload(Surface(noise), settings, ClusterSettings())
        return [record["val_loss"] for record in simulated.records[0]]

    losses = losses_with(noise=0.0)
    losses_again = losses_with(noise=0.0)
    noisy_losses = losses_with(noise=10.0)

    assert losses[-1] < 0.7 * losses[0]
    assert losses_again == losses
    assert noisy_losses != losses
