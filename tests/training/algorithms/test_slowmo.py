"""SlowMo is, in special cases, the base method and BMUF (Wang et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated import (
    CLUSTER,
    GOSSIP_METHODS,
    PEER_METHODS,
    UNEVEN_CLUSTER,
    LinearGradients,
    MemoryCheckpoints,
    StepRecorder,
    matched_partners,
    run,
    toy_rows,
)

from training.algorithms.base import Algorithm

RATE = 0.1
BASES: dict[str, dict[str, Any]] = {
    "ar-sgd": {"algorithm": "ar-sgd", "scale_learning_rate": False},
    "local-sgd": {"algorithm": "local-sgd", "local_steps": 1},
    "d-psgd": {"algorithm": "d-psgd"},
    "ad-psgd": {"algorithm": "ad-psgd"},
    "ad-psgd beside": {"algorithm": "ad-psgd", "exchange": "sockets"},
    "swarm-sgd": {"algorithm": "swarm-sgd", "local_steps": 1},
}
PAIRS = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]


def slowmo(
    *, tau: int = 1, alpha: float = 1.0, beta: float = 0.0, exact: bool | None = None
) -> dict[str, Any]:
    return {
        "slowmo": {"tau": tau, "alpha": alpha, "beta": beta, "exact_average": exact},
        "optimizer_state": "keep",
    }


def gradients_of_four_workers(steps: int = 24) -> LinearGradients:
    return LinearGradients(workers=4, steps=steps, seed=3)


def drive(problem: LinearGradients, **settings: Any) -> NDArray[np.float64]:
    return problem.drive(**({"optimizer": "sgd", "learning_rate": RATE} | settings))


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
@pytest.mark.parametrize("base", BASES)
def test_without_slow_momentum_and_average_it_is_the_base_method_with_any_optimizer(
    base: str, optimizer: dict[str, Any]
) -> None:
    problem = gradients_of_four_workers()
    cluster = {"partners": matched_partners(PAIRS), "cluster": UNEVEN_CLUSTER}
    settings = BASES[base] | cluster | optimizer
    averages_exactly = base in ("ar-sgd", "local-sgd")

    wrapped = drive(problem, **settings, **slowmo(tau=3, exact=None if averages_exactly else False))

    np.testing.assert_allclose(wrapped, drive(problem, **settings), atol=1e-9)


def test_with_a_constant_rate_it_is_blockwise_model_update_filtering() -> None:
    beta = 0.6
    alpha = 0.8
    problem = gradients_of_four_workers()
    settings = {"algorithm": "ad-psgd", "partners": matched_partners([[]])}

    trained = drive(problem, **settings, **slowmo(tau=6, alpha=alpha, beta=beta, exact=True))

    # Chen and Huo 2016: D = eta D + zeta (mean - w); w = w + D.
    block_model = problem.initial
    update = np.zeros(5)
    models = np.tile(block_model, (4, 1))
    for step in range(problem.steps):
        models = models - RATE * problem.gradients(step, models)
        if step % 6 == 5:
            block_change = models.mean(axis=0) - block_model
            update = beta * update + alpha * block_change
            block_model = block_model + update
            models[:] = block_model
        np.testing.assert_allclose(trained[step], models, atol=1e-14)


def test_the_rate_of_a_window_is_that_at_its_start() -> None:
    problem = LinearGradients(workers=1, steps=4, seed=3, hessian=0)

    def lower_rate(_rank: int, step: int, algorithm: Algorithm) -> None:
        algorithm.optimizer.param_groups[0]["lr"] = 0.1 if step == 0 else 0.05

    settings = {"algorithm": "d-psgd", "before_step": lower_rate}
    trained = drive(problem, **settings, **slowmo(tau=2, beta=0.5))

    # The first window has the rates 0.1 and 0.05, the second 0.05 and 0.05.
    gradients = -problem.pulls[0]
    first_change = 0.1 * gradients[0] + 0.05 * gradients[1]
    second_change = 0.05 * gradients[2] + 0.05 * gradients[3]
    first_momentum = first_change / 0.1
    second_momentum = 0.5 * first_momentum + second_change / 0.05
    first_end = problem.initial - 0.1 * first_momentum
    second_end = first_end - 0.05 * second_momentum
    np.testing.assert_allclose(trained[1, 0], first_end, atol=1e-14)
    np.testing.assert_allclose(trained[3, 0], second_end, atol=1e-14)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["ad-psgd", "swarm-sgd"])
def test_a_worker_without_events_at_the_start_of_a_warm_up_has_a_finite_slow_momentum(
    name: str, exact: bool
) -> None:
    """Its window begins at rate 0.

    With the exact average it takes part in the outer step of the others.
    """
    checkpoints = MemoryCheckpoints()
    settings = {
        "algorithm": name,
        "sharding": "static",
        "batch_size": 1,
        "schedule": {"warmup_epochs": 1},
        "slowmo": {"tau": 2, "exact_average": exact},
    }

    # Three and four events in steps of one: rank 0, which is the first to ask for the rate, begins
    # without any.
    rows = toy_rows(7, groups=1)
    trained = run(train=rows, workers=2, epochs=1, files=checkpoints.files, **settings)

    counts = [(record["steps"], record["samples"]) for (record,) in trained.records]
    assert counts == [(4, 3), (4, 4)]
    momenta = []
    for rank in range(2):
        attributes = checkpoints.at((1, 0)).load(rank)["algorithm"]["attributes"]
        momenta.append(attributes["_slow_momentum"][-1].numpy())
    assert np.isfinite(momenta).all()
    if exact:
        np.testing.assert_array_equal(*momenta)


def test_workers_at_different_rates_have_the_same_model_after_an_exact_average() -> None:
    slowmo = {"tau": 1, "exact_average": True}
    settings = {"algorithm": "swarm-sgd", "schedule": {"decay": "cosine"}, "slowmo": slowmo}

    trained = run(train=toy_rows(400), workers=4, epochs=2, **settings)

    assert trained.records[0][-1]["consensus_distance"] < 1e-12


def test_slowmo_leaves_the_averages_between_its_outer_steps_as_they_are_without_it() -> None:
    problem = gradients_of_four_workers(steps=11)
    settings = {"algorithm": "local-sgd", "local_steps": 3, "momentum": 0.9}

    wrapped = drive(problem, **settings, slowmo={"tau": 12, "beta": 0.6})

    np.testing.assert_array_equal(wrapped, drive(problem, **settings))


EAMSGD = {"algorithm": "eamsgd", "delta": 0.9}


@pytest.mark.parametrize(
    "base",
    [
        {"algorithm": "qg-dsgdm"},
        {"algorithm": "gradient-tracking"},
        EAMSGD,
        EAMSGD | {"staleness_bound": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", [None, "keep", "reset"])
def test_the_momentum_of_a_method_is_treated_like_that_of_the_optimizer(
    base: dict[str, Any], policy: str | None
) -> None:
    recorder = StepRecorder()
    settings = base | {"slowmo": {"tau": 6, "beta": 0.5, "exact_average": True}}

    drive(gradients_of_four_workers(), **settings, optimizer_state=policy, before_step=recorder)

    algorithms = recorder.algorithms
    momenta = np.array([algorithms[rank].momenta[0] for rank in range(4)])
    if policy == "keep":
        largest_deviations = abs(momenta - momenta.mean(axis=0)).max(axis=1)
        assert (largest_deviations > 1e-3).all()
    else:
        # The default resets, as with the momentum of SGD.
        assert (momenta == 0).all()


@pytest.mark.parametrize("method", ["d-psgd", *GOSSIP_METHODS])
def test_the_exact_average_ends_all_disagreement_also_with_averages_under_way(method: str) -> None:
    problem = gradients_of_four_workers(steps=36)
    # An exchange of a pair takes two and a half steps.
    cluster = CLUSTER.model_copy(update={"bytes_per_second": 40 / 1.25e-3, "jitter": 0.2})
    settings = PEER_METHODS[method] | slowmo(tau=12, beta=0.6, exact=True)

    trained = drive(problem, **settings, cluster=cluster)

    spread = np.ptp(trained, axis=1).max(axis=1)
    assert spread[11::12].max() < 1e-14
    assert spread[10::12].min() > 1e-3
