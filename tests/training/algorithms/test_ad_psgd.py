"""AD-PSGD by hand: x = average - rate * gradient at the snapshot, after any changes meanwhile.

And the counters.
"""

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
    recorder = StepRecorder()

    trained = problem.drive(
        cluster=CLUSTER.model_copy(update={"slow_ranks": {1: 1.5}}),
        partners=lambda rank: ListedPartners([0] if rank else [None]),
        initial=start,
        before_step=recorder,
        exchange=exchange,
        **AD_PSGD,
    )

    first_average = start.mean(axis=0)
    # Rank 0 ends its step at 1 ms, rank 1 at 1.5 ms; these are their next snapshots.
    snapshot_0 = first_average - RATE * problem.gradient(0, 0, start[0])
    snapshot_1 = first_average - RATE * problem.gradient(1, 0, start[1])
    second_average = (snapshot_0 + snapshot_1) / 2
    end_0 = second_average - RATE * problem.gradient(0, 1, snapshot_0)
    end_1 = second_average - RATE * problem.gradient(1, 1, snapshot_1)
    np.testing.assert_allclose(trained, [[snapshot_0, snapshot_1], [end_0, end_1]], atol=1e-14)
    counters = [recorder.algorithms[rank].counters() for rank in range(2)]
    assert [counts["averages_begun"] for counts in counters] == [0, 2]
    assert [counts["averages_received"] for counts in counters] == [2, 0]
    assert [counts["averages_skipped"] for counts in counters] == [0, 0]
    assert [counts["staleness"] for counts in counters] == [{1: 2}, {1: 2}]


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_every_update_and_every_average_is_counted_once(exchange: str) -> None:
    cluster = UNEVEN_CLUSTER.model_copy(update={"latency_seconds": 1e-3})

    simulated = run(algorithm="ad-psgd", exchange=exchange, cluster=cluster, sharding="static")

    records = list(itertools.chain.from_iterable(simulated.records))
    size, workers = simulated.parameters[0].nbytes, 4
    num_stale_averages = 0
    for record in records:
        assert sum(record["staleness"].values()) == record["steps"]
        assert record["averages_begun"] + record["averages_skipped"] == record["steps"]
        # A vector comes and a change goes; at the end of the epoch all reduce the model and six
        # numbers.
        end_of_epoch = 2 * (workers - 1) * (size + 6 * 8) // workers
        assert record["bytes_sent"] == 2 * record["averages_begun"] * size + end_of_epoch
        for num_averages, num_updates in record["staleness"].items():
            num_stale_averages += int(num_averages) * num_updates
    begun = sum(record["averages_begun"] for record in records)
    received = sum(record["averages_received"] for record in records)
    skipped = sum(record["averages_skipped"] for record in records)
    assert begun == received > 0
    assert (skipped > 0) == (exchange == "sockets")
    assert num_stale_averages <= begun + received
