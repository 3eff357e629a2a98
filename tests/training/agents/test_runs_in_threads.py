"""Whole runs with agents in threads: all of the system but Spark and the processes."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from feature_datasets import write_dataset
from ranks import wait_until
from threaded_agents import ThreadedCluster, cycles, train_in_threads
from training_runs import flat_weights, make_spec, records, summary

from features.dataset import FeatureDataset
from training.agents.agent import make_agent
from training.agents.lifelines import AgentId
from training.agents.local import AgentStart
from training.agents.messages import AbsentError, Install, Take
from training.errors import LaunchError, ShardError
from training.launching.rank import RunSpec

ROWS = {"train": [40] * 8, "val": [20, 20], "test": [10]}
NUM_ROWS = sum(ROWS["train"])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=ROWS)


def spec_of(dataset: FeatureDataset, out: Path, *, shards: int = 3, **train: Any) -> RunSpec:
    chosen = {"algorithm": {"name": "mpca", "shards": shards}, "launcher": "spark-agents", "epochs": 6} | train
    return make_spec(dataset, out, **chosen)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_agents_use_exactly_the_samples_of_the_run_and_learn(
    dataset: FeatureDataset, tmp_path: Path, shards: int
) -> None:
    run = spec_of(dataset, tmp_path / "out", shards=shards, epochs=12, learning_rate=0.01)
    cluster = train_in_threads(run)
    found, (first, second) = summary(run.out_dir), records(run.out_dir)
    assert found["samples"] == 12 * NUM_ROWS == sum(each["samples"] for each in [*first, *second])
    assert [record["epoch"] for record in first] == list(range(12))
    assert [record["samples_all_ranks"] for record in first] == [
        one["samples"] + other["samples"] for one, other in zip(first, second, strict=True)
    ]
    # An epoch ends after the cycle in which its last sample was used.
    seen = [record["samples_seen_by_all"] for record in first]
    assert all(0 <= each - (epoch + 1) * NUM_ROWS <= NUM_ROWS for epoch, each in enumerate(seen))
    assert found["best_val_accuracy"] > 0.9
    # Guessing among three classes gives log 3; the first epoch may have learned much of it already.
    assert min(record["val_loss"] for record in first) < 0.5 * math.log(3)
    log = cycles(run.out_dir)
    assert sum(cycle["steps"] for cycle in log) == sum(each["steps"] for each in found["per_rank"])
    for of_cycle, of_epoch in (("bytes_reduced", "cycle_bytes_reduced"), ("seconds", "cycle_seconds")):
        assert sum(each[of_cycle] for each in log) == pytest.approx(sum(each[of_epoch] for each in first))
    assert found["cycles"] == len(log)
    # An agent once counted no pulls, and the run said that nothing had acted.
    assert set(found["acted"]) == {"cycles", "pulls"}
    assert min(each[name] for name in found["acted"] for each in found["per_rank"]) > 0
    assert found["bytes_broadcast"] == sum(each["bytes_broadcast"] for each in log)
    assert 0 < found["utilisation"] <= 1
    # What the driver sees and what the agents see is the same.
    assert sum(each["bytes_sent"] for each in found["per_rank"]) == sum(each["bytes_reduced"] for each in log)
    words = (Path(__file__).parents[3] / "docs" / "records.md").read_text(encoding="utf-8")
    assert {key for key in first[-1] if f"`{key}`" not in words} == set()
    assert all(0 < record["utilisation"] <= 1 for record in first)
    assert len(cluster.started) == 2


def test_phases_of_three_shards_overlap_and_each_is_reduced_in_turn(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = spec_of(dataset, tmp_path / "out", epochs=2)
    train_in_threads(run)
    log = cycles(run.out_dir)
    assert [each["shard"] for each in log[:7]] == [0, 1, 2, 0, 1, 2, 0]
    assert all(cycle["bytes_broadcast"] and cycle["bytes_reduced"] for cycle in log[2:])


class InterruptedTestError(Exception):
    """Ends a driver."""


@pytest.mark.slow
def test_a_driver_continues_from_its_checkpoint_with_other_agents(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = spec_of(dataset, tmp_path / "out", checkpoint_steps=5)
    checkpoints = run.out_dir / "checkpoints"

    def interrupt(_: ThreadedCluster, takes: dict[int, Take]) -> None:
        if takes[0].epochs_done > 3 and any(checkpoints.glob("epoch-00002*/complete.json")):
            raise InterruptedTestError

    with pytest.raises(InterruptedTestError):
        train_in_threads(run, before_reduce=interrupt)
    other = run._replace(train=run.train.model_copy(update={"workers": 3}))
    begun: list[float] = []
    train_in_threads(other, before_reduce=lambda _, takes: begun.extend(each.epochs_done for each in takes.values()))
    assert begun[0] >= 2
    ranks = records(run.out_dir)
    assert [record["epoch"] for record in ranks[0]] == list(range(6))
    assert summary(run.out_dir)["samples"] == 6 * NUM_ROWS
    assert sum(record["samples"] for records_of in ranks for record in records_of) <= 6 * NUM_ROWS
    assert [each["number"] for each in cycles(run.out_dir)] == list(range(len(cycles(run.out_dir))))
    # A finished run is not trained again.
    weights = flat_weights(run.out_dir)
    assert train_in_threads(other).started == []
    np.testing.assert_array_equal(flat_weights(run.out_dir), weights)


def kill_one(cluster: ThreadedCluster, takes: dict[int, Take]) -> None:
    """Ends the agent of partition 1 in the second epoch, once."""
    if takes[0].epochs_done > 1 and 1 in cluster.agents and len(cluster.started) == 2:
        cluster.kill(1)


def test_a_lost_agent_is_replaced_and_starts_from_the_joint_model(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = spec_of(dataset, tmp_path / "out")
    words: list[str] = []
    cluster = train_in_threads(run, before_reduce=kill_one, on_loss=words.append)
    assert [(agent.partition, agent.number) for agent in cluster.started] == [(0, 0), (1, 1), (1, 2)]
    assert len(words) == 1
    assert "the agent of partition 1 was lost" in words[0]
    assert summary(run.out_dir)["samples"] == 6 * NUM_ROWS
    assert records(run.out_dir)[0][-1]["agents_lost"] == 1


def test_a_run_whose_agent_began_late_had_no_summary(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first agent of a partition was lost before its first answer, and the next one began in the second epoch."""
    run = spec_of(dataset, tmp_path / "out", max_restarts=3)
    start, killed = ThreadedCluster.start, threading.Event()

    def start_late(cluster: ThreadedCluster, agents: Any, *rest: Any) -> None:
        def wait() -> None:
            wait_until(lambda: any(each["epoch"] for each in cycles(run.out_dir)), what="the second epoch", seconds=60)
            start(cluster, agents, *rest)

        if killed.is_set():
            threading.Thread(target=wait, daemon=True).start()
        else:
            start(cluster, agents, *rest)

    def kill(cluster: ThreadedCluster, takes: dict[int, Take]) -> None:
        if 1 in takes and not killed.is_set():
            killed.set()
            cluster.kill(1)

    monkeypatch.setattr(ThreadedCluster, "start", start_late)
    train_in_threads(run, before_reduce=kill)
    assert summary(run.out_dir)["samples"] == 6 * NUM_ROWS


