"""Batches of events for one rank, from the features Parquet: through petastorm, through pyarrow, or from memory."""

from training.readers.batch import Batch
from training.readers.memory_rows import MemoryRows
from training.readers.opening import CacheKind, Reader, ReaderKind, open_reader

__all__ = ["Batch", "CacheKind", "MemoryRows", "Reader", "ReaderKind", "open_reader"]
