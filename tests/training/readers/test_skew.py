"""Unequal data: every event has one owner, the mixtures follow the distribution, and all readers read what they own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from simulated import (
    CLUSTER,
    UNEVEN_CLUSTER,
    MemoryCheckpoints,
    models,
    run,
    settings,
    toy_network,
    toy_rows,
)

from features.dataset import FeatureDataset
from hep_studies.simulator.simulate import simulate
from hep_studies.simulator.stacked import BatchedGradients
from training.errors import ShardError
from training.readers.memory import MemoryRows
from training.readers.reader import open_reader
from training.readers.sharding import Assignment, RowRange, assign_rows
from training.readers.skew import DirichletPartition, read_labels

ROWS = {"train": [40, 40, 40, 40, 7], "val": [9], "test": [3]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("skew") / "data", rows=ROWS)


@pytest.mark.parametrize(("workers", "rows"), [(1, 5), (3, 3), (4, 1000), (7, 1001), (64, 997)])
@pytest.mark.parametrize("alpha", [1e-3, 0.1, 100.0])
def test_every_row_has_one_owner_and_all_own_the_same_number(
    workers: int, rows: int, alpha: float
) -> None:
    kinds = np.random.default_rng(1).choice(3, rows, p=[0.6, 0.3, 0.1])
    kinds[:3] = range(3)
    partition = DirichletPartition(
        kinds, [rows // 2, rows - rows // 2], world_size=workers, alpha=alpha, seed=1
    )
    sizes = np.bincount(partition.owner_of_row, minlength=workers)
    assert sizes.sum() == rows
    assert sizes.max() - sizes.min() <= 1
    assert partition.counts.sum(axis=1).tolist() == sizes.tolist()
    again = DirichletPartition(
        kinds, [rows // 2, rows - rows // 2], world_size=workers, alpha=alpha, seed=1
    )
    np.testing.assert_array_equal(again.owner_of_row, partition.owner_of_row)


def test_mixtures_follow_the_dirichlet_distribution() -> None:
    kinds = np.arange(30_000) % 3
    partition = DirichletPartition(kinds, [30_000], world_size=1000, alpha=0.5, seed=1)
    found = np.bincount(partition.owner_of_row[kinds == 0], minlength=1000) / 30
    drawn = np.random.default_rng(1).dirichlet([0.5] * 3, 30_000)[:, 0]
    # The last ones take what is left, so the extremes are a little rarer.
    assert np.mean(found) == pytest.approx(1 / 3, abs=0.01)
    assert np.std(found) == pytest.approx(np.std(drawn), rel=0.1)


@pytest.mark.parametrize("kind", ["petastorm", "arrow"])
def test_all_readers_read_each_event_at_its_owner(dataset: FeatureDataset, kind: Any) -> None:
    memory = MemoryRows.load(dataset, "train", ["hlf"], dtype=torch.float64, seed=3)
    kinds = read_labels(dataset)
    np.testing.assert_array_equal(kinds, memory.rows.labels.numpy())
    partition = DirichletPartition(kinds, memory.group_rows, world_size=3, alpha=0.1, seed=3)
    plan, seen = partition.plan(batch_size=8, epoch=1), []
    assert int(plan.samples.sum()) == 167
    for rank in range(3):
        own = partition.rows_of_worker(rank)
        share = assign_rows(plan, rank=rank, epoch=1)
        reader = open_reader(
            dataset, ["hlf"], kind=kind, dtype=torch.float64, seed=3, owned_rows=own
        )
        order = memory.reading_order(share, own)
        assert (partition.owner_of_row[order] == rank).all()
        batches = list(reader.train_batches(share))
        assert len(batches) == plan.num_steps
        assert torch.equal(
            torch.cat([batch.inputs[0] for batch in batches]), memory.rows.inputs[0][order]
        )
        seen.append(order)
    assert sorted(np.concatenate(seen).tolist()) == list(range(167))


def test_a_worker_continues_in_its_own_rows_over_the_ends_of_epochs(
    dataset: FeatureDataset,
) -> None:
    rows = toy_rows(90, groups=3)
    partition = DirichletPartition(
        rows.rows.labels.numpy(), rows.group_rows, world_size=2, alpha=0.2, seed=1
    )
    own, total = partition.rows_of_worker(1), 45
    asked = [7, 30, 20, 64]
    found, start = [], 0
    for size in asked:
        unit = Assignment(5, [RowRange(0, 0, size)], [size])
        share = partition.following(unit, rank=1, start=start)
        assert share.sizes == [size]
        found.append(rows.reading_order(share, own))
        start += size
    sequence = [
        rows.reading_order(
            assign_rows(partition.plan(batch_size=45, epoch=epoch), rank=1, epoch=epoch), own
        )
        for epoch in range(3)
    ]
    assert start < 3 * total
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(sequence)[:start])


@pytest.mark.parametrize("algorithm", ["ar-sgd", "d-psgd", "ad-psgd", "swarm-sgd"])
def test_workers_of_every_method_train_on_their_own_events_within_the_global_budget(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, list[int]] = {rank: [] for rank in range(3)}
    original = BatchedGradients.gradient

    async def spy(self: BatchedGradients, rank: int, rows: Any, seconds: float) -> None:
        seen[rank] += rows.tolist()
        await original(self, rank, rows, seconds)

    monkeypatch.setattr(BatchedGradients, "gradient", spy)
    train = toy_rows(300, groups=2)
    skew = {"dirichlet": 0.1}
    run(algorithm=algorithm, workers=3, train=train, skew=skew, cluster=UNEVEN_CLUSTER, epochs=2)
    partition = DirichletPartition(
        train.rows.labels.numpy(), train.group_rows, world_size=3, alpha=0.1, seed=1
    )
    for rank, rows in seen.items():
        assert (partition.owner_of_row[rows] == rank).all()
    assert sum(map(len, seen.values())) == 600
    counts = np.bincount(np.concatenate(list(seen.values())))
    if algorithm in ("ar-sgd", "d-psgd"):
        assert (counts == 2).all()
    else:
        # The slow worker reads fewer of its events; the others begin anew.
        assert len(seen[0]) < 200 < len(seen[1])


@pytest.mark.parametrize("algorithm", ["d-psgd", "swarm-sgd"])
def test_a_run_on_unequal_data_resumes(algorithm: str) -> None:
    chosen: dict[str, Any] = {
        "algorithm": algorithm,
        "workers": 3,
        "train": toy_rows(120, groups=2),
        "checkpoint_steps": 3,
        "skew": {},
    }
    kept = MemoryCheckpoints()
    whole = run(files=kept.files, **chosen)
    resumed = run(files=MemoryCheckpoints().files, resume=kept.at((1, 0)), **chosen)
    if algorithm == "d-psgd":
        np.testing.assert_array_equal(models(resumed), models(whole))
    read = [kept.at((1, 0)).load(rank)["read"] for rank in range(3)]
    assert sum(read) == (0 if algorithm == "d-psgd" else 120)


def test_a_simulation_needs_the_owners_of_the_rows() -> None:
    with pytest.raises(AssertionError, match="need a partition of the rows"):
        simulate(toy_network(), toy_rows(30), toy_rows(30), settings(skew={}, workers=3), CLUSTER)


def test_more_workers_than_rows_are_refused() -> None:
    with pytest.raises(ShardError, match="4 workers cannot each own some of 3 training rows"):
        DirichletPartition(np.arange(3), [3], world_size=4, alpha=0.1, seed=1)
