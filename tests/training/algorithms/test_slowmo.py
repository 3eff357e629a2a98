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


def drive(given: LinearGradients, **chosen: Any) -> NDArray[np.float64]:
    return given.drive(**({"optimizer": "sgd", "learning_rate": RATE} | chosen))


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
@pytest.mark.parametrize("base", BASES)
def test_without_slow_momentum_and_average_it_is_the_base_method_with_any_optimizer(
    base: str, optimizer: dict[str, Any]
) -> None:
    chosen = (
        BASES[base] | {"partners": matched_partners(PAIRS), "cluster": UNEVEN_CLUSTER} | optimizer
    )
    alone = drive(problem(), **chosen)
    exact = False if base in ("d-psgd", "ad-psgd", "ad-psgd beside", "swarm-sgd") else None
    np.testing.assert_allclose(
        drive(problem(), **chosen, **slowmo(tau=3, exact=exact)), alone, atol=1e-9
    )


def test_with_a_constant_rate_it_is_blockwise_model_update_filtering() -> None:
    beta, alpha, given = 0.6, 0.8, problem()
    found = drive(
        given,
        algorithm="ad-psgd",
        partners=matched_partners([[]]),
        **slowmo(tau=6, alpha=alpha, beta=beta, exact=True),
    )
    # Chen and Huo 2016: D = eta D + zeta (mean - w); w = w + D.
    model, update = given.initial, np.zeros(5)
    present = np.tile(model, (4, 1))
    for step in range(given.steps):
        present = present - RATE * given.gradients(step, present)
        if step % 6 == 5:
            update = beta * update + alpha * (present.mean(axis=0) - model)
            model = model + update
            present[:] = model
        np.testing.assert_allclose(found[step], present, atol=1e-14)


def test_the_rate_of_a_window_is_that_at_its_start() -> None:
    given = LinearGradients(workers=1, steps=4, seed=3, hessian=0)

    def change_within(rank: int, step: int, algorithm: Algorithm) -> None:
        algorithm.optimizer.param_groups[0]["lr"] = 0.1 if step == 0 else 0.05

    found = drive(given, algorithm="d-psgd", before_step=change_within, **slowmo(tau=2, beta=0.5))
    pulls = -given.pulls[0]
    first = (0.1 * pulls[0] + 0.05 * pulls[1]) / 0.1
    second = 0.5 * first + (0.05 * pulls[2] + 0.05 * pulls[3]) / 0.05
    np.testing.assert_allclose(found[1, 0], given.initial - 0.1 * first, atol=1e-14)
    np.testing.assert_allclose(found[3, 0], found[1, 0] - 0.05 * second, atol=1e-14)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["ad-psgd", "swarm-sgd"])
def test_a_worker_without_events_at_the_start_of_a_warm_up_keeps_its_slow_momentum(
    name: str, exact: bool
) -> None:
    """Nobody had counted a sample yet: its window began at rate 0, and the momentum was divided by it.

    With the exact average it left the outer step alone, while the others waited for it.
    """
    kept = MemoryCheckpoints()
    chosen = {
        "algorithm": name,
        "sharding": "static",
        "batch_size": 1,
        "schedule": {"warmup_epochs": 1},
    }
    chosen |= {"slowmo": {"tau": 2, "exact_average": exact}}
    # Three and four events in steps of one: rank 0, which is the first to ask for the rate, begins without any.
    found = run(train=toy_rows(7, groups=1), workers=2, epochs=1, files=kept.files, **chosen)
    assert [(record["steps"], record["samples"]) for (record,) in found.records] == [(4, 3), (4, 4)]
    states = [kept.at((1, 0)).load(rank)["algorithm"]["attributes"] for rank in range(2)]
    momenta = [state["_slow_momentum"][-1].numpy() for state in states]
    assert np.isfinite(momenta).all()
    if exact:
        np.testing.assert_array_equal(*momenta)


def test_workers_at_different_rates_have_the_same_model_after_an_exact_average() -> None:
    chosen = {
        "algorithm": "swarm-sgd",
        "schedule": {"decay": "cosine"},
        "slowmo": {"tau": 1, "exact_average": True},
    }
    found = run(train=toy_rows(400), workers=4, epochs=2, **chosen)
    assert found.records[0][-1]["consensus_distance"] < 1e-12


def test_slowmo_leaves_the_averages_between_its_outer_steps_as_they_are_without_it() -> None:
    # LocalSGD within SlowMo once forgot its momentum at every average, and not at the outer steps only.
    given = problem(steps=11)
    chosen = {"algorithm": "local-sgd", "local_steps": 3, "momentum": 0.9}
    within = drive(given, **chosen, slowmo={"tau": 12, "beta": 0.6})
    np.testing.assert_array_equal(within, drive(given, **chosen))


EAMSGD = {"algorithm": "eamsgd", "delta": 0.9}


@pytest.mark.parametrize(
    "base", [{"algorithm": "qg-dsgdm"}, EAMSGD, EAMSGD | {"staleness_bound": 1}], ids=str
)
def test_the_momentum_of_a_method_is_treated_like_that_of_the_optimizer(
    base: dict[str, Any],
) -> None:
    """`optimizer_state` had no effect on it."""

    def momenta(**chosen: Any) -> NDArray[np.float64]:
        watcher, exact = StepRecorder(), {"slowmo": {"tau": 6, "beta": 0.5, "exact_average": True}}
        drive(problem(), **base, **exact, **chosen, before_step=watcher)
        return np.array([watcher.algorithms[rank].momenta[0] for rank in range(4)])

    kept = momenta(optimizer_state="keep")
    assert (abs(kept - kept.mean(axis=0)).max(axis=1) > 1e-3).all()
    # By default, as with the momentum of SGD.
    assert (momenta(optimizer_state="reset") == 0).all()
    assert (momenta() == 0).all()


@pytest.mark.parametrize("method", ["d-psgd", *GOSSIP_METHODS])
def test_the_exact_average_ends_all_disagreement_also_with_averages_under_way(method: str) -> None:
    # An exchange of a pair takes two and a half steps.
    slow = CLUSTER.model_copy(update={"bytes_per_second": 40 / 1.25e-3, "jitter": 0.2})
    found = drive(
        problem(steps=36),
        **PEER_METHODS[method],
        cluster=slow,
        **slowmo(tau=12, beta=0.6, exact=True),
    )
    spread = np.ptp(found, axis=1).max(axis=1)
    assert spread[11::12].max() < 1e-14
    assert spread[10::12].min() > 1e-3
