"""A run resumed from a checkpoint is bit-identical to an uninterrupted run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import (
    ALL_METHODS,
    CLUSTER,
    PARALLEL_METHODS,
    PEER_METHODS,
    SERVER_METHODS,
    UNEVEN_CLUSTER,
    WITH_SLOWMO,
    MemoryCheckpoints,
    models,
    run,
    toy_rows,
)

from hep_studies.simulator.simulate import Simulated

WITHIN, BETWEEN = (0, 7), (1, 0)
IN_CYCLES = {"mpca in cycles": PEER_METHODS["mpca"] | {"cycle_steps": 3}}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {
        "optimizer": "adam",
        "learning_rate": 0.01,
        "schedule": {"warmup_epochs": 1, "decay": "cosine"},
    },
    "momentum": {"optimizer": "sgd", "momentum": 0.8, "weight_decay": 1e-3},
}
SLOWMO: dict[str, dict[str, Any]] = {
    "plain": {},
    "slowmo": {"slowmo": {"tau": 4, "beta": 0.5}},
    "exact slowmo": {
        "slowmo": {"tau": 4, "beta": 0.5, "exact_average": True},
        "optimizer_state": "keep",
    },
}
CASES = [
    (method, "adam", slow)
    for method in PARALLEL_METHODS
    for slow in SLOWMO
    if slow == "plain" or method in WITH_SLOWMO
]
CASES += [("sgd", "adam", "plain"), ("mpca in cycles", "adam", "plain")]
CASES += [
    (method, "momentum", "slowmo")
    for method in ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd", "sgd")
]
#: Virtual times and what is metered; they count from where the run was taken up.
METERED = {"exchange_seconds", "hidden_seconds", "seconds", "seconds_by_kind", "wait_seconds"}


def training(retained: MemoryCheckpoints, resume: Any = None, **selected: Any) -> Simulated:
    """Two epochs with a checkpoint after seven steps of each: within a window of SlowMo, between two averages."""
    defaults = {
        "workers": 3,
        "batch_size": 4,
        "checkpoint_steps": 7,
        "cluster": UNEVEN_CLUSTER,
        "train": toy_rows(120, groups=6),
        "sharding": "static",
    }
    return run(files=retained.files, resume=resume, **(defaults | selected))


def assert_same(actual: Simulated, expected: Simulated, taken_up: tuple[int, int]) -> None:
    np.testing.assert_array_equal(
        models(actual), models(expected), err_msg=f"taken up at {taken_up}"
    )
    for remaining, records in zip(actual.records, expected.records, strict=True):
        for second, record in zip(remaining, records, strict=True):
            for key in record.keys() - METERED:
                np.testing.assert_equal(
                    second[key], record[key], f"{taken_up}, epoch {record['epoch']}, {key}"
                )


@pytest.mark.parametrize(("method", "optimizer", "slowmo"), CASES)
@pytest.mark.slow
def test_every_method_continues_from_a_checkpoint_bit_by_bit(
    method: str, optimizer: str, slowmo: str
) -> None:
    settings = (ALL_METHODS | IN_CYCLES)[method] | OPTIMIZERS[optimizer] | SLOWMO[slowmo]
    settings |= {"batch_size": 12 // settings.get("workers", 3)}
    if settings["algorithm"] == "sharded":
        # Its momentum and moments stay at the server.
        settings.pop("optimizer_state", None)
    memory_checkpoints = MemoryCheckpoints()
    complete = training(memory_checkpoints, **settings)
    assert sorted(memory_checkpoints.content) == [(0, 7), (1, 0), (1, 7), (2, 0)]
    for position in (WITHIN, BETWEEN):
        assert_same(
            training(MemoryCheckpoints(), memory_checkpoints.at(position), **settings),
            complete,
            position,
        )


#: Steps that end at the same instant again and again.
TIES = {
    "even": CLUSTER,
    "twice": CLUSTER.model_copy(update={"slow_ranks": {0: 2.0}}),
    "odd": CLUSTER.model_copy(
        update={"step_seconds": 1.1e-3, "slow_ranks": {0: 3.0, 1: 1.5}, "latency_seconds": 1e-4}
    ),
}


@pytest.mark.parametrize("cluster", TIES)
@pytest.mark.parametrize("method", ["ad-psgd", "ad-psgd on a host", "swarm-sgd geometric"])
@pytest.mark.slow
def test_what_happens_at_the_same_instant_happens_in_the_same_order(
    method: str, cluster: str
) -> None:
    settings = PEER_METHODS[method] | {"cluster": TIES[cluster]}
    memory_checkpoints = MemoryCheckpoints()
    complete = training(memory_checkpoints, **settings)
    for position in (WITHIN, BETWEEN):
        assert_same(
            training(MemoryCheckpoints(), memory_checkpoints.at(position), **settings),
            complete,
            position,
        )


def test_the_best_model_so_far_is_remembered() -> None:
    memory_checkpoints = MemoryCheckpoints()
    settings: dict[str, Any] = {"algorithm": "d-psgd", "learning_rate": 0.4}
    complete = training(memory_checkpoints, **settings)
    losses = [record["val_loss"] for record in complete.records[0]]
    assert losses[0] < losses[1], "the test needs a run whose first epoch is its best"
    begun = MemoryCheckpoints()
    resumed = training(begun, memory_checkpoints.at(BETWEEN), **settings)
    assert resumed.records[0][-1]["best_epoch"] == 0
    # A run that was killed may have left a later model in its place, which it will not find again.
    assert begun.best(0) is not None
    np.testing.assert_array_equal(begun.best(0), memory_checkpoints.best(0))
    assert begun.best(1) is None


#: Methods whose model is not the mean of the workers' models.
JOINT = {name: SERVER_METHODS[name] for name in ("easgd together", "easgd", "eamsgd", "agn")}
JOINT |= {
    "mpca": PEER_METHODS["mpca"],
    **IN_CYCLES,
    "easgd with slowmo": SERVER_METHODS["easgd"] | SLOWMO["slowmo"],
    "easgd with a bound": SERVER_METHODS["easgd"] | {"staleness_bound": 2},
}


@pytest.mark.parametrize("method", JOINT)
def test_another_number_of_workers_began_from_the_mean_of_local_models_instead_of_the_joint_model(
    method: str,
) -> None:
    memory_checkpoints = MemoryCheckpoints()
    training(memory_checkpoints, **JOINT[method], epochs=1)
    checkpoint = memory_checkpoints.at(BETWEEN)
    chunks = [checkpoint.load(rank) for rank in range(3)]
    # The last validation was of what the method returns, and the only one: it is the best model.
    returned = chunks[0]["best"]["model"].numpy()
    distance = abs(returned - np.mean([chunk["current"].numpy() for chunk in chunks], axis=0)).max()
    assert distance > 1e-4, "a test needs workers whose mean is not the model"
    still = training(MemoryCheckpoints(), checkpoint, workers=2, epochs=1, **JOINT[method])
    np.testing.assert_allclose(models(still), np.tile(returned, (2, 1)), atol=1e-15)


def test_by_work_units_another_number_of_workers_begins_from_the_newest_joint_model() -> None:
    def model_of(state: dict[str, Any]) -> tuple[int, Any]:
        if "joint" in state:
            return state["joint"]["counts"][0], state["joint"]["vectors"][0]
        return state["clocks"].sum(), state["published"][0]

    for selected in (SERVER_METHODS["easgd"], PEER_METHODS["mpca"]):
        memory_checkpoints = MemoryCheckpoints()
        training(memory_checkpoints, **selected, sharding=None, checkpoint_steps=None)
        checkpoint = memory_checkpoints.at(BETWEEN)
        results = [model_of(checkpoint.load(rank)["algorithm"]) for rank in range(3)]
        ages = [int(age) for age, _ in results]
        newest = results[int(np.argmax(ages))][1].numpy()
        assert len(set(ages)) > 1, "workers pass the checkpoint at different times"
        still = training(
            MemoryCheckpoints(), checkpoint, workers=2, epochs=1, **selected, sharding=None
        )
        np.testing.assert_array_equal(models(still), np.tile(newest, (2, 1)))


def test_a_model_that_was_not_finite_spread_to_all_at_a_resume_with_another_number_of_workers() -> (
    None
):
    memory_checkpoints = MemoryCheckpoints()
    training(memory_checkpoints, epochs=1, algorithm="d-psgd")
    checkpoint = memory_checkpoints.at(BETWEEN)
    load, models_left = (
        checkpoint.load,
        [checkpoint.load(rank)["current"].numpy() for rank in (0, 2)],
    )

    def spoiled(rank: int) -> Any:
        chunk = load(rank)
        if rank == 1:
            chunk["current"][3] = float("nan")
        return chunk

    checkpoint.load = spoiled
    still = training(MemoryCheckpoints(), checkpoint, workers=2, epochs=1, algorithm="d-psgd")
    np.testing.assert_allclose(
        models(still), np.tile(np.mean(models_left, axis=0), (2, 1)), atol=1e-15
    )
