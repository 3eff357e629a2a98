"""SlowMo without the exact average moves the mean as with it, but drives the workers apart; by how much, is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated import CLUSTER, GOSSIP, METHODS, LinearGradients, matched

PLAIN: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1}
PAIRS = [[(0, 1), (2, 3)], [(0, 2), (1, 3)]]


def slowmo(beta: float, *, tau: int = 12, exact: bool = False) -> dict[str, Any]:
    return {"slowmo": {"tau": tau, "beta": beta, "exact_average": exact}}


def disagreement(found: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square distance of a parameter from its mean over the workers, after each step."""
    spread: NDArray[np.float64] = np.sqrt(np.square(found - found.mean(axis=1, keepdims=True)).mean(axis=(1, 2)))
    return spread


@pytest.mark.parametrize(
    "base",
    [
        {"algorithm": "d-psgd", "topology": "ring"},
        # The one who begins comes last, so that both gradients of a pair are at models before the average ...
        {"algorithm": "ad-psgd", "partners": matched(PAIRS, max)},
        # ... or first, so that both private models are the average, when the next gradients are computed.
        {"algorithm": "swarm-sgd", "local_steps": 1, "partners": matched(PAIRS, min)},
    ],
    ids=["d-psgd", "ad-psgd", "swarm-sgd"],
)
@pytest.mark.parametrize("beta", [0.6, 0.9])
def test_the_mean_moves_as_with_the_exact_average_though_workers_differ(base: dict[str, Any], beta: float) -> None:
    problem = LinearGradients(workers=4, steps=60, seed=8)
    exact = problem.drive(**PLAIN, **base, **slowmo(beta, tau=6, exact=True))
    without = problem.drive(**PLAIN, **base, **slowmo(beta, tau=6))
    np.testing.assert_allclose(without.mean(axis=1), exact.mean(axis=1), atol=1e-12)
    assert abs(without - exact).max() > 1e-2


@pytest.mark.parametrize("method", ["d-psgd", *GOSSIP])
def test_the_exact_average_ends_all_disagreement_also_with_averages_under_way(method: str) -> None:
    # An exchange of a pair takes two and a half steps.
    slow = CLUSTER.model_copy(update={"bytes_per_second": 40 / 1.25e-3, "jitter": 0.2})
    problem = LinearGradients(workers=4, steps=36, seed=8)
    spread = disagreement(problem.drive(**PLAIN, **METHODS[method], cluster=slow, **slowmo(0.6, exact=True)))
    assert spread[11::12].max() < 1e-15
    assert spread[10::12].min() > 1e-3


def inflation(base: dict[str, Any], beta: float) -> float:
    """Disagreement right after the outer steps, relative to that without SlowMo; gradients are noise alone."""
    # Many parameters at once make up for a short run.
    problem = LinearGradients(workers=4, steps=90 * 12, seed=8, size=1000, hessian=0)
    after = [disagreement(problem.drive(**PLAIN, **base, **chosen))[11::12][45:] for chosen in (slowmo(beta), {})]
    return float(np.sqrt(np.square(after[0]).mean() / np.square(after[1]).mean()))


def known_inflation(beta: float) -> float:
    """The same if each window ends with an independent disagreement s of variance 1.

    v = gamma u and e, what remains after the outer step, follow v <- beta v + e - s and e <- s - beta v (eigenvalues of
    modulus sqrt(beta)), so that the variance of e becomes (1 + beta) / ((1 - beta) (1 + 2 beta)).
    """
    return float(np.sqrt((1 + beta) / ((1 - beta) * (1 + 2 * beta))))


@pytest.mark.parametrize(("beta", "expected"), [(0.5, 1.23), (0.7, 1.55), (0.9, 2.6)])
@pytest.mark.slow
def test_noise_drives_workers_apart_by_the_known_factor(beta: float, expected: float) -> None:
    assert known_inflation(beta) == pytest.approx(expected, rel=0.03)
    found = inflation({"algorithm": "d-psgd", "topology": "complete"}, beta)
    assert found == pytest.approx(known_inflation(beta), rel=0.04)
    # Random pairs forget more slowly.
    assert 0.98 * expected < inflation({"algorithm": "swarm-sgd", "local_steps": 3}, beta) < 1.5 * expected


#: Spread after 60 outer steps without gradients; averages begun by each worker per outer step; bounds around the values
#: of a simulation by hand, which depend on the pairs drawn.
STILL = [
    (0.5, 1, 1e-8, 1e-3),
    (0.9, 1, 3, 1e4),
    (0.5, 12, 1e-11, 1e-7),
    (0.9, 12, 0.01, 2),
]


@pytest.mark.parametrize(("beta", "tau", "low", "high"), STILL)
@pytest.mark.slow
def test_without_gradients_disagreement_dies_out_unless_momentum_is_large_and_averages_are_rare(
    beta: float, tau: int, low: float, high: float
) -> None:
    problem = LinearGradients(workers=16, steps=60 * tau, seed=8, size=50, hessian=0, noise=0)
    start = np.random.default_rng(5).normal(size=(16, 50))
    found = problem.drive(**PLAIN, algorithm="ad-psgd", initial=start, **slowmo(beta, tau=tau))
    assert low <= disagreement(found)[-1] < high
