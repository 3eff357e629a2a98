"""AD-PSGD by hand: x = average - rate * gradient at the snapshot, after any changes meanwhile; and the counters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from simulated import CLUSTER, UNEVEN_CLUSTER, LinearGradients, ListedPartners, StepRecorder, run

RATE = 0.1
AD_PSGD = {"algorithm": "ad-psgd", "optimizer": "sgd", "learning_rate": RATE}


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_the_gradient_at_the_snapshot_is_subtracted_from_the_average_that_came_meanwhile(
    exchange: str,
) -> None:
    # Rank 1 begins an average with rank 0 at each of its steps, which take 1.5 times as long.
    problem = LinearGradients(workers=2, steps=2, seed=6)
    start = np.random.default_rng(1).normal(size=(2, 5))
    watcher = StepRecorder()
    actual = problem.drive(
        cluster=CLUSTER.model_copy(update={"slow_ranks": {1: 1.5}}),
        partners=lambda rank: ListedPartners([0] if rank else [None]),
        initial=start,
        before_step=watcher,
        exchange=exchange,
        **AD_PSGD,
    )
    first, second = start
    average = (first + second) / 2
    after_first = average - RATE * problem.gradient(0, 0, first)  # at 1 ms; the next snapshot
    after_second = average - RATE * problem.gradient(1, 0, second)  # at 1.5 ms; the next snapshot
    average = (after_first + after_second) / 2
    expected = [
        [after_first, after_second],
        [
            average - RATE * problem.gradient(0, 1, after_first),
            average - RATE * problem.gradient(1, 1, after_second),
        ],
    ]
    np.testing.assert_allclose(actual, expected, atol=1e-14)
    for rank in range(2):
        assert vars(watcher.algorithms[rank])["staleness"] == {1: 2}
        counts = watcher.algorithms[rank].counters()
        begun_received_skipped = tuple(
            counts[f"averages_{kind_name}"] for kind_name in ("begun", "received", "skipped")
        )
        assert begun_received_skipped == ((2, 0, 0) if rank else (0, 2, 0))


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_every_update_and_every_average_is_counted_once(exchange: str) -> None:
    slow = UNEVEN_CLUSTER.model_copy(update={"latency_seconds": 1e-3})
    simulated = run(algorithm="ad-psgd", exchange=exchange, cluster=slow, sharding="static")
    records = list(itertools.chain(*simulated.records))
    assert (
        sum(record["averages_begun"] for record in records)
        == sum(r["averages_received"] for r in records)
        > 0
    )
    for record in records:
        assert sum(record["staleness"].values()) == record["steps"]
        assert record["averages_begun"] + record["averages_skipped"] == record["steps"]
        # A vector comes and a change goes; at the end of the epoch all reduce the model and six numbers.
        size, workers = simulated.parameters[0].nbytes, record["workers"]
        end = 2 * (workers - 1) * (size + 6 * 8) // workers
        assert record["bytes_sent"] == 2 * record["averages_begun"] * size + end
    assert (sum(record["averages_skipped"] for record in records) > 0) == (exchange == "sockets")
    updates = sum(
        int(stale) * times for record in records for stale, times in record["staleness"].items()
    )
    assert updates <= sum(
        record["averages_begun"] + record["averages_received"] for record in records
    )
