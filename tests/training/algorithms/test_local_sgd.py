"""LocalSGD with torch's optimiser, and what becomes of the optimiser's state when the models are averaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import LinearGradients, VectorRow
from torch.optim import Adam

RATE = 0.1
LOCAL: dict[str, Any] = {"algorithm": "local-sgd", "learning_rate": RATE}


@pytest.mark.parametrize("policy", ["keep", "reset"])
def test_moments_of_adam_are_kept_or_reset_with_the_models(policy: str) -> None:
    problem = LinearGradients(workers=3, steps=7, seed=4)
    rows = [VectorRow(problem.initial) for _ in range(3)]
    optimizers = [Adam([row.flat], lr=RATE) for row in rows]
    for step, actual in enumerate(
        problem.drive(**LOCAL, optimizer="adam", local_steps=2, optimizer_state=policy)
    ):
        for row, optimizer, gradient in zip(
            rows,
            optimizers,
            problem.gradients(step, np.array([row.parameters for row in rows])),
            strict=True,
        ):
            row.write_gradient(gradient)
            optimizer.step()
        if step % 2 == 1:
            mean = np.mean([row.parameters for row in rows], axis=0)
            for row, optimizer in zip(rows, optimizers, strict=True):
                row.write(mean)
                if policy == "reset":
                    optimizer.state.clear()
        np.testing.assert_allclose(actual, [row.parameters for row in rows], atol=1e-10)
