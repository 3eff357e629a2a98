"""LocalSGD with torch's optimiser, whose state is kept or reset when the models are averaged."""

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

    trained = problem.drive(**LOCAL, optimizer="adam", local_steps=2, optimizer_state=policy)

    for step in range(7):
        for rank, (row, optimizer) in enumerate(zip(rows, optimizers, strict=True)):
            row.write_gradient(problem.gradient(rank, step, row.parameters))
            optimizer.step()
        if step % 2 == 1:
            mean = np.mean([row.parameters for row in rows], axis=0)
            for row, optimizer in zip(rows, optimizers, strict=True):
                row.write(mean)
                if policy == "reset":
                    optimizer.state.clear()
        np.testing.assert_allclose(trained[step], [row.parameters for row in rows], atol=1e-10)
