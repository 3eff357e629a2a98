"""The learning rate: warm-up and decay by the samples that all workers have seen."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import CLUSTER, MemoryCheckpoints, run, toy_rows

from training.loop.schedule import learning_rate
from training.settings import TrainSettings


def made(schedule: dict[str, Any], **more: Any) -> TrainSettings:
    return TrainSettings.model_validate(
        {"learning_rate": 0.1, "epochs": 10, "schedule": schedule} | more
    )


@pytest.mark.parametrize(
    ("schedule", "more", "expected"),
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
        # A warm-up as long as the run leaves nothing to decay.
        ({"decay": "cosine", "warmup_epochs": 10}, {}, {0.5: 0.005, 2: 0.02, 10: 0.1}),
    ],
    ids=str,
)
def test_rates_by_the_epochs_that_are_done(
    schedule: dict[str, Any], more: dict[str, Any], expected: dict[float, float]
) -> None:
    settings = made(schedule, **more)
    assert [learning_rate(settings, done) for done in expected] == pytest.approx(
        [*expected.values()], rel=1e-8
    )


SCHEDULE = {"warmup_epochs": 1, "decay": "cosine", "final_fraction": 0.05}


@pytest.mark.parametrize("algorithm", ["ar-sgd", "local-sgd", "d-psgd"])
def test_all_workers_of_a_synchronous_run_have_the_same_rate_by_all_samples(algorithm: str) -> None:
    slow = CLUSTER.model_copy(update={"slow_ranks": {0: 5.0}})
    simulated = run(
        algorithm=algorithm, schedule=SCHEDULE, epochs=3, train=toy_rows(323), cluster=slow
    )
    settings = made(SCHEDULE, learning_rate=0.05, epochs=3)
    for records in zip(*simulated.records, strict=True):
        waited = [record["seconds_by_kind"]["wait"] for record in records]
        assert [record["wait_seconds"] for record in records] == waited
        assert max(waited) > 0
        assert len({record["learning_rate"] for record in records}) == 1
        assert {record["samples_seen_by_all"] for record in records} == {
            323 * (records[0]["epoch"] + 1)
        }
        assert records[0]["learning_rate"] == pytest.approx(
            learning_rate(settings, records[0]["epoch"] + 1)
        )


@pytest.mark.parametrize("algorithm", ["ad-psgd", "swarm-sgd"])
def test_under_gossip_the_clock_counts_the_samples_of_all_so_that_a_slow_worker_is_not_behind(
    algorithm: str,
) -> None:
    slow = CLUSTER.model_copy(update={"slow_ranks": {0: 5.0}})
    simulated = run(
        algorithm=algorithm, schedule=SCHEDULE, epochs=2, cluster=slow, sharding="static"
    )
    settings = made(SCHEDULE, learning_rate=0.05, epochs=2)
    last = [records[0]["learning_rate"] for records in simulated.records]
    # After its eighth and last step of the first epoch rank 0 has seen everything; when the others took theirs, rank 0
    # had taken two of its own.
    assert last[0] == pytest.approx(learning_rate(settings, 1))
    for rate in last[1:]:
        assert learning_rate(settings, 0.7) < rate < learning_rate(settings, 0.85)


@pytest.mark.parametrize("algorithm", ["ad-psgd", "swarm-sgd"])
def test_with_work_units_a_slow_worker_has_the_rate_of_the_others(algorithm: str) -> None:
    slow = CLUSTER.model_copy(update={"slow_ranks": {0: 5.0}})
    simulated = run(algorithm=algorithm, schedule=SCHEDULE, epochs=2, cluster=slow)
    settings = made(SCHEDULE, learning_rate=0.05, epochs=2)
    for epoch in (1, 2):
        # Of 32 units an epoch, a slow worker holds two while the others do ten times as many.
        near = [learning_rate(settings, epoch + apart) for apart in (-0.3, 0, 0.3)]
        for records in simulated.records:
            assert min(near) <= records[epoch - 1]["learning_rate"] <= max(near)
    assert [records[-1]["samples_seen_by_all"] for records in simulated.records] == [640] * 4


def test_the_clock_of_the_learning_rate_continues_with_another_number_of_workers() -> None:
    chosen: dict[str, Any] = {
        "algorithm": "ar-sgd",
        "optimizer": "sgd",
        "scale_learning_rate": False,
        "epochs": 2,
    }
    chosen |= {
        "schedule": {"decay": "step", "milestones": [1.0], "factor": 0.1},
        "train": toy_rows(240, groups=12),
    }
    kept = MemoryCheckpoints()
    run(workers=4, checkpoint_steps=5, files=kept.files, **chosen)
    shrunk = run(workers=3, resume=kept.at((0, 5)), **chosen)
    assert [record["learning_rate"] for record in shrunk.records[0]] == pytest.approx([0.05, 0.005])
    assert [record["samples_seen_by_all"] for record in shrunk.records[0]] == [240, 480]
