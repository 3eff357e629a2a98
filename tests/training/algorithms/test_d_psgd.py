"""D-PSGD by hand: the gradient at x_t, the mixing of x_t, and only then the update.

Source: Migliorini 2020, Algorithm 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mixing_matrices import mixing_matrix
from simulated import LinearGradients

from training.algorithms.d_psgd import mix
from training.topology import make_topology

RATE = 0.1
D_PSGD = {"algorithm": "d-psgd", "optimizer": "sgd", "learning_rate": RATE}
RING_OF_3 = np.full((3, 3), 1 / 3)
RING_OF_5 = np.array(
    [
        [1, 1, 0, 0, 1],
        [1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
        [1, 0, 0, 1, 1],
    ]
)
EXPONENTIAL_GRAPH_OF_9 = mixing_matrix(make_topology("exponential", 9))
MIXING_MATRICES = [
    ("ring", RING_OF_3),
    ("ring", RING_OF_5 / 3),
    ("exponential", EXPONENTIAL_GRAPH_OF_9),
]


@pytest.mark.parametrize(("topology", "weights"), MIXING_MATRICES)
def test_models_are_mixed_before_the_gradient_at_the_unmixed_model_is_subtracted(
    topology: str, weights: Any
) -> None:
    problem = LinearGradients(workers=len(weights), steps=6, seed=2)
    models = np.tile(problem.initial, (len(weights), 1))

    trained = problem.drive(topology=topology, **D_PSGD)

    for step in range(6):
        models = weights @ models - RATE * problem.gradients(step, models)
        np.testing.assert_allclose(trained[step], models, atol=1e-14)


def test_without_a_vector_that_is_not_finite_the_other_weights_sum_to_one() -> None:
    first = np.array([1.0, 2.0])
    not_finite = np.array([np.nan, 0.0])
    third = np.array([5.0, 6.0])
    mixed = np.zeros(2)

    is_finite = mix([0.5, 0.25, 0.25], [first, not_finite, third], out=mixed)

    assert is_finite
    np.testing.assert_allclose(mixed, (2 * first + third) / 3)
