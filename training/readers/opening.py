"""Opens readers by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from features.dataset import FeatureDataset
from training.readers.batch import BatchLayout
from training.readers.cached import CachedReader
from training.readers.hostile import refuse_pickled_schema
from training.readers.reader import Reader
from training.readers.sharding import OwnRows
from training.readers.sources import ArrowSource, Source
from training.readers.streamed import StreamedReader

ReaderKind = Literal["petastorm", "arrow"]
CacheKind = Literal["none", "memory"]


def open_reader(
    dataset: FeatureDataset,
    inputs: Sequence[str],
    *,
    kind: ReaderKind = "petastorm",
    cache: CacheKind = "none",
    dtype: torch.dtype = torch.float32,
    seed: int,
    device: torch.device | str = "cpu",
    own: OwnRows | None = None,
) -> Reader:
    """A reader of a dataset.

    Args:
        dataset: The features dataset.
        inputs: Columns that the model takes, from `hlf`, `particles` and `num_particles`.
        kind: Library that reads the files.
        cache: `memory` keeps every row group after its first read, as tensors on `device`.
        dtype: Floating point type of the tensors.
        seed: Seed of the run.
        device: Device of the batches.
        own: Rows of each row group to train on; None: all.

    Raises:
        HostileDatasetError: The dataset carries petastorm's pickled schema.
        DamagedDatasetError: A file is missing or is no Parquet file.
    """
    refuse_pickled_schema(dataset)
    layout = BatchLayout.of(dataset, inputs, dtype=dtype, device=device)
    return (CachedReader if cache == "memory" else StreamedReader)(
        dataset, _source(kind, dataset, layout.fields), layout, seed=seed, own=own
    )


def _source(kind: ReaderKind, dataset: FeatureDataset, fields: Sequence[str]) -> Source:
    if kind == "arrow":
        return ArrowSource(dataset, fields)
    # Petastorm and pandas take half a second to load.
    from training.readers.petastorm_source import PetastormSource  # noqa: PLC0415

    return PetastormSource(dataset, fields)
