"""Batches of events for one rank: petastorm reads row groups, rows are shuffled within them and dealt to the steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from petastorm import make_batch_reader
from torch import Tensor

from features.dataset import FeatureDataset
from training.errors import DamagedDatasetError, HostileDatasetError
from training.sharding import EpochPlan, random_stream, step_bounds

Columns = dict[str, NDArray[Any]]

# petastorm 0.12 reads through pyarrow's legacy dataset API, which says so on every call.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"petastorm\.")

_PICKLED_KEYS: Final = (b"dataset-toolkit", b"petastorm")


class Batch(NamedTuple):
    """One step's events of one rank."""

    inputs: tuple[Tensor, ...]
    """The model's input columns, each (num_events, width)."""
    labels: Tensor
    """(num_events,) int64."""
    weights: Tensor
    """(num_events,) event weight times class weight."""

    def __len__(self) -> int:
        return int(self.labels.shape[0])


class Reader:
    """Reads the splits of a dataset; the order of rows hangs on (seed, epoch, row group) only.

    Args:
        dataset: The features dataset.
        inputs: Columns that the model takes.
        dtype: Floating point type of the tensors.
        seed: Seed of the run.

    Raises:
        HostileDatasetError: The dataset carries petastorm's pickled schema.
    """

    def __init__(self, dataset: FeatureDataset, inputs: Sequence[str], *, dtype: torch.dtype, seed: int) -> None:
        refuse_pickled_schema(dataset)
        self._dataset = dataset
        self._inputs = tuple(inputs)
        self._dtype = dtype
        self._seed = seed
        self._class_weights = np.asarray(dataset.class_weights)

    def train_batches(self, plan: EpochPlan, *, rank: int, epoch: int) -> Iterator[Batch]:
        """The steps of one rank in one epoch: exactly `plan.num_steps` batches, some of which may be empty.

        Args:
            plan: The epoch's plan, from `training.sharding.plan_epoch`.
            rank: Which rank.
            epoch: Number of the epoch, from 0.
        """
        groups = plan.groups[rank].tolist()
        num_rows = sum(self._dataset.splits["train"][group].rows for group in groups)
        sizes = np.diff(step_bounds(num_rows, plan.num_steps)).tolist()
        chunks = (
            _permuted(columns, random_stream(self._seed, "rows", epoch, group))
            for group, columns in zip(groups, self._row_groups("train", groups), strict=True)
        )
        for columns in deal(chunks, sizes):
            yield self._batch(columns)

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """This rank's share of the validation split, one batch per row group; ranks may get different numbers."""
        groups = list(range(rank, len(self._dataset.splits["val"]), world_size))
        for columns in self._row_groups("val", groups):
            yield self._batch(columns)

    def _row_groups(self, split: str, groups: Sequence[int]) -> Iterator[Columns]:
        """Columns of the given row groups, in the given order, through petastorm."""
        if not groups:
            return
        files = self._dataset.files(split)
        fields = [*self._inputs, "label", "weight"]
        # No as_uri(), since petastorm takes %20 literally. The dummy pool reads in this thread and keeps the order;
        # num_epochs=1, since petastorm by default never ends.
        try:
            with make_batch_reader(
                [f"file://{files[group].absolute()}" for group in groups],
                schema_fields=fields,
                reader_pool_type="dummy",
                shuffle_row_groups=False,
                num_epochs=1,
            ) as reader:
                for rows in reader:
                    yield {name: getattr(rows, name) for name in fields}
        except (OSError, pa.ArrowException) as cause:
            raise DamagedDatasetError(
                f"the {split} split in {self._dataset.folder} cannot be read ({str(cause).strip()}). "
                f"Make the features again: `python -m pipeline features --force`."
            ) from cause

    def _batch(self, columns: Columns) -> Batch:
        labels = columns["label"]
        weights = columns["weight"] * self._class_weights[labels]
        return Batch(
            inputs=tuple(torch.from_numpy(columns[name]).to(self._dtype) for name in self._inputs),
            labels=torch.from_numpy(np.array(labels)),
            weights=torch.from_numpy(weights).to(self._dtype),
        )


def deal(chunks: Iterator[Columns], sizes: Sequence[int]) -> Iterator[Columns]:
    """Cut a stream of chunks of rows into batches of given sizes.

    Examples:
        >>> stream = iter([{"x": np.arange(3)}, {"x": np.arange(3, 5)}])
        >>> [batch["x"].tolist() for batch in deal(stream, [2, 3])]
        [[0, 1], [2, 3, 4]]
    """
    held = next(chunks)
    for size in sizes:
        while _length(held) < size:
            more = next(chunks)
            held = {name: np.concatenate([held[name], more[name]]) for name in held}
        yield {name: values[:size] for name, values in held.items()}
        held = {name: values[size:] for name, values in held.items()}


def refuse_pickled_schema(dataset: FeatureDataset) -> None:
    """Refuse a dataset that petastorm would unpickle a schema from, before petastorm sees it.

    Raises:
        HostileDatasetError: A `_common_metadata` or `_metadata` file, or a file's own metadata, has petastorm's keys.
    """
    for name in ("_common_metadata", "_metadata"):
        for path in dataset.folder.rglob(name):
            _refuse_keys(path, pq.read_schema(path))
    for split in dataset.splits:
        for path in dataset.files(split):
            _refuse_keys(path, pq.read_schema(path))


def _refuse_keys(path: Path, schema: pa.Schema) -> None:
    keys = [key for key in schema.metadata or {} if any(word in key for word in _PICKLED_KEYS)]
    if keys:
        raise HostileDatasetError(
            f"{path} carries a pickled petastorm schema ({keys[0].decode(errors='replace')}), which could run any code "
            f"when read. This pipeline never writes one: find out where the file comes from, then make the "
            f"features again."
        )


def _permuted(columns: Columns, rng: np.random.Generator) -> Columns:
    order = rng.permutation(_length(columns))
    return {name: values[order] for name, values in columns.items()}


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))
