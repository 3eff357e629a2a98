"""LocalSGD by hand, and what becomes of the optimiser's state when the models are averaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated import LinearGradients, Watcher

RATE = 0.1
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
LOCAL: dict[str, Any] = {"algorithm": "local-sgd", "learning_rate": RATE}


class Adam:
    """Kingma and Ba 2014, Algorithm 1, for all workers at once."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.first, self.second, self.step = np.zeros(shape), np.zeros(shape), 0

    def update(self, gradients: NDArray[np.float64]) -> NDArray[np.float64]:
        self.step += 1
        self.first = BETA1 * self.first + (1 - BETA1) * gradients
        self.second = BETA2 * self.second + (1 - BETA2) * gradients**2
        first, second = self.first / (1 - BETA1**self.step), self.second / (1 - BETA2**self.step)
        return RATE * first / (np.sqrt(second) + EPSILON)

    def treat(self, policy: str) -> None:
        if policy == "reset":
            self.first, self.second, self.step = 0 * self.first, 0 * self.second, 0


def all_gradients(problem: LinearGradients, step: int, present: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([problem.gradient(rank, step, present[rank]) for rank in range(problem.workers)])


def test_models_are_averaged_after_each_third_step() -> None:
    problem = LinearGradients(workers=3, steps=8, seed=4)
    present = np.tile(problem.initial, (3, 1))
    for step, found in enumerate(problem.drive(**LOCAL, optimizer="sgd", local_steps=3)):
        present = present - RATE * all_gradients(problem, step, present)
        if step % 3 == 2:
            present[:] = present.mean(axis=0)
        np.testing.assert_allclose(found, present, atol=1e-14)


@pytest.mark.parametrize("policy", ["keep", "reset"])
def test_moments_of_adam_are_kept_or_reset_with_the_models(policy: str) -> None:
    problem = LinearGradients(workers=3, steps=7, seed=4)
    present, adam = np.tile(problem.initial, (3, 1)), Adam((3, 5))
    watcher = Watcher()
    runs = problem.drive(**LOCAL, optimizer="adam", local_steps=2, optimizer_state=policy, before_step=watcher)
    for step, found in enumerate(runs):
        present = present - adam.update(all_gradients(problem, step, present))
        if step % 2 == 1:
            present[:] = present.mean(axis=0)
            adam.treat(policy)
        np.testing.assert_allclose(found, present, atol=1e-10)
    for rank, algorithm in watcher.algorithms.items():
        (state,) = algorithm.optimizer.state.values()
        np.testing.assert_allclose(state["exp_avg_sq"].numpy(), adam.second[rank], atol=1e-12)
        assert (state["exp_avg_sq"].numpy() >= 0).all()
        assert int(state["step"]) == adam.step