def test_an_agent_that_ends_answers_what_waits_with_an_error(dataset: FeatureDataset, tmp_path: Path) -> None:
    """An exchange waited for ever where an agent ended between the message and the next step border."""
    run = spec_of(dataset, tmp_path, epochs=1)
    train_in_threads(run)
    agent = make_agent(run, AgentStart(AgentId(0, 0), 0, "", {}), [Install(0, flat_weights(run.out_dir), 0)])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agent.answer, Take(0, 0, 0, to_the_limit=False, epochs_done=0.0))
        wait_until(lambda: bool(agent._asked), what="the message is there", seconds=10)
        with pytest.raises(InterruptedTestError):
            agent.run(on_ready=Mock(side_effect=InterruptedTestError))
        with pytest.raises(AbsentError):
            waiting.result(10)
    with pytest.raises(AbsentError, match="at its end"):
        agent.answer(Take(1, 0, 0, to_the_limit=False, epochs_done=0.0))


def test_without_a_replacement_the_others_use_all_samples(dataset: FeatureDataset, tmp_path: Path) -> None:
    run = spec_of(dataset, tmp_path / "out", on_rank_loss="shrink")
    cluster = train_in_threads(run, before_reduce=kill_one)
    assert len(cluster.started) == 2
    assert summary(run.out_dir)["samples"] == 6 * NUM_ROWS
    first, second = records(run.out_dir)
    assert (first[-1]["samples"], second[-1]["samples"]) == (first[-1]["samples_all_ranks"], 0)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [({"on_rank_loss": "stop"}, "on_rank_loss is stop"), ({"max_restarts": 0}, "Raise train.max_restarts")],
)
def test_a_run_that_loses_too_many_agents_ends(
    dataset: FeatureDataset, tmp_path: Path, chosen: dict[str, Any], words: str
) -> None:
    run = spec_of(dataset, tmp_path / "out", **chosen)
    with pytest.raises(LaunchError, match=words):
        train_in_threads(run, before_reduce=kill_one)


def test_more_agents_than_events_are_refused(dataset: FeatureDataset, tmp_path: Path) -> None:
    rows = dataset.num_rows("train")
    with pytest.raises(ShardError, match=f"{rows} events, fewer than the {rows + 1} workers"):
        train_in_threads(spec_of(dataset, tmp_path / "out", workers=rows + 1))


@pytest.mark.slow
def test_a_slow_agent_takes_fewer_steps_and_nobody_waits_for_it(
    dataset: FeatureDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, event = spec_of(dataset, tmp_path / "out", epochs=3), threading.Event()

    def slow(cluster: ThreadedCluster, takes: dict[int, Take]) -> None:
        agent = cluster.agents[1]
        if math.isclose(takes[1].epochs_done, 0):
            step = agent._step
            monkeypatch.setattr(agent, "_step", lambda: (event.wait(0.05), step()))

    train_in_threads(run, before_reduce=slow)
    fast, behind = (sum(record["samples"] for record in rank) for rank in records(run.out_dir))
    assert fast + behind == 3 * NUM_ROWS
    assert fast > 2 * behind
