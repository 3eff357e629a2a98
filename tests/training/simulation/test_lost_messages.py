"""Lost messages: sent again where workers wait for them, and an average that is left out on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import CLUSTER, METHODS, ROUGH, KeptCheckpoints, LinearGradients, Watcher, models, run, toy_rows

from training.simulation.costs import LostMessages

TIMEOUT = 0.01
LOSSY = {"loss_probability": 0.2, "resend_seconds": TIMEOUT}


@pytest.mark.parametrize("method", ["ar-sgd", "local-sgd", "d-psgd"])
def test_losses_cost_a_synchronous_method_time_only(method: str) -> None:
    even, lossy = (
        run(**METHODS[method], cluster=CLUSTER.model_copy(update=changed), epochs=1) for changed in ({}, LOSSY)
    )
    np.testing.assert_array_equal(models(lossy), models(even))
    timeouts = (lossy.seconds - even.seconds) / TIMEOUT
    assert timeouts > 3


def test_a_neighbour_waits_for_the_copy_that_arrives() -> None:
    problem = LinearGradients(workers=2, steps=200, seed=1)
    watcher = Watcher()
    problem.drive(algorithm="d-psgd", cluster=CLUSTER.model_copy(update=LOSSY), before_step=watcher)
    lengths = np.diff(watcher.began[0])
    # A step takes a millisecond of computation, beside which the message travels.
    late = lengths > 1.1e-3
    assert 0.2 < late.mean() < 0.45, "either of two messages is lost with a probability of 0.36"
    assert lengths[late].min() > TIMEOUT - 2.1e-3


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
@pytest.mark.parametrize("method", ["ad-psgd", "swarm-sgd"])
def test_a_lost_average_changes_neither_side_and_counts_on_both(method: str, exchange: str) -> None:
    problem = LinearGradients(workers=4, steps=60, seed=1, hessian=0, noise=0)
    start = np.random.default_rng(2).normal(size=(4, 5))
    watcher = Watcher()
    cluster = ROUGH.model_copy(update=LOSSY)
    chosen = METHODS[method] | {"exchange": exchange, "optimizer": "sgd"}
    problem.drive(**chosen, initial=start, cluster=cluster, before_step=watcher)
    # What partners see: a worker takes its vector over only after its next local steps.
    ends = [vars(each)["shared"].values for each in watcher.algorithms.values()]
    np.testing.assert_allclose(np.mean(ends, axis=0), start.mean(axis=0), atol=1e-14)
    counts = [each.counters() for each in watcher.algorithms.values()]
    begun, received, lost = (sum(each[f"averages_{kind}"] for each in counts) for kind in ("begun", "received", "lost"))
    assert begun == received
    assert lost % 2 == 0
    # Either of two messages is lost with a probability of 0.36.
    assert 0.2 < lost / 2 / (begun + lost / 2) < 0.5


def test_nothing_is_lost_within_a_host() -> None:
    shared = CLUSTER.model_copy(update={"workers_per_host": 4})
    for method in ("ar-sgd", "d-psgd", "swarm-sgd"):
        even, lossy = (
            run(**METHODS[method], cluster=shared.model_copy(update=changed), epochs=1) for changed in ({}, LOSSY)
        )
        assert lossy.seconds == even.seconds


def test_a_collective_operation_waits_for_the_last_message_of_each_round() -> None:
    drawn = np.random.default_rng(5).geometric(0.7, size=(20_000, 3, 6)) - 1
    losses = LostMessages(0.3, 2.0, seed=1)
    found = [losses.delay_of_all(6, 3) for _ in range(20_000)]
    assert np.mean(found) == pytest.approx(2 * drawn.max(axis=2).sum(axis=1).mean(), rel=0.02)
    assert np.quantile(found, 0.9) == np.quantile(2 * drawn.max(axis=2).sum(axis=1), 0.9)


@pytest.mark.parametrize("method", ["ad-psgd", "swarm-sgd"])
def test_a_resumed_run_loses_the_same_messages(method: str) -> None:
    chosen: dict[str, Any] = {
        **METHODS[method],
        "workers": 3,
        "batch_size": 4,
        "checkpoint_steps": 7,
        "cluster": ROUGH.model_copy(update=LOSSY),
        "train": toy_rows(120, groups=6),
        "sharding": "static",
    }
    kept = KeptCheckpoints()
    whole = run(files=kept.files, **chosen)
    assert sum(records[-1]["averages_lost"] for records in whole.records) > 0
    resumed = run(files=KeptCheckpoints().files, resume=kept.at((0, 7)), **chosen)
    np.testing.assert_array_equal(models(resumed), models(whole))
