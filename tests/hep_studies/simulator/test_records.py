"""Records of a run: validation of the average model and of workers, bytes, kinds of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from simulated import CLUSTER, PEER_METHODS, UNEVEN_CLUSTER, models, run, toy_network, toy_rows
from torch import nn

from hep_studies.run_result import numbers_of
from hep_studies.simulator.costs import all_reduce_seconds, tree_seconds
from training.loop.records import MemoryFiles, merge_records


def validation(parameters: NDArray[np.float64]) -> tuple[float, float]:
    """Weighted loss and accuracy of a model on the validation rows."""
    network = toy_network()
    rows = toy_rows(60, groups=1, seed=1).rows
    nn.utils.vector_to_parameters(torch.from_numpy(parameters), network.parameters())
    (inputs,) = rows.inputs
    logits = network(inputs).detach()
    losses = nn.functional.cross_entropy(logits, rows.labels, reduction="none")
    is_correct = logits.argmax(dim=1) == rows.labels
    weights = rows.weights / rows.weights.sum()
    loss = losses @ weights
    accuracy = is_correct.double() @ weights
    return float(loss), float(accuracy)


def test_the_average_model_and_single_workers_are_validated() -> None:
    simulated = run(algorithm="d-psgd", topology="ring", workers=5)

    parameters = models(simulated)
    mean = parameters.mean(axis=0)
    squared_distances = np.square(parameters - mean).sum(axis=1)
    distance = np.sqrt(squared_distances.mean())
    for rank, (*_, last) in enumerate(simulated.records):
        of_mean = (last["val_loss"], last["val_accuracy"])
        of_worker = (last["worker_val_loss"], last["worker_val_accuracy"])
        assert of_mean == pytest.approx(validation(mean))
        assert of_worker == pytest.approx(validation(parameters[rank]))
        assert last["consensus_distance"] == pytest.approx(distance)
    assert "worker_val_loss" not in simulated.records[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ar-sgd", "d-psgd", "ad-psgd", "swarm-sgd", "mpca"])
def test_the_best_average_model_is_kept(method: str) -> None:
    files = [MemoryFiles() for _ in range(4)]

    simulated = run(
        **PEER_METHODS[method],
        files=files.__getitem__,
        epochs=6,
        learning_rate=0.5,
        cluster=UNEVEN_CLUSTER,
    )

    losses = [record["val_loss"] for record in simulated.records[0]]
    assert losses != sorted(losses, reverse=True), "the test needs a run that gets worse"
    (best,) = (rank_files.best for rank_files in files if rank_files.best is not None)
    loss_of_best, _ = validation(best.parameters)
    assert loss_of_best == pytest.approx(min(losses))
    assert merge_records([rank_files.records for rank_files in files]) == simulated.records
    for records in simulated.records:
        assert records[-1]["best_epoch"] == int(np.argmin(losses))


WORKERS = 4
MODEL_BYTES = sum(weights.nbytes for weights in toy_network().parameters())


def all_reduce_bytes(nbytes: int) -> int:
    """Bytes that leave each worker in an all-reduce around a ring."""
    return 2 * (WORKERS - 1) * nbytes // WORKERS


#: At the end of the epoch: the model and the number of finite ones, the distance, four sums of the
#: validation.
END_BYTES = all_reduce_bytes(MODEL_BYTES + 8) + all_reduce_bytes(8) + all_reduce_bytes(32)


@pytest.mark.parametrize(
    ("method", "step_bytes"),
    [
        # The gradient and the number of samples in each of 8 steps.
        ({"algorithm": "ar-sgd"}, 8 * all_reduce_bytes(MODEL_BYTES + 8)),
        ({"algorithm": "local-sgd", "local_steps": 4}, 2 * all_reduce_bytes(MODEL_BYTES + 8)),
        ({"algorithm": "d-psgd", "topology": "complete"}, 8 * (WORKERS - 1) * MODEL_BYTES),
    ],
    ids=["ar-sgd", "local-sgd", "d-psgd"],
)
def test_bytes_are_those_that_leave_a_worker(method: dict[str, Any], step_bytes: int) -> None:
    (record,) = run(**method, workers=WORKERS, epochs=1).records[0]

    assert record["bytes_sent"] == step_bytes + END_BYTES


SLOW_LINKS = CLUSTER.model_copy(update={"latency_seconds": 1e-3})
BARRIER = tree_seconds(SLOW_LINKS.network, WORKERS, 0)


def communication(record: dict[str, Any]) -> float:
    times = record["seconds_by_kind"]
    return float(times["communicate"] + times["wait"])


def test_messages_of_a_validation_are_validation_and_no_communication() -> None:
    simulated = run(algorithm="local-sgd", local_steps=1000, cluster=SLOW_LINKS)

    for record in simulated.records[0]:
        # No worker averages: only the end of the epoch is communication.
        assert communication(record) == pytest.approx(BARRIER)
        # At least the mean of the models, their distance and the sums of the validation.
        times = record["seconds_by_kind"]
        assert times["validate"] > 2.9 * BARRIER
        assert sum(times.values()) == pytest.approx(record["seconds"], abs=1e-5)


def test_rates_and_utilisation_leave_out_the_validation() -> None:
    average = all_reduce_seconds(SLOW_LINKS.network, WORKERS, MODEL_BYTES + 8)
    seconds = 8e-3 + average + BARRIER

    simulated = run(algorithm="local-sgd", local_steps=8, cluster=SLOW_LINKS)

    numbers = numbers_of(simulated.records)
    assert numbers["utilisation"] == pytest.approx(8e-3 / seconds, rel=1e-3)
    assert numbers["seconds_per_batch"] == pytest.approx(seconds / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "round_trips"),
    # The models of the three partners, or the one shard of the server, which rank 0 owns.
    [
        ({"algorithm": "swarm-sgd", "local_steps": 1000}, 3),
        ({"algorithm": "agn", "local_steps": 1000}, 1),
    ],
    ids=["pairs", "server"],
)
def test_reading_models_for_a_validation_is_validation(
    method: dict[str, Any], round_trips: int
) -> None:
    latency = 2e-3
    # Rank 0 is busy with its first unit, so that another worker begins the second epoch.
    cluster = CLUSTER.model_copy(update={"latency_seconds": latency, "slow_ranks": {0: 100.0}})

    simulated = run(**method, cluster=cluster)

    validation_seconds = []
    for first_record, *_ in simulated.records:
        times = first_record["seconds_by_kind"]
        validation_seconds.append(times.get("validate", 0.0))
    reading_seconds = round_trips * 2 * latency
    assert sorted(validation_seconds) == pytest.approx([0, 0, 0, reading_seconds], rel=1e-3)


@pytest.mark.parametrize(
    ("method", "counter", "messages_each", "num_barriers"),
    [
        ({"algorithm": "agn", "local_steps": 3, "sharding": "static"}, "pushes", 4, 1),
        ({"algorithm": "mpca", "cycle_steps": 4}, "cycles", 1, 0),
    ],
    ids=["agn", "mpca"],
)
def test_messages_of_the_last_steps_of_an_epoch_are_communication(
    method: dict[str, Any], counter: str, messages_each: int, num_barriers: int
) -> None:
    """Rank 1 is as far from rank 0, which owns the server, as from any other."""
    rows = toy_rows(80)

    simulated = run(**method, train=rows, workers=2, epochs=1, cluster=SLOW_LINKS)

    (record,) = simulated.records[1]
    num_messages = messages_each * record[counter]
    assert num_messages >= 3
    expected = (num_messages + num_barriers) * SLOW_LINKS.latency_seconds
    assert communication(record) == pytest.approx(expected, rel=1e-2)


def test_every_key_of_a_record_is_explained() -> None:
    page = Path(__file__).parents[3] / "docs" / "run-folder.md"
    text = page.read_text(encoding="utf-8")

    simulated = run(algorithm="ad-psgd", epochs=2)

    for record in simulated.records[0]:
        for key in record:
            assert f"`{key}`" in text
