"""Methods without waiting: a slow worker does not hold the others up, and every event counts
once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import (
    ALL_METHODS,
    CLUSTER,
    GOSSIP_METHODS,
    PEER_METHODS,
    UNEVEN_CLUSTER,
    MemoryCheckpoints,
    run,
    toy_rows,
)

from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.simulate import Simulated

SLOW_RANK = CLUSTER.model_copy(update={"slow_ranks": {2: 10.0}})
#: Rank 2 is busy with one unit while the others do whole epochs.
STOPPED_RANK = CLUSTER.model_copy(update={"slow_ranks": {2: 200.0}})
TRAIN = toy_rows(2000, groups=10)
WITH_SLOWMO = {"swarm-sgd with slowmo": PEER_METHODS["swarm-sgd"] | {"slowmo": {"tau": 4}}}


def sample_rate(cluster: ClusterSettings, **method: Any) -> float:
    """Samples of all workers in a second."""
    records = run(train=TRAIN, cluster=cluster, epochs=3, **method).records
    num_samples = sum(record["samples"] for worker in records for record in worker)
    seconds = [sum(record["seconds"] for record in worker) for worker in records]
    return float(num_samples / max(seconds))


@pytest.mark.parametrize(
    "method",
    [
        *GOSSIP_METHODS,
        "mpca",
        "sgp beside",
        "sgp on a host",
        "swarm-sgd with slowmo",
        "agn",
        "async-diloco",
        "easgd",
        "sharded sparse beside",
    ],
)
def test_the_trainer_keeps_the_rate_of_the_fast_workers(method: str) -> None:
    settings = (ALL_METHODS | WITH_SLOWMO)[method]

    share = sample_rate(SLOW_RANK, **settings) / sample_rate(CLUSTER, **settings)

    # Ideally (3 + 1/10) / 4.
    assert 0.7 <= share <= 0.78


def assert_each_event_counts_once(simulated: Simulated, num_rows: int) -> None:
    """Each event is used once in each epoch, by any worker."""
    for epoch, records in enumerate(zip(*simulated.records, strict=True)):
        assert sum(record["samples"] for record in records) == num_rows
        for record in records:
            assert record["epoch"] == epoch
            assert record["samples_all_ranks"] == num_rows
            assert record["train_rows"] == num_rows
            assert record["samples_seen_by_all"] == num_rows * (epoch + 1)


@pytest.mark.parametrize("method", [*GOSSIP_METHODS, "mpca", "sgp beside"])
def test_every_event_is_used_once_an_epoch_by_whoever_is_ready(method: str) -> None:
    settings = PEER_METHODS[method]

    simulated = run(train=toy_rows(323), cluster=STOPPED_RANK, workers=3, epochs=4, **settings)

    assert_each_event_counts_once(simulated, 323)
    assert min(record["steps"] for record in simulated.records[2]) == 0
    for records in zip(*simulated.records, strict=True):
        assert len({record["val_loss"] for record in records}) == 1
        assert np.isfinite(records[0]["val_loss"])


def test_a_stopped_worker_continues_from_a_checkpoint_within_the_epochs_that_it_missed() -> None:
    settings: dict[str, Any] = {
        **PEER_METHODS["ad-psgd"],
        "workers": 3,
        "train": toy_rows(60),
        "batch_size": 4,
        "epochs": 30,
        # Rank 2 is busy with one unit for about ten epochs.
        "cluster": CLUSTER.model_copy(update={"slow_ranks": {2: 40.0}}),
    }
    checkpoints = MemoryCheckpoints()

    complete = run(files=checkpoints.files, **settings)

    assert sorted(checkpoints.content) == [(epoch, 0) for epoch in range(1, 31)]
    # A worker that finds the end of the run does not save the epochs that it missed before it.
    positions = [
        position for position in sorted(checkpoints.content) if 2 in checkpoints.content[position]
    ]
    assert positions[-1] == (30, 0)
    stopped_states = [checkpoints.content[position][2] for position in positions]
    running_states = {checkpoints.content[position][0] for position in positions}
    # A checkpoint of a missed epoch has the state before it.
    assert len(set(stopped_states)) < 10 < len(running_states)
    missed = next(
        index
        for index in range(1, len(positions) - 1)
        if stopped_states[index - 1] == stopped_states[index] == stopped_states[index + 1]
    )
    for position in (positions[missed], positions[-2]):
        resumed = run(files=MemoryCheckpoints().files, resume=checkpoints.at(position), **settings)
        assert_each_event_counts_once(resumed, 60)
        num_epochs, _ = position
        for resumed_records, records in zip(resumed.records, complete.records, strict=True):
            samples = [record["samples"] for record in records[:num_epochs]]
            assert [record["samples"] for record in resumed_records[:num_epochs]] == samples


def test_the_best_model_of_a_worker_that_is_gone_is_kept() -> None:
    settings: dict[str, Any] = {
        "algorithm": "ad-psgd",
        "learning_rate": 0.4,
        "cluster": UNEVEN_CLUSTER,
    }
    checkpoints = MemoryCheckpoints()
    complete = run(files=checkpoints.files, workers=4, epochs=3, **settings)
    checkpoint = checkpoints.at((2, 0))
    models = [checkpoint.load(rank)["best"] for rank in range(4)]
    best = min(models, key=lambda model: model["val_loss"])
    resumed = MemoryCheckpoints()

    run(files=resumed.files, resume=checkpoint, workers=1, epochs=2, **settings)

    np.testing.assert_array_equal(resumed.best(0), best["model"].numpy())
    losses = [record["val_loss"] for record in complete.records[0][:2]]
    assert best["val_loss"] == min(losses)
