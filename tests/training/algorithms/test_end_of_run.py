"""The end of a run does not matter: its last epoch equals that epoch of a longer run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import (
    ALL_METHODS,
    WITH_SLOWMO,
    LinearGradients,
    constant_step_cluster,
    run,
    settings,
    toy_rows,
)

from training.algorithms.registry import METHODS

#: Steps of nearly equal length, so that most windows are unfinished when the run ends.
CLUSTER = constant_step_cluster(1e-3, jitter=0.1, latency_seconds=1e-5)
ROWS = toy_rows(1280)
#: Workers that wait for nobody have some units of the epoch under way when its model is validated,
#: and none at the end.
LARGEST_PART_UNDER_WAY = 0.08
EPOCHS = 2
#: Their learning rates are those of one worker, but each of 20 moves the server by its whole step.
WHOLE_STEPS = ("downpour", "sharded")
VARIANTS: dict[str, dict[str, Any]] = {
    "easgd at snapshots": {"algorithm": "easgd"},
    "mpca in cycles of fixed steps": {"algorithm": "mpca", "cycle_steps": 3},
}
SLOWMO = {"slowmo": {"tau": 4}}
SLOWMO_METHODS = {f"{name} with slowmo": ALL_METHODS[name] | SLOWMO for name in WITH_SLOWMO}
METHODS_AND_VARIANTS = ALL_METHODS | VARIANTS | SLOWMO_METHODS


def loss_after(epochs: int, selected: dict[str, Any]) -> float:
    """The validation loss after `EPOCHS` epochs, in a run of a number of epochs."""
    histories = run(train=ROWS, cluster=CLUSTER, epochs=epochs, **selected).records
    records = [history[EPOCHS - 1] for history in histories]
    losses: list[float] = [record["val_loss"] for record in records if "val_loss" in record]
    return losses[0]


def settings_of_many_workers(selected: dict[str, Any]) -> dict[str, Any]:
    """20 workers, windows that no epoch divides, a constant rate, and one shard, which is fast."""
    learning_rate = 0.05
    if selected["algorithm"] in WHOLE_STEPS:
        learning_rate = 0.01
    if "slowmo" in selected:
        learning_rate *= 0.4
    many_workers = {
        "workers": 20,
        "batch_size": 4,
        "optimizer": "sgd",
        "learning_rate": learning_rate,
        "scale_learning_rate": False,
    }
    changes = many_workers | selected
    keys = METHODS[selected["algorithm"]].settings.model_fields
    if "local_steps" in keys:
        changes["local_steps"] = 7
    if "bound" in keys:
        changes.setdefault("shards", 1)
    return changes


@pytest.mark.parametrize("name", METHODS_AND_VARIANTS)
def test_an_epoch_ends_alike_in_a_run_that_ends_there_and_in_a_longer_one(name: str) -> None:
    selected = settings_of_many_workers(METHODS_AND_VARIANTS[name])
    tolerance = LARGEST_PART_UNDER_WAY
    if settings(**selected).has_static_shards:
        tolerance = 0.0

    last_loss = loss_after(EPOCHS, selected)
    followed_loss = loss_after(EPOCHS + 1, selected)

    assert last_loss == pytest.approx(followed_loss, rel=tolerance, abs=0.0)


@pytest.mark.parametrize(("name", "num_averaged"), [("downpour", 1), ("agn", 10)])
def test_a_window_that_the_run_cuts_short_is_not_pushed(name: str, num_averaged: int) -> None:
    """AGN would push a mean as long as that of a whole window."""
    window = 10
    rate = 0.1
    noise = LinearGradients(workers=20, steps=16, seed=3, hessian=0.0)
    results = np.empty((20, 5))
    sgd = {"optimizer": "sgd", "learning_rate": rate}

    noise.drive(algorithm=name, local_steps=window, cluster=CLUSTER, results=results, **sgd)

    # Only the first window of each worker.
    sum_of_pulls = noise.pulls[:, :window].sum(axis=(0, 1))
    expected = noise.initial + rate * sum_of_pulls / num_averaged
    np.testing.assert_allclose(results, np.tile(expected, (20, 1)), atol=1e-12)
