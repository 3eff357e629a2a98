"""Unequal data: every event has one owner, and the class mixtures follow the distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from numpy.typing import NDArray
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


def partition_rows(rows: MemoryRows, *, world_size: int, alpha: float) -> DirichletPartition:
    classes = rows.rows.labels.numpy()
    return DirichletPartition(classes, rows.group_rows, world_size=world_size, alpha=alpha, seed=1)


@pytest.mark.parametrize(("workers", "num_rows"), [(1, 5), (3, 3), (4, 1000), (7, 1001), (64, 997)])
@pytest.mark.parametrize("alpha", [1e-3, 0.1, 100.0])
def test_every_row_has_one_owner_and_all_own_the_same_number(
    workers: int, num_rows: int, alpha: float
) -> None:
    classes = np.random.default_rng(1).choice(3, num_rows, p=[0.6, 0.3, 0.1])
    classes[:3] = range(3)

    def make_partition() -> DirichletPartition:
        group_rows = [num_rows // 2, num_rows - num_rows // 2]
        return DirichletPartition(classes, group_rows, world_size=workers, alpha=alpha, seed=1)

    partition = make_partition()

    share_sizes = np.bincount(partition.owner_of_row, minlength=workers)
    assert share_sizes.sum() == num_rows
    assert share_sizes.max() - share_sizes.min() <= 1
    assert partition.counts.sum(axis=1).tolist() == share_sizes.tolist()
    np.testing.assert_array_equal(make_partition().owner_of_row, partition.owner_of_row)


def test_mixtures_follow_the_dirichlet_distribution() -> None:
    classes = np.arange(30_000) % 3

    partition = DirichletPartition(classes, [30_000], world_size=1000, alpha=0.5, seed=1)

    fractions = np.bincount(partition.owner_of_row[classes == 0], minlength=1000) / 30
    expected = np.random.default_rng(1).dirichlet([0.5] * 3, 30_000)[:, 0]
    # The last workers take what is left, so the extremes are a little rarer.
    assert np.mean(fractions) == pytest.approx(1 / 3, abs=0.01)
    assert np.std(fractions) == pytest.approx(np.std(expected), rel=0.1)


@pytest.mark.parametrize("reader_kind", ["petastorm", "arrow"])
def test_all_readers_read_each_event_at_its_owner(
    dataset: FeatureDataset, reader_kind: Any
) -> None:
    memory = MemoryRows.load(dataset, "train", ["hlf"], dtype=torch.float64, seed=3)
    classes = read_labels(dataset)
    np.testing.assert_array_equal(classes, memory.rows.labels.numpy())
    partition = DirichletPartition(classes, memory.group_rows, world_size=3, alpha=0.1, seed=3)
    plan = partition.plan(batch_size=8, epoch=1)
    assert int(plan.samples.sum()) == 167

    rows_of_ranks: list[NDArray[np.int64]] = []
    for rank in range(3):
        owned_rows = partition.rows_of_worker(rank)
        assignment = assign_rows(plan, rank=rank, epoch=1)
        rows = memory.reading_order(assignment, owned_rows)
        reader = open_reader(
            dataset, ["hlf"], kind=reader_kind, dtype=torch.float64, seed=3, owned_rows=owned_rows
        )
        batches = list(reader.train_batches(assignment))

        assert (partition.owner_of_row[rows] == rank).all()
        assert len(batches) == plan.num_steps
        hlf = torch.cat([batch.inputs[0] for batch in batches])
        assert torch.equal(hlf, memory.rows.inputs[0][rows])
        rows_of_ranks.append(rows)
    assert sorted(np.concatenate(rows_of_ranks).tolist()) == list(range(167))


def test_the_rows_of_a_worker_continue_over_the_ends_of_epochs() -> None:
    rows = toy_rows(90, groups=3)
    partition = partition_rows(rows, world_size=2, alpha=0.2)
    owned_rows = partition.rows_of_worker(1)

    orders: list[NDArray[np.int64]] = []
    num_read = 0
    for size in (7, 30, 20, 64):
        unit = Assignment(5, [RowRange(0, 0, size)], [size])
        assignment = partition.replace_rows(unit, rank=1, start=num_read)
        assert assignment.sizes == [size]
        orders.append(rows.reading_order(assignment, owned_rows))
        num_read += size

    epoch_orders: list[NDArray[np.int64]] = []
    for epoch in range(3):
        plan = partition.plan(batch_size=45, epoch=epoch)
        assignment = assign_rows(plan, rank=1, epoch=epoch)
        epoch_orders.append(rows.reading_order(assignment, owned_rows))
    expected_order = np.concatenate(epoch_orders)[:num_read]
    np.testing.assert_array_equal(np.concatenate(orders), expected_order)


@pytest.mark.parametrize("algorithm", ["ar-sgd", "d-psgd", "ad-psgd", "swarm-sgd"])
def test_workers_of_every_method_train_on_their_own_events_within_the_global_budget(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of_rank: list[list[int]] = [[], [], []]
    compute_gradient = BatchedGradients.gradient

    async def note_rows(self: BatchedGradients, rank: int, rows: Any, seconds: float) -> None:
        rows_of_rank[rank] += rows.tolist()
        await compute_gradient(self, rank, rows, seconds)

    monkeypatch.setattr(BatchedGradients, "gradient", note_rows)
    train = toy_rows(300, groups=2)
    skew = {"dirichlet": 0.1}

    run(algorithm=algorithm, workers=3, train=train, skew=skew, cluster=UNEVEN_CLUSTER, epochs=2)

    partition = partition_rows(train, world_size=3, alpha=0.1)
    for rank, rows in enumerate(rows_of_rank):
        assert (partition.owner_of_row[rows] == rank).all()
    all_rows = np.concatenate(rows_of_rank)
    assert len(all_rows) == 2 * 300
    if algorithm in ("ar-sgd", "d-psgd"):
        counts = np.bincount(all_rows)
        assert (counts == 2).all()
    else:
        # The slow worker reads fewer of its events; the others begin again.
        assert len(rows_of_rank[0]) < 200 < len(rows_of_rank[1])


@pytest.mark.parametrize("algorithm", ["d-psgd", "swarm-sgd"])
def test_a_run_on_unequal_data_resumes(algorithm: str) -> None:
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "workers": 3,
        "train": toy_rows(120, groups=2),
        "checkpoint_steps": 3,
        "skew": {},
    }
    checkpoints = MemoryCheckpoints()
    uninterrupted = run(files=checkpoints.files, **settings)
    checkpoint = checkpoints.at((1, 0))

    resumed = run(files=MemoryCheckpoints().files, resume=checkpoint, **settings)

    if algorithm == "d-psgd":
        np.testing.assert_array_equal(models(resumed), models(uninterrupted))
    rows_read = [checkpoint.load(rank)["num_rows_read"] for rank in range(3)]
    assert sum(rows_read) == (0 if algorithm == "d-psgd" else 120)


def test_a_simulation_with_skew_needs_a_partition() -> None:
    skewed = settings(skew={}, workers=3)

    with pytest.raises(AssertionError, match="need a partition of the rows"):
        simulate(toy_network(), toy_rows(30), toy_rows(30), skewed, CLUSTER)


def test_more_workers_than_rows_are_refused() -> None:
    with pytest.raises(ShardError, match="4 workers cannot each own some of 3 training rows"):
        DirichletPartition(np.arange(3), [3], world_size=4, alpha=0.1, seed=1)
