"""Events as tensors: the rows of one or many row groups, and batches of these rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from features.columns import INPUT_COLUMNS, MAX_PARTICLES, NUM_PARTICLE_FEATURES
from features.dataset import FeatureDataset
from features.errors import DatasetError
from hep_core.input_errors import InputFileError, remote_error
from hep_core.integrity import DamagedOutputError
from hep_core.storage import file_sizes, is_remote, parquet_source
from training.errors import DamagedDatasetError
from training.readers.sharding import even_parts

Columns = dict[str, NDArray[Any]]
"""Columns of a row group by name; lists are matrices."""

_NUMPY_TYPES: Final = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}
#: Rows of a validation batch; a recurrent network needs ten times the memory of its input particles.
_VAL_ROWS: Final = 8192
_VAL_ROWS_PARTICLES: Final = 512


class Batch(NamedTuple):
    """One step's events of one rank."""

    inputs: tuple[Tensor, ...]
    """The model's input columns: `hlf` (num_events, NUM_HLF); `particles` (num_events, longest, 19), cut to the longest
    event of the batch; `num_particles` (num_events,) int64."""
    labels: Tensor
    """(num_events,) int64."""
    weights: Tensor
    """(num_events,) event weight times class weight."""

    def __len__(self) -> int:
        return int(self.labels.shape[0])


class Rows(NamedTuple):
    """Rows to pick batches from.

    Examples:
        >>> rows = Rows((torch.arange(6.0).view(3, 2),), torch.tensor([0, 1, 2]), torch.ones(3))
        >>> rows.batch(np.array([2, 0])).inputs[0].tolist()
        [[4.0, 5.0], [0.0, 1.0]]
    """

    inputs: tuple[Tensor, ...]
    """The model's input columns as in `Batch`, with `particles` of shape (num_rows, most particles, 19)."""
    labels: Tensor
    """(num_rows,) int64."""
    weights: Tensor
    """(num_rows,) event weight times class weight."""
    lengths: NDArray[np.int64] | None = None
    """(num_rows,) number of particles of each event, in host memory; None if no particles are read."""

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """The rows with these numbers, in this order."""
        longest = 1 if self.lengths is None else int(self.lengths[rows].max(initial=1))
        on_device = torch.from_numpy(rows).to(self.labels.device)
        return Batch(
            tuple(
                _cut(column, on_device, longest)
                if column.dim() == 3
                else column.index_select(0, on_device)
                for column in self.inputs
            ),
            self.labels.index_select(0, on_device),
            self.weights.index_select(0, on_device),
        )

    def batches(self, rows: NDArray[np.int64], sizes: Sequence[int]) -> Iterator[Batch]:
        """The rows with these numbers, in this order, as batches of these sizes."""
        if self.lengths is None:
            # One copy for all batches, which are views of it.
            inputs, *others = self.batch(rows)
            split = [column.split_with_sizes(list(sizes)) for column in (*inputs, *others)]
            for *columns, labels, weights in zip(*split, strict=True):
                yield Batch(tuple(columns), labels, weights)
            return
        # One copy per batch: particles are large, and each batch has its own longest event.
        for start, stop in pairwise(accumulate(sizes, initial=0)):
            yield self.batch(rows[start:stop])

    def write(self, start: int, part: Rows) -> None:
        """Overwrite the rows from `start` on."""
        stop = start + len(part.labels)
        pairs = zip(
            (*self.inputs, self.labels, self.weights),
            (*part.inputs, part.labels, part.weights),
            strict=True,
        )
        for tensor, values in pairs:
            tensor[start:stop] = values
        if self.lengths is not None and part.lengths is not None:
            self.lengths[start:stop] = part.lengths


def event_shape(name: str, max_particles: int) -> tuple[int, ...]:
    """Shape of one event of an input, or of a column that is a number."""
    if name == "particles":
        return max_particles, NUM_PARTICLE_FEATURES
    return INPUT_COLUMNS[name].shape if name in INPUT_COLUMNS else ()


