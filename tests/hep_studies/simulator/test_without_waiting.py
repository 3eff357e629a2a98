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
    simulated = run(train=TRAIN, cluster=cluster, epochs=3, **method)
    num_samples = 0
    seconds_of_workers = []
    for records in simulated.records:
        num_samples += sum(record["samples"] for record in records)
        seconds_of_workers.append(sum(record["seconds"] for record in records))
    return float(num_samples / max(seconds_of_workers))


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

    rate_with_slow_rank = sample_rate(SLOW_RANK, **settings)
    rate = sample_rate(CLUSTER, **settings)

    # Ideally (3 + 1/10) / 4.
    assert 0.7 <= rate_with_slow_rank / rate <= 0.78


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
    rows = toy_rows(323)

    simulated = run(train=rows, cluster=STOPPED_RANK, workers=3, epochs=4, **settings)

    assert_each_event_counts_once(simulated, 323)
    steps_of_stopped_rank = [record["steps"] for record in simulated.records[2]]
    assert min(steps_of_stopped_rank) == 0
    for records in zip(*simulated.records, strict=True):
        loss, *other_losses = (record["val_loss"] for record in records)
        assert np.isfinite(loss)
        assert other_losses == [loss, loss]


def first_of_three_equal(states: list[Any]) -> int:
    """Index of the first state that the next two repeat."""
    for index, state in enumerate(states):
        if states[index : index + 3] == [state, state, state]:
            return index
    raise AssertionError("no state is saved three times")


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

    saved = dict(sorted(checkpoints.content.items()))
    assert list(saved) == [(epoch, 0) for epoch in range(1, 31)]
    # A worker that finds the end of the run does not save the epochs that it missed before it.
    with_stopped_rank = {position: states for position, states in saved.items() if 2 in states}
    positions = list(with_stopped_rank)
    assert positions[-1] == (30, 0)
    stopped_states = [states[2] for states in with_stopped_rank.values()]
    running_states = {states[0] for states in with_stopped_rank.values()}
    # A checkpoint of a missed epoch has the state before it.
    assert len(set(stopped_states)) < 10 < len(running_states)
    missed = first_of_three_equal(stopped_states)
    for position in (positions[missed + 1], positions[-2]):
        checkpoint = checkpoints.at(position)
        resumed = run(files=MemoryCheckpoints().files, resume=checkpoint, **settings)
        assert_each_event_counts_once(resumed, 60)
        num_epochs, _ = position
        for resumed_records, records in zip(resumed.records, complete.records, strict=True):
            samples = [record["samples"] for record in records[:num_epochs]]
            resumed_samples = [record["samples"] for record in resumed_records[:num_epochs]]
            assert resumed_samples == samples


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
