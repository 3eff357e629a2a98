"""Nobody waits: through the trainer, one slow worker does not hold the others up, and every event counts once."""

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

from hep_studies.simulator.simulate import Simulated

STRAGGLER = CLUSTER.model_copy(update={"slow_ranks": {2: 10.0}})
TRAIN = toy_rows(2000, groups=10)


def rate(cluster: Any, **selected: Any) -> float:
    """Samples of all workers in a second."""
    records = run(train=TRAIN, cluster=cluster, epochs=3, **selected).records
    samples = sum(record["samples"] for worker in records for record in worker)
    return samples / max(sum(record["seconds"] for record in worker) for worker in records)


@pytest.mark.parametrize(
    "method",
    [*GOSSIP_METHODS, "mpca", "swarm-sgd with slowmo", "agn", "easgd", "sharded sparse beside"],
)
def test_the_trainer_keeps_the_rate_of_the_fast_workers(method: str) -> None:
    slow = {"swarm-sgd with slowmo": PEER_METHODS["swarm-sgd"] | {"slowmo": {"tau": 4}}}
    selected = (ALL_METHODS | slow)[method]
    # Ideally (3 + 1/10) / 4.
    assert 0.7 <= rate(STRAGGLER, **selected) / rate(CLUSTER, **selected) <= 0.78


def check_totals(simulated: Simulated, rows: int) -> None:
    """Each event once in each epoch, by whichever worker."""
    for epoch, records in enumerate(zip(*simulated.records, strict=True)):
        assert {record["epoch"] for record in records} == {epoch}
        assert sum(record["samples"] for record in records) == rows
        assert {record["samples_all_ranks"] for record in records} == {rows}
        assert {record["train_rows"] for record in records} == {rows}
        assert {record["samples_seen_by_all"] for record in records} == {rows * (epoch + 1)}


@pytest.mark.parametrize("method", [*GOSSIP_METHODS, "mpca"])
def test_every_event_is_used_once_an_epoch_by_whoever_is_ready(method: str) -> None:
    # Rank 2 is busy with one unit while the others do whole epochs.
    slow = CLUSTER.model_copy(update={"slow_ranks": {2: 200.0}})
    simulated = run(train=toy_rows(323), cluster=slow, workers=3, epochs=4, **PEER_METHODS[method])
    check_totals(simulated, 323)
    assert min(record["steps"] for record in simulated.records[2]) == 0
    losses = [
        {record["val_loss"] for record in records}
        for records in zip(*simulated.records, strict=True)
    ]
    assert all(len(actual) == 1 and np.isfinite(next(iter(actual))) for actual in losses)


def test_a_stopped_worker_wrote_a_checkpoint_for_each_of_the_epochs_that_it_missed() -> None:
    settings: dict[str, Any] = PEER_METHODS["ad-psgd"] | {
        "train": toy_rows(60),
        "batch_size": 4,
        "epochs": 30,
    }
    settings["cluster"] = CLUSTER.model_copy(update={"slow_ranks": {2: 200.0}})
    memory_checkpoints = MemoryCheckpoints()
    complete = run(files=memory_checkpoints.files, workers=3, **settings)
    places = sorted(memory_checkpoints.content)
    assert places == [(epoch, 0) for epoch in range(1, 31)]
    states = [memory_checkpoints.content[position][2] for position in places]
    assert (
        len(set(states))
        < 10
        < len({memory_checkpoints.content[position][0] for position in places})
    )
    within = next(
        index for index in range(1, 29) if states[index - 1] == states[index] == states[index + 1]
    )
    for position in (places[within], places[20]):
        resumed = run(
            files=MemoryCheckpoints().files,
            resume=memory_checkpoints.at(position),
            workers=3,
            **settings,
        )
        check_totals(resumed, 60)
        assert all(
            ours["samples"] == theirs["samples"]
            for records, state_before in zip(resumed.records, complete.records, strict=True)
            for ours, theirs in zip(records[: position[0]], state_before, strict=False)
        )


def test_the_best_model_of_a_worker_that_is_gone_is_kept() -> None:
    memory_checkpoints = MemoryCheckpoints()
    settings: dict[str, Any] = {
        "algorithm": "ad-psgd",
        "learning_rate": 0.4,
        "epochs": 3,
        "cluster": UNEVEN_CLUSTER,
    }
    complete = run(files=memory_checkpoints.files, workers=4, **settings)
    chunks = [memory_checkpoints.at((2, 0)).load(rank)["best"] for rank in range(4)]
    assert sum(chunk["model"] is not None for chunk in chunks) >= 1
    begun = MemoryCheckpoints()
    run(
        files=begun.files,
        resume=memory_checkpoints.at((2, 0)),
        workers=1,
        **settings | {"epochs": 2},
    )
    best = min(chunks, key=lambda chunk: chunk["val_loss"])
    np.testing.assert_array_equal(begun.best(0), best["model"].numpy())
    assert best["val_loss"] == min(record["val_loss"] for record in complete.records[0][:2])
