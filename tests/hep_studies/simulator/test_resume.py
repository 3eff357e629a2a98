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
BY_SPEED = {"async-diloco by speed": {"algorithm": "async-diloco", "local_steps": 5}}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {
        "optimizer": "adam",
        "learning_rate": 0.01,
        "schedule": {"warmup_epochs": 1, "decay": "cosine"},
    },
    "muon": {"optimizer": "muon", "learning_rate": 0.01, "weight_decay": 1e-3},
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
CASES += [(name, "adam", "plain") for name in ("sgd", *IN_CYCLES, *BY_SPEED)]
CASES += [
    (method, "momentum", "slowmo")
    for method in ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd", "sgd")
]
CASES += [
    (method, "muon", "slowmo")
    for method in ("ar-sgd", "diloco", "choco-sgd", "ad-psgd", "swarm-sgd", "easgd", "sgd")
]
#: Virtual times, which count from the start of the resumed run.
METERED = {"exchange_seconds", "hidden_seconds", "seconds", "seconds_by_kind", "wait_seconds"}


def training(checkpoints: MemoryCheckpoints, resume: Any = None, **settings: Any) -> Simulated:
    """Two epochs with a checkpoint after seven steps of each.

    That is within a window of SlowMo, and between two averages.
    """
    defaults = {
        "workers": 3,
        "batch_size": 4,
        "checkpoint_steps": 7,
        "cluster": UNEVEN_CLUSTER,
        "train": toy_rows(120, groups=6),
        "sharding": "static",
    }
    return run(files=checkpoints.files, resume=resume, **(defaults | settings))


def assert_same_record(resumed: dict[str, Any], record: dict[str, Any], about: str) -> None:
    """All but virtual times are the same."""
    assert resumed.keys() == record.keys()
    for key in record.keys() - METERED:
        message = f"{about}, epoch {record['epoch']}, {key}"
        np.testing.assert_equal(resumed[key], record[key], message)


def assert_resumes_bit_by_bit(settings: dict[str, Any]) -> None:
    """A run has the same models and records when it resumes within or between epochs."""
    checkpoints = MemoryCheckpoints()
    complete = training(checkpoints, **settings)
    assert sorted(checkpoints.content) == [(0, 7), (1, 0), (1, 7), (2, 0)]
    for position in (WITHIN, BETWEEN):
        resumed = training(MemoryCheckpoints(), checkpoints.at(position), **settings)
        np.testing.assert_array_equal(models(resumed), models(complete), err_msg=str(position))
        for resumed_records, records in zip(resumed.records, complete.records, strict=True):
            for resumed_record, record in zip(resumed_records, records, strict=True):
                assert_same_record(resumed_record, record, f"resumed at {position}")


@pytest.mark.parametrize(("method", "optimizer", "slowmo"), CASES)
@pytest.mark.slow
def test_every_method_continues_from_a_checkpoint_bit_by_bit(
    method: str, optimizer: str, slowmo: str
) -> None:
    methods = ALL_METHODS | IN_CYCLES | BY_SPEED
    settings = methods[method] | OPTIMIZERS[optimizer] | SLOWMO[slowmo]
    workers = settings.get("workers", 3)
    settings["batch_size"] = 12 // workers
    if settings["algorithm"] == "sharded":
        # Its momentum and moments stay at the server.
        settings.pop("optimizer_state", None)

    assert_resumes_bit_by_bit(settings)


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
def test_events_of_the_same_instant_keep_their_order(method: str, cluster: str) -> None:
    settings = PEER_METHODS[method] | {"cluster": TIES[cluster]}

    assert_resumes_bit_by_bit(settings)


@pytest.mark.parametrize("local_steps", [5, 7])
def test_half_a_step_in_proportion_to_the_speed_is_rounded_alike(local_steps: int) -> None:
    changes = {"local_steps": local_steps, "optimizer": "sgd", "cluster": TIES["twice"]}
    settings = BY_SPEED["async-diloco by speed"] | changes

    assert_resumes_bit_by_bit(settings)


