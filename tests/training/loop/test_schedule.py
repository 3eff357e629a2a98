"""The learning rate: warm-up and decay by the samples that all workers have seen."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import CLUSTER, MemoryCheckpoints, run, toy_rows

from training.loop.schedule import learning_rate
from training.settings import TrainSettings

#: One of four workers takes five times as long for a step.
WITH_SLOW_RANK = CLUSTER.model_copy(update={"slow_ranks": {0: 5.0}})
SCHEDULE = {"warmup_epochs": 1, "decay": "cosine", "final_fraction": 0.05}


def make_settings(schedule: dict[str, Any], **train: Any) -> TrainSettings:
    defaults = {"learning_rate": 0.1, "epochs": 10, "schedule": schedule}
    return TrainSettings.model_validate(defaults | train)


@pytest.mark.parametrize(
    ("schedule", "train", "rate_by_epochs"),
    [
        ({}, {}, {0.01: 0.1, 5: 0.1, 20: 0.1}),
        ({"warmup_epochs": 2}, {}, {0.02: 0.001, 1: 0.05, 1.5: 0.075, 2: 0.1, 3: 0.1}),
        # The linear rule scales the rate: the warm-up begins at that of one worker.
        (
            {"warmup_epochs": 2},
            {"algorithm": "ar-sgd", "optimizer": "sgd", "workers": 5},
            {1e-9: 0.1, 1: 0.3, 2: 0.5, 9: 0.5},
        ),
        (
            {"decay": "step", "milestones": [3, 6], "factor": 0.5},
            {},
            {1: 0.1, 3: 0.1, 3.001: 0.05, 6: 0.05, 6.1: 0.025, 10: 0.025},
        ),
        (
            {"decay": "cosine", "final_fraction": 0.1, "warmup_epochs": 2},
            {},
            {2: 0.1, 6: 0.055, 10: 0.01, 11: 0.01},
        ),
        # The rate falls at the end of the warm-up.
        (
            {"decay": "step", "milestones": [2], "factor": 0.5, "warmup_epochs": 2},
            {},
            {1: 0.05, 2: 0.1, 2.1: 0.05},
        ),
    ],
    ids=str,
)
def test_the_rate_depends_on_the_epochs_so_far(
    schedule: dict[str, Any], train: dict[str, Any], rate_by_epochs: dict[float, float]
) -> None:
    settings = make_settings(schedule, **train)

    rates = [learning_rate(settings, num_epochs) for num_epochs in rate_by_epochs]

    assert rates == pytest.approx([*rate_by_epochs.values()], rel=1e-8)


@pytest.mark.parametrize("algorithm", ["ar-sgd", "local-sgd", "d-psgd"])
def test_all_workers_of_a_synchronous_run_have_the_rate_of_all_samples(algorithm: str) -> None:
    simulated = run(
        algorithm=algorithm,
        schedule=SCHEDULE,
        epochs=3,
        train=toy_rows(323),
        cluster=WITH_SLOW_RANK,
    )

    settings = make_settings(SCHEDULE, learning_rate=0.05, epochs=3)
    for epoch in (1, 2, 3):
        rate = learning_rate(settings, epoch)
        records = [history[epoch - 1] for history in simulated.records]
        for record in records:
            assert record["wait_seconds"] == record["seconds_by_kind"]["wait"]
            assert record["samples_seen_by_all"] == 323 * epoch
            assert record["learning_rate"] == pytest.approx(rate)
        assert len({record["learning_rate"] for record in records}) == 1
        assert max(record["wait_seconds"] for record in records) > 0


@pytest.mark.parametrize("algorithm", ["ad-psgd", "swarm-sgd"])
def test_the_clock_of_a_gossip_run_counts_the_samples_of_all_workers(algorithm: str) -> None:
    simulated = run(
        algorithm=algorithm,
        schedule=SCHEDULE,
        epochs=2,
        cluster=WITH_SLOW_RANK,
        sharding="static",
    )

    settings = make_settings(SCHEDULE, learning_rate=0.05, epochs=2)
    slow_rate, *other_rates = [history[0]["learning_rate"] for history in simulated.records]
    # At its last step of the first epoch the slow rank has seen all samples. When the others took
    # theirs, it had taken two of its eight steps.
    assert slow_rate == pytest.approx(learning_rate(settings, 1))
    for rate in other_rates:
        assert learning_rate(settings, 0.7) < rate < learning_rate(settings, 0.85)


@pytest.mark.parametrize("algorithm", ["ad-psgd", "swarm-sgd"])
def test_with_work_units_a_slow_worker_has_nearly_the_rate_of_the_others(algorithm: str) -> None:
    simulated = run(algorithm=algorithm, schedule=SCHEDULE, epochs=2, cluster=WITH_SLOW_RANK)

    settings = make_settings(SCHEDULE, learning_rate=0.05, epochs=2)
    for epoch in (1, 2):
        # A slow worker holds two of the 32 units of an epoch while the others do ten times as many.
        near_rates = [learning_rate(settings, epoch + offset) for offset in (-0.3, 0, 0.3)]
        for history in simulated.records:
            rate = history[epoch - 1]["learning_rate"]
            assert min(near_rates) <= rate <= max(near_rates)
    for history in simulated.records:
        assert history[-1]["samples_seen_by_all"] == 640


def test_the_clock_continues_with_another_number_of_workers() -> None:
    settings: dict[str, Any] = {
        "algorithm": "ar-sgd",
        "optimizer": "sgd",
        "scale_learning_rate": False,
        "epochs": 2,
        "schedule": {"decay": "step", "milestones": [1.0], "factor": 0.1},
        "train": toy_rows(240, groups=12),
    }
    checkpoints = MemoryCheckpoints()
    run(workers=4, checkpoint_steps=5, files=checkpoints.files, **settings)

    resumed = run(workers=3, resume=checkpoints.at((0, 5)), **settings)

    first_epoch, second_epoch = resumed.records[0]
    assert first_epoch["learning_rate"] == pytest.approx(0.05)
    assert second_epoch["learning_rate"] == pytest.approx(0.005)
    assert first_epoch["samples_seen_by_all"] == 240
    assert second_epoch["samples_seen_by_all"] == 480
