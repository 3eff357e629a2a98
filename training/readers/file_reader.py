"""What readers of the features Parquet are made of."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from features.dataset import FeatureDataset
from training.readers.batch import BatchLayout
from training.readers.reader import Reader
from training.readers.sharding import OwnRows
from training.readers.sources import Source


@dataclass(eq=False)
class FileReader(Reader):
    """A `Reader` of files."""

    dataset: FeatureDataset
    source: Source
    """Reads row groups."""
    layout: BatchLayout
    """Columns of the model, and the type and device of the tensors."""
    _: KW_ONLY
    seed: int
    """Seed of the run."""
    own: OwnRows | None = None
    """Rows of each row group to train on; None: all."""
