"""AD-PSGD by hand: x = average - rate * gradient at the snapshot, after any changes meanwhile.

And the counters.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from simulated import CLUSTER, UNEVEN_CLUSTER, LinearGradients, ListedPartners, StepRecorder, run

RATE = 0.1
AD_PSGD = {"algorithm": "ad-psgd", "optimizer": "sgd", "learning_rate": RATE}


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_the_gradient_at_the_snapshot_is_subtracted_from_the_average_that_came_meanwhile(
    exchange: str,
) -> None:
    problem = LinearGradients(workers=2, steps=2, seed=6)
    start = np.random.default_rng(1).normal(size=(2, 5))
    recorder = StepRecorder()
    # Rank 1 begins an average with rank 0 at each of its steps, which take 1.5 times as long.
    cluster = CLUSTER.model_copy(update={"slow_ranks": {1: 1.5}})
    partners_of_ranks = [ListedPartners([None]), ListedPartners([0])]

    trained = problem.drive(
        cluster=cluster,
        partners=partners_of_ranks.__getitem__,
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
    expected = [[snapshot_0, snapshot_1], [end_0, end_1]]
    np.testing.assert_allclose(trained, expected, atol=1e-14)
    counters = [recorder.algorithms[rank].counters() for rank in range(2)]
    averages_begun = [counts["averages_begun"] for counts in counters]
    averages_received = [counts["averages_received"] for counts in counters]
    assert averages_begun == [0, 2]
    assert averages_received == [2, 0]
    for counts in counters:
        assert counts["averages_skipped"] == 0
        assert counts["staleness"] == {1: 2}


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_every_update_and_every_average_is_counted_once(exchange: str) -> None:
    cluster = UNEVEN_CLUSTER.model_copy(update={"latency_seconds": 1e-3})

    simulated = run(algorithm="ad-psgd", exchange=exchange, cluster=cluster, sharding="static")

    records = list(itertools.chain.from_iterable(simulated.records))
    model_bytes, workers = simulated.parameters[0].nbytes, 4
    # At the end of an epoch all reduce the model and six numbers.
    all_reduce_bytes = 2 * (workers - 1) * (model_bytes + 6 * 8) // workers
    num_stale_averages = 0
    totals: Counter[str] = Counter()
    for record in records:
        begun, skipped = record["averages_begun"], record["averages_skipped"]
        assert sum(record["staleness"].values()) == record["steps"]
        assert begun + skipped == record["steps"]
        # A vector comes and a change goes.
        assert record["bytes_sent"] == 2 * begun * model_bytes + all_reduce_bytes
        for num_averages, num_updates in record["staleness"].items():
            num_stale_averages += int(num_averages) * num_updates
        received = record["averages_received"]
        totals.update(begun=begun, received=received, skipped=skipped)
    assert totals["begun"] == totals["received"] > 0
    assert (totals["skipped"] > 0) == (exchange == "sockets")
    assert num_stale_averages <= totals["begun"] + totals["received"]