def validation_share(
    rows: Sequence[int], *, rank: int, world_size: int, has_particles: bool
) -> tuple[list[int], list[int]]:
    """A rank's row groups of the validation split, by the rows of each, and the sizes of its batches."""
    most, groups = (
        _VAL_ROWS_PARTICLES if has_particles else _VAL_ROWS,
        list(range(rank, len(rows), world_size)),
    )
    return groups, [
        size for group in groups for size in even_parts(rows[group], -(-rows[group] // most))
    ]


def _cut(particles: Tensor, rows: Tensor, longest: int) -> Tensor:
    """Rows of (num_rows, 801, 19) as (num_events, longest, 19), in one copy."""
    _, most, width = particles.shape
    flat = particles.view(-1, most * width)[:, : longest * width]
    # In host memory NumPy copies. In its deterministic mode torch first fills the result with NaN. It also splits this
    # short copy over threads, which is slower when the cores are busy.
    picked = (
        torch.from_numpy(flat.numpy()[rows.numpy()]) if flat.is_cpu else flat.index_select(0, rows)
    )
    return picked.view(-1, longest, width)


@dataclass(frozen=True)
class BatchLayout:
    """The columns that a model takes, and their conversion to tensors."""

    inputs: tuple[str, ...]
    class_weights: tuple[float, ...]
    dtype: torch.dtype
    device: torch.device
    max_particles: int = MAX_PARTICLES
    """Rows of a particle matrix."""

    @classmethod
    def of(
        cls,
        dataset: FeatureDataset,
        inputs: Sequence[str],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Self:
        """The layout for some arguments of `training.readers.reader.open_reader`."""
        if unknown := set(inputs) - set(INPUT_COLUMNS):
            raise ValueError(
                f"the features have no model inputs {sorted(unknown)}; they have {list(INPUT_COLUMNS)}"
            )
        return cls(
            tuple(inputs),
            tuple(dataset.class_weights),
            dtype,
            torch.device(device),
            dataset.max_particles,
        )

    @property
    def fields(self) -> list[str]:
        """Columns of the Parquet files to read."""
        lengths = (
            ["num_particles"]
            if "particles" in self.inputs and "num_particles" not in self.inputs
            else []
        )
        return [*self.inputs, *lengths, "label", "weight"]

    @property
    def _tensors(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Column, type and shape of one event of each tensor."""
        types = [torch.int64 if name == "num_particles" else self.dtype for name in self.inputs]
        shapes = [event_shape(name, self.max_particles) for name in self.inputs]
        inputs = zip(self.inputs, types, shapes, strict=True)
        return [*inputs, ("label", torch.int64, ()), ("weight", self.dtype, ())]

    def rows(self, columns: Columns) -> Rows:
        """Tensors of a row group; they may share the memory of the arrays."""
        weights = columns["weight"] * np.asarray(self.class_weights)[columns["label"]]
        arrays = {**columns, "weight": weights}
        *inputs, label, weight = (
            torch.from_numpy(np.require(arrays[name], requirements=["C", "W"]))
            .to(self.device, dtype)
            .view(-1, *shape)
            for name, dtype, shape in self._tensors
        )
        lengths = columns["num_particles"].astype(np.int64) if "particles" in self.inputs else None
        return Rows(tuple(inputs), label, weight, lengths)

    def unfilled(self, num_rows: int) -> Rows:
        """Unwritten memory for `num_rows` rows; in host memory the system allocates a page at its first write."""
        *inputs, label, weight = (
            # torch.empty would write to all of the memory in torch's deterministic mode.
            torch.from_numpy(np.empty((num_rows, *shape), dtype=_NUMPY_TYPES[dtype]))
            if self.device.type == "cpu"
            else torch.empty((num_rows, *shape), dtype=dtype, device=self.device)
            for _, dtype, shape in self._tensors
        )
        lengths = np.empty(num_rows, dtype=np.int64) if "particles" in self.inputs else None
        return Rows(tuple(inputs), label, weight, lengths)


_PICKLED_KEYS: Final = (b"dataset-toolkit", b"petastorm")
#: Errors of petastorm, pyarrow, NumPy and features for a file that is damaged or has other columns.
_READ_ERRORS: Final = (
    *(OSError, pa.ArrowException, KeyError, ValueError, RuntimeError, TypeError, AttributeError),
    DatasetError,
)


def require_no_pickled_schema(dataset: FeatureDataset) -> None:
    """Refuse a dataset with a pickled schema, before petastorm unpickles it."""
    files = {path: split for split in dataset.splits for path in dataset.files(split)}
    common = [dataset.data / name for name in file_sizes(dataset.data)]
    files |= {
        path: path.parent.name for path in common if path.name in ("_common_metadata", "_metadata")
    }
    with ThreadPoolExecutor() as threads:
        for path, keys in zip(
            files, threads.map(partial(_keys, dataset), files, files.values()), strict=True
        ):
            for key in keys:
                if any(word in key for word in _PICKLED_KEYS):
                    raise DamagedDatasetError(
                        f"{path} carries a pickled petastorm schema ({key.decode(errors='replace')}), which could run "
                        f"any code when read. This pipeline never writes one: find out where the file comes from, then "
                        f"make the features again."
                    )


def _keys(dataset: FeatureDataset, path: Path, split: str) -> list[bytes]:
    with reporting(dataset, split, f"{path.name}: "):
        return list(pq.read_schema(parquet_source(path)).metadata or {})


@contextmanager
def reporting(dataset: FeatureDataset, split: str, where: str = "") -> Iterator[None]:
    """Turn errors of reading a split into those of its server, or of its files; others stay as they are."""
    try:
        yield
    except (DamagedDatasetError, DamagedOutputError, InputFileError):
        raise
    except Exception as cause:
        if is_remote(dataset.data) and (
            problem := remote_error(dataset.lies_in, where=f"the {split} split", cause=cause)
        ):
            raise problem from cause
        if not isinstance(cause, _READ_ERRORS):
            raise
        why = " ".join(f"{where}{cause}".split())
        raise DamagedDatasetError(
            f"the {split} split in {dataset.data} cannot be read ({why}). "
            f"Make the features again: `python -m pipeline features --force`."
        ) from cause
