"""The rules of MPCA SGD by hand: each equation, and what follows from them."""

from __future__ import annotations

import numpy as np
import pytest

from training.algorithms.mpca_joint import (
    JointShard,
    MpcaConstants,
    aggregate,
    contribution,
    displace,
    driver_rule,
)
from training.transports.parameter_server import shard_slices

NO_RAMPS = MpcaConstants(alpha_free=0, alpha_ramp=0, beta_ramp=0, gamma_ramp=0)


def test_contributions_are_weighted_by_the_steps_of_each_worker_and_add_up_in_any_order() -> None:
    first, second, idle, bad = np.array([1.0, 2.0]), np.array([5.0, 6.0]), np.array([9.0, 9.0]), np.array([np.nan, 0])
    sent = [contribution(x, steps) for x, steps in ((first, 1), (second, 3), (idle, 0), (bad, 7))]
    np.testing.assert_array_equal(aggregate(sent[0] + sent[1] + sent[2] + sent[3]), (first + 3 * second) / 4)
    np.testing.assert_array_equal(aggregate(sent[3] + (sent[1] + sent[2]) + sent[0]), (first + 3 * second) / 4)
    plain = contribution(first, 1, weighted=False) + contribution(second, 3, weighted=False)
    np.testing.assert_array_equal(aggregate(plain), (first + second) / 2)
    assert aggregate(sent[2] + sent[3]) is None
    assert contribution(first.astype(np.float32), 2).dtype == np.float32


def test_a_cycle_of_the_driver_by_hand() -> None:
    shard = JointShard(np.array([1.0]), np.array([0.5]), np.array([7.0]), 3)
    found = driver_rule(shard, np.array([6.0, 2.0]), NO_RAMPS)
    model = 0.1 * 1 + 0.9 * 3
    trajectory = 0.8 * 0.5 + 0.2 * (model - 1)
    assert found.cycle == 4
    np.testing.assert_allclose(np.concatenate(found[:3]), [model, trajectory, model + 0.7 * trajectory], rtol=1e-15)
    # The earlier projection plays no part, and nothing changes without a contribution.
    assert driver_rule(shard._replace(projected=np.zeros(1)), np.array([6.0, 2.0]), NO_RAMPS).model == found.model
    assert driver_rule(shard, np.zeros(2), NO_RAMPS) is shard


def test_a_steady_drift_is_projected_gamma_cycles_ahead() -> None:
    shard = JointShard.at_start(np.zeros(2))
    drift = np.array([1.0, -2.0])
    replacing = NO_RAMPS.model_copy(update={"beta": 1.0})
    for cycle in range(1, 120):
        shard = driver_rule(shard, contribution(cycle * drift, 5), replacing)
        np.testing.assert_array_equal(shard.model, cycle * drift)
    np.testing.assert_allclose(shard.trajectory, drift, rtol=1e-10)
    np.testing.assert_allclose(shard.projected, (119 + 0.7) * drift, rtol=1e-10)
    off = driver_rule(shard, contribution(drift, 1), replacing.model_copy(update={"gamma": 0.0}))
    np.testing.assert_array_equal(off.projected, off.model)


@pytest.mark.parametrize("alpha", [0.0, 0.05, 1.0])
def test_the_pull_of_several_steps_adds_up_to_that_of_one(alpha: float) -> None:
    local, projected = np.array([3.0, -1.0]), np.array([1.0, 1.0])
    found = local.copy()
    for _ in range(15):
        assert displace(found, projected, alpha) is found
    np.testing.assert_allclose(found - projected, (1 - alpha) ** 15 * (local - projected), rtol=1e-12)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_shards_cover_a_vector_evenly(shards: int) -> None:
    slices = shard_slices(11, shards)
    np.testing.assert_array_equal(np.concatenate([np.arange(11)[each] for each in slices]), np.arange(11))
    sizes = [each.stop - each.start for each in slices]
    assert max(sizes) - min(sizes) <= 1
