"""What a run records: losses of the average model and of single workers, how far they are apart, the best model."""

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


def validated(parameters: NDArray[np.float64]) -> tuple[float, float]:
    """Weighted loss and accuracy of a model on the validation rows."""
    network, rows = toy_network(), toy_rows(60, groups=1, seed=1).rows
    nn.utils.vector_to_parameters(torch.from_numpy(parameters), network.parameters())
    logits = network(rows.inputs[0]).detach()
    losses = nn.functional.cross_entropy(logits, rows.labels, reduction="none")
    right = (logits.argmax(dim=1) == rows.labels).double()
    total = rows.weights.sum()
    return float((losses * rows.weights).sum() / total), float((right * rows.weights).sum() / total)


def test_the_average_model_and_single_workers_are_validated() -> None:
    simulated = run(algorithm="d-psgd", topology="ring", workers=5)
    parameters = models(simulated)
    mean = parameters.mean(axis=0)
    distance = np.sqrt(np.square(parameters - mean).sum(axis=1).mean())
    for rank, records in enumerate(simulated.records):
        last = records[-1]
        assert (last["val_loss"], last["val_accuracy"]) == pytest.approx(validated(mean))
        assert (last["worker_val_loss"], last["worker_val_accuracy"]) == pytest.approx(
            validated(parameters[rank])
        )
        assert last["consensus_distance"] == pytest.approx(distance)
        assert "worker_val_loss" not in records[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ar-sgd", "d-psgd", "ad-psgd", "swarm-sgd", "mpca"])
def test_the_best_average_model_is_kept(method: str) -> None:
    retained = [MemoryFiles() for _ in range(4)]
    simulated = run(
        **PEER_METHODS[method],
        files=retained.__getitem__,
        epochs=6,
        learning_rate=0.5,
        cluster=UNEVEN_CLUSTER,
    )
    losses = [record["val_loss"] for record in simulated.records[0]]
    assert losses != sorted(losses, reverse=True), (
        "the test needs a run that gets worse now and then"
    )
    (best,) = [checkpoint.best for checkpoint in retained if checkpoint.best is not None]
    assert validated(best.parameters)[0] == pytest.approx(min(losses))
    assert merge_records([checkpoint.records for checkpoint in retained]) == simulated.records
    for records in simulated.records:
        assert records[-1]["best_epoch"] == int(np.argmin(losses))


def test_bytes_are_those_that_leave_a_worker() -> None:
    size = 8 * models(run(epochs=1)).shape[1]
    (record,) = run(algorithm="ar-sgd", epochs=1).records[0]
    workers = record["workers"]

    def all_reduced(vector: int) -> int:
        return 2 * (workers - 1) * vector // workers

    # At the end of the epoch: the model and the number of finite ones, the distance, four sums of the validation.
    end = all_reduced(size + 8) + all_reduced(8) + all_reduced(32)
    # The gradient and the number of samples in each of 8 steps.
    assert record["bytes_sent"] == 8 * all_reduced(size + 8) + end
    (record,) = run(algorithm="local-sgd", local_steps=4, epochs=1).records[0]
    assert record["bytes_sent"] == 2 * all_reduced(size + 8) + end
    (record,) = run(algorithm="d-psgd", topology="complete", epochs=1).records[0]
    assert record["bytes_sent"] == 8 * (workers - 1) * size + end


def test_what_workers_send_each_other_for_a_validation_is_validation_and_no_communication() -> None:
    """It was two thirds of the communication of a study whose epochs have 17 steps."""
    slow = CLUSTER.model_copy(update={"latency_seconds": 1e-3})
    barrier = tree_seconds(slow.network, 4, 0)
    for record in run(algorithm="local-sgd", local_steps=1000, cluster=slow).records[0]:
        kinds = record["seconds_by_kind"]
        # Only the end of the epoch: nobody averages.
        assert kinds["communicate"] + kinds["wait"] == pytest.approx(barrier)
        # At least the mean of the models, their distance and the sums of the validation.
        assert kinds["validate"] > 2.9 * barrier
        assert sum(kinds.values()) == pytest.approx(record["seconds"], abs=1e-5)
    numbers = numbers_of(run(algorithm="local-sgd", local_steps=8, cluster=slow).records)
    mean = all_reduce_seconds(slow.network, 4, 8 * (models(run(epochs=1)).shape[1] + 1))
    assert numbers["utilisation"] == pytest.approx(8e-3 / (8e-3 + mean + barrier), rel=1e-3)
    assert numbers["seconds_per_batch"] == pytest.approx((8e-3 + mean + barrier) / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "round_trips"),
    # The models of the three others, or the one shard of the server, which rank 0 owns.
    [
        ({"algorithm": "swarm-sgd", "local_steps": 1000}, 3),
        ({"algorithm": "agn", "local_steps": 1000}, 1),
    ],
    ids=["pairs", "server"],
)
def test_what_one_worker_reads_for_its_validation_was_called_communication(
    method: dict[str, Any], round_trips: int
) -> None:
    latency = 2e-3
    slow = CLUSTER.model_copy(update={"latency_seconds": latency})
    # Rank 0 is busy with its first unit, so another worker begins the second epoch.
    simulated = run(**method, cluster=slow.model_copy(update={"slow_ranks": {0: 100.0}}))
    actual = sorted(
        worker[0]["seconds_by_kind"].get("validate", 0.0) for worker in simulated.records
    )
    assert actual == pytest.approx([0, 0, 0, round_trips * 2 * latency], rel=1e-3)


@pytest.mark.parametrize(
    "method",
    [
        {"algorithm": "agn", "local_steps": 3, "sharding": "static"},
        {"algorithm": "mpca", "cycle_steps": 4},
    ],
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_the_last_steps_of_an_epoch_were_sent_as_validation(method: dict[str, Any]) -> None:
    slow = CLUSTER.model_copy(update={"latency_seconds": 1e-3})
    # Four steps of each worker. Rank 1 is as far from rank 0, which owns the server, as from any other.
    simulated = run(**method, train=toy_rows(80), workers=2, epochs=1, cluster=slow)
    (record,) = simulated.records[1]
    messages = 4 * record["pushes"] if "pushes" in record else record["cycles"]
    barriers = int("pushes" in record)
    kinds = record["seconds_by_kind"]
    assert messages >= 3
    assert kinds["communicate"] + kinds["wait"] == pytest.approx(
        (messages + barriers) * 1e-3, rel=1e-2
    )


def test_every_key_of_a_record_is_explained() -> None:
    text = (Path(__file__).parents[3] / "docs" / "run-folder.md").read_text(encoding="utf-8")
    keys = {key for record in run(algorithm="ad-psgd", epochs=2).records[0] for key in record}
    assert {key for key in keys if f"`{key}`" not in text} == set()