def test_the_best_model_so_far_is_remembered() -> None:
    settings: dict[str, Any] = {"algorithm": "d-psgd", "learning_rate": 0.4}
    checkpoints = MemoryCheckpoints()
    complete = training(checkpoints, **settings)
    first, second = (record["val_loss"] for record in complete.records[0])
    assert first < second, "the test needs a run whose first epoch is its best"
    resumed_checkpoints = MemoryCheckpoints()

    resumed = training(resumed_checkpoints, checkpoints.at(BETWEEN), **settings)

    assert resumed.records[0][-1]["best_epoch"] == 0
    # A run that was killed may have written a later model, which it will not reach again.
    assert resumed_checkpoints.best(0) is not None
    np.testing.assert_array_equal(resumed_checkpoints.best(0), checkpoints.best(0))
    assert resumed_checkpoints.best(1) is None


#: Methods whose model is not the mean of the workers' models.
JOINT = {name: SERVER_METHODS[name] for name in ("easgd together", "easgd", "eamsgd", "agn")}
JOINT |= {
    "mpca": PEER_METHODS["mpca"],
    **IN_CYCLES,
    "easgd with slowmo": SERVER_METHODS["easgd"] | SLOWMO["slowmo"],
    "easgd with a bound": SERVER_METHODS["easgd"] | {"staleness_bound": 2},
}


@pytest.mark.parametrize("method", JOINT)
def test_another_number_of_workers_begins_from_the_joint_model(method: str) -> None:
    checkpoints = MemoryCheckpoints()
    training(checkpoints, **JOINT[method], epochs=1)
    checkpoint = checkpoints.at(BETWEEN)
    states = [checkpoint.load(rank) for rank in range(3)]
    # The only validation was of the joint model, so that it is the best one.
    joint_model = states[0]["best"]["model"].numpy()
    models_of_workers = [state["current"].numpy() for state in states]
    mean_model = np.mean(models_of_workers, axis=0)
    distance = abs(joint_model - mean_model).max()
    assert distance > 1e-4, "the test needs another mean"

    # Without a further step.
    resumed = training(MemoryCheckpoints(), checkpoint, workers=2, epochs=1, **JOINT[method])

    first, second = models(resumed)
    np.testing.assert_allclose(first, joint_model, atol=1e-15)
    np.testing.assert_allclose(second, joint_model, atol=1e-15)


def joint_model(state: dict[str, Any]) -> tuple[int, Any]:
    """The age and the joint model in the checkpoint of a worker."""
    if "joint" in state:
        joint = state["joint"]
        return int(joint["counts"][0]), joint["vectors"][0]
    age = int(state["clocks"].sum())
    return age, state["published"][0]


@pytest.mark.parametrize("method", [SERVER_METHODS["easgd"], PEER_METHODS["mpca"]], ids=str)
def test_by_work_units_another_number_of_workers_begins_from_the_newest_joint_model(
    method: dict[str, Any],
) -> None:
    settings = {**method, "sharding": None}
    checkpoints = MemoryCheckpoints()
    training(checkpoints, **settings, checkpoint_steps=None)
    checkpoint = checkpoints.at(BETWEEN)
    states = [checkpoint.load(rank)["algorithm"] for rank in range(3)]
    joint_models = [joint_model(state) for state in states]
    ages = [age for age, _ in joint_models]
    assert len(set(ages)) > 1, "workers pass the checkpoint at different times"
    _, newest = joint_models[int(np.argmax(ages))]

    resumed = training(MemoryCheckpoints(), checkpoint, workers=2, epochs=1, **settings)

    first, second = models(resumed)
    np.testing.assert_array_equal(first, newest.numpy())
    np.testing.assert_array_equal(second, newest.numpy())


def test_a_model_that_is_not_finite_is_left_out_for_another_number_of_workers() -> None:
    checkpoints = MemoryCheckpoints()
    training(checkpoints, epochs=1, algorithm="d-psgd")
    checkpoint = checkpoints.at(BETWEEN)
    load = checkpoint.load
    finite_mean = np.mean([load(rank)["current"].numpy() for rank in (0, 2)], axis=0)

    def load_with_nan(rank: int) -> Any:
        state = load(rank)
        if rank == 1:
            state["current"][3] = float("nan")
        return state

    checkpoint.load = load_with_nan
    resumed = training(MemoryCheckpoints(), checkpoint, workers=2, epochs=1, algorithm="d-psgd")

    np.testing.assert_allclose(models(resumed), np.tile(finite_mean, (2, 1)), atol=1e-15)
