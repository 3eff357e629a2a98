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


def problem(workers: int = 4, steps: int = 24) -> LinearGradients:
    return LinearGradients(workers=workers, steps=steps, seed=3)


def drive(options: LinearGradients, **selected: Any) -> NDArray[np.float64]:
    return options.drive(**({"optimizer": "sgd", "learning_rate": RATE} | selected))


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
@pytest.mark.parametrize("base", BASES)
def test_without_slow_momentum_and_average_it_is_the_base_method_with_any_optimizer(
    base: str, optimizer: dict[str, Any]
) -> None:
    settings = (
        BASES[base] | {"partners": matched_partners(PAIRS), "cluster": UNEVEN_CLUSTER} | optimizer
    )
    alone = drive(problem(), **settings)
    exact = False if base in ("d-psgd", "ad-psgd", "ad-psgd beside", "swarm-sgd") else None
    np.testing.assert_allclose(
        drive(problem(), **settings, **slowmo(tau=3, exact=exact)), alone, atol=1e-9
    )


def test_with_a_constant_rate_it_is_blockwise_model_update_filtering() -> None:
    beta, alpha, options = 0.6, 0.8, problem()
    actual = drive(
        options,
        algorithm="ad-psgd",
        partners=matched_partners([[]]),
        **slowmo(tau=6, alpha=alpha, beta=beta, exact=True),
    )
    # Chen and Huo 2016: D = eta D + zeta (mean - w); w = w + D.
    model, update = options.initial, np.zeros(5)
    present = np.tile(model, (4, 1))
    for step in range(options.steps):
        present = present - RATE * options.gradients(step, present)
        if step % 6 == 5:
            update = beta * update + alpha * (present.mean(axis=0) - model)
            model = model + update
            present[:] = model
        np.testing.assert_allclose(actual[step], present, atol=1e-14)


def test_the_rate_of_a_window_is_that_at_its_start() -> None:
    linear_gradients = LinearGradients(workers=1, steps=4, seed=3, hessian=0)

    def change_within(rank: int, step: int, algorithm: Algorithm) -> None:
        algorithm.optimizer.param_groups[0]["lr"] = 0.1 if step == 0 else 0.05

    actual = drive(
        linear_gradients, algorithm="d-psgd", before_step=change_within, **slowmo(tau=2, beta=0.5)
    )
    pulls = -linear_gradients.pulls[0]
    first = (0.1 * pulls[0] + 0.05 * pulls[1]) / 0.1
    second = 0.5 * first + (0.05 * pulls[2] + 0.05 * pulls[3]) / 0.05
    np.testing.assert_allclose(actual[1, 0], linear_gradients.initial - 0.1 * first, atol=1e-14)
    np.testing.assert_allclose(actual[3, 0], actual[1, 0] - 0.05 * second, atol=1e-14)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["ad-psgd", "swarm-sgd"])
def test_a_worker_without_events_at_the_start_of_a_warm_up_keeps_its_slow_momentum(
    name: str, exact: bool
) -> None:
    """Nobody had counted a sample yet: its window began at rate 0, and the momentum was divided by it.

    With the exact average it left the outer step alone, while the others waited for it.
    """
    memory_checkpoints = MemoryCheckpoints()
    settings = {
        "algorithm": name,
        "sharding": "static",
        "batch_size": 1,
        "schedule": {"warmup_epochs": 1},
    }
    settings |= {"slowmo": {"tau": 2, "exact_average": exact}}
    # Three and four events in steps of one: rank 0, which is the first to ask for the rate, begins without any.
    actual = run(
        train=toy_rows(7, groups=1), workers=2, epochs=1, files=memory_checkpoints.files, **settings
    )
    assert [(record["steps"], record["samples"]) for (record,) in actual.records] == [
        (4, 3),
        (4, 4),
    ]
    states = [
        memory_checkpoints.at((1, 0)).load(rank)["algorithm"]["attributes"] for rank in range(2)
    ]
    momenta = [state["_slow_momentum"][-1].numpy() for state in states]
    assert np.isfinite(momenta).all()
    if exact:
        np.testing.assert_array_equal(*momenta)


def test_workers_at_different_rates_have_the_same_model_after_an_exact_average() -> None:
    settings = {
        "algorithm": "swarm-sgd",
        "schedule": {"decay": "cosine"},
        "slowmo": {"tau": 1, "exact_average": True},
    }
    actual = run(train=toy_rows(400), workers=4, epochs=2, **settings)
    assert actual.records[0][-1]["consensus_distance"] < 1e-12


def test_slowmo_leaves_the_averages_between_its_outer_steps_as_they_are_without_it() -> None:
    # LocalSGD within SlowMo once forgot its momentum at every average, and not at the outer steps only.
    options = problem(steps=11)
    settings = {"algorithm": "local-sgd", "local_steps": 3, "momentum": 0.9}
    within = drive(options, **settings, slowmo={"tau": 12, "beta": 0.6})
    np.testing.assert_array_equal(within, drive(options, **settings))


EAMSGD = {"algorithm": "eamsgd", "delta": 0.9}


@pytest.mark.parametrize(
    "base", [{"algorithm": "qg-dsgdm"}, EAMSGD, EAMSGD | {"staleness_bound": 1}], ids=str
)
def test_the_momentum_of_a_method_is_treated_like_that_of_the_optimizer(
    base: dict[str, Any],
) -> None:
    """`optimizer_state` had no effect on it."""

    def momenta(**selected: Any) -> NDArray[np.float64]:
        watcher, exact = StepRecorder(), {"slowmo": {"tau": 6, "beta": 0.5, "exact_average": True}}
        drive(problem(), **base, **exact, **selected, before_step=watcher)
        return np.array([watcher.algorithms[rank].momenta[0] for rank in range(4)])

    retained = momenta(optimizer_state="keep")
    assert (abs(retained - retained.mean(axis=0)).max(axis=1) > 1e-3).all()
    # By default, as with the momentum of SGD.
    assert (momenta(optimizer_state="reset") == 0).all()
    assert (momenta() == 0).all()


@pytest.mark.parametrize("method", ["d-psgd", *GOSSIP_METHODS])
def test_the_exact_average_ends_all_disagreement_also_with_averages_under_way(method: str) -> None:
    # An exchange of a pair takes two and a half steps.
    slow = CLUSTER.model_copy(update={"bytes_per_second": 40 / 1.25e-3, "jitter": 0.2})
    actual = drive(
        problem(steps=36),
        **PEER_METHODS[method],
        cluster=slow,
        **slowmo(tau=12, beta=0.6, exact=True),
    )
    spread = np.ptp(actual, axis=1).max(axis=1)
    assert spread[11::12].max() < 1e-14
    assert spread[10::12].min() > 1e-3
