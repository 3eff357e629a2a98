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
from features.schema import readable
from ingestion.errors import IngestionError, remote_error
from ingestion.storage import is_remote, sizes_below
from training.errors import DamagedDatasetError, HostileDatasetError
from training.readers.sharding import even_parts

Columns = dict[str, NDArray[Any]]
"""Columns of a row group by name; lists are matrices."""

_NUMPY_TYPES: Final = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}
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
        return self._take(torch.from_numpy(rows).to(self.labels.device), self._longest(rows))

    def batches(self, rows: NDArray[np.int64], sizes: Sequence[int]) -> Iterator[Batch]:
        """The rows with these numbers, in this order, as batches of these sizes."""
        on_device = torch.from_numpy(rows).to(self.labels.device)
        if self.lengths is None:
            # One copy for all batches, which are views of it.
            inputs, *others = self._take(on_device, 1)
            split = [column.split_with_sizes(list(sizes)) for column in (*inputs, *others)]
            for *columns, labels, weights in zip(*split, strict=True):
                yield Batch(tuple(columns), labels, weights)
            return
        # One copy per batch: particles are large, and each batch has its own longest event.
        for start, stop in pairwise(accumulate(sizes, initial=0)):
            yield self._take(on_device[start:stop], self._longest(rows[start:stop]))

    def _longest(self, rows: NDArray[np.int64]) -> int:
        """Highest number of particles in these rows, at least 1; 1 if no particles are read."""
        return 1 if self.lengths is None else int(self.lengths[rows].max(initial=1))

    def _take(self, rows: Tensor, longest: int) -> Batch:
        """The batch of rows (num_events,) with the first `longest` particles; `rows` is on the device."""
        return Batch(
            tuple(
                _cut(column, rows, longest) if column.dim() == 3 else column.index_select(0, rows)
                for column in self.inputs
            ),
            self.labels.index_select(0, rows),
            self.weights.index_select(0, rows),
        )

    def copy(self, rows: NDArray[np.int64]) -> Rows:
        """A copy of some rows, with all their padding."""
        rows_of_lists = max((column.shape[1] for column in self.inputs if column.dim() == 3), default=1)
        picked = self._take(torch.from_numpy(rows).to(self.labels.device), rows_of_lists)
        return Rows(*picked, None if self.lengths is None else self.lengths[rows])

    def write(self, start: int, part: Rows) -> None:
        """Overwrite the rows from `start` on."""
        stop = start + len(part.labels)
        pairs = zip((*self.inputs, self.labels, self.weights), (*part.inputs, part.labels, part.weights), strict=True)
        for tensor, values in pairs:
            tensor[start:stop] = values
        if self.lengths is not None and part.lengths is not None:
            self.lengths[start:stop] = part.lengths

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Self:
        """The rows of all parts, in order."""
        columns = zip(*(part.inputs for part in parts), strict=True)
        lengths = [part.lengths for part in parts if part.lengths is not None]
        return cls(
            tuple(torch.cat(column) for column in columns),
            torch.cat([part.labels for part in parts]),
            torch.cat([part.weights for part in parts]),
            np.concatenate(lengths) if lengths else None,
        )


def shape_of(name: str, most_particles: int) -> tuple[int, ...]:
    """Shape of one event of an input, or of a column that is a number."""
    if name == "particles":
        return most_particles, NUM_PARTICLE_FEATURES
    return INPUT_COLUMNS[name].shape if name in INPUT_COLUMNS else ()


def val_sizes(num_rows: int, *, has_particles: bool) -> list[int]:
    """Rows of each validation batch of a row group.

    A recurrent network needs ten times the memory of its input particles.
    """
    return even_parts(num_rows, -(-num_rows // (_VAL_ROWS_PARTICLES if has_particles else _VAL_ROWS)))


def _cut(particles: Tensor, rows: Tensor, longest: int) -> Tensor:
    """Rows of (num_rows, 801, 19) as (num_events, longest, 19), in one copy."""
    _, most, width = particles.shape
    flat = particles.view(-1, most * width)[:, : longest * width]
    # In host memory NumPy copies. In its deterministic mode torch first fills the result with NaN. It also splits this
    # short copy over threads, which is slower when the cores are busy.
    picked = torch.from_numpy(flat.numpy()[rows.numpy()]) if flat.is_cpu else flat.index_select(0, rows)
    return picked.view(-1, longest, width)


@dataclass(frozen=True)
class BatchLayout:
    """The columns that a model takes, and their conversion to tensors."""

    inputs: tuple[str, ...]
    class_weights: tuple[float, ...]
    dtype: torch.dtype
    device: torch.device
    most_particles: int = MAX_PARTICLES
    """Rows of a particle matrix."""

    @classmethod
    def of(
        cls, dataset: FeatureDataset, inputs: Sequence[str], *, dtype: torch.dtype, device: torch.device | str
    ) -> Self:
        """The layout for some arguments of `training.readers.reader.open_reader`."""
        if unknown := set(inputs) - set(INPUT_COLUMNS):
            raise ValueError(f"the features have no model inputs {sorted(unknown)}; they have {list(INPUT_COLUMNS)}")
        return cls(tuple(inputs), tuple(dataset.class_weights), dtype, torch.device(device), dataset.most_particles)

    @property
    def fields(self) -> list[str]:
        """Columns of the Parquet files to read."""
        lengths = ["num_particles"] if "particles" in self.inputs and "num_particles" not in self.inputs else []
        return [*self.inputs, *lengths, "label", "weight"]

    def rows(self, columns: Columns) -> Rows:
        """Tensors of a row group; they may share the memory of the arrays."""
        labels = columns["label"]
        weights = columns["weight"] * np.asarray(self.class_weights)[labels]
        return Rows(
            tuple(self._input(name, columns[name]) for name in self.inputs),
            self._tensor(labels, torch.int64),
            self._tensor(weights, self.dtype),
            columns["num_particles"].astype(np.int64) if "particles" in self.inputs else None,
        )

    def unfilled(self, num_rows: int) -> Rows:
        """Unwritten memory for `num_rows` rows; in host memory the system allocates a page at its first write."""
        return Rows(
            tuple(
                self._room((num_rows, *shape_of(name, self.most_particles)), self._type_of(name))
                for name in self.inputs
            ),
            self._room((num_rows,), torch.int64),
            self._room((num_rows,), self.dtype),
            np.empty(num_rows, dtype=np.int64) if "particles" in self.inputs else None,
        )

    def _input(self, name: str, values: NDArray[Any]) -> Tensor:
        return self._tensor(values, self._type_of(name)).view(-1, *shape_of(name, self.most_particles))

    def _type_of(self, name: str) -> torch.dtype:
        return torch.int64 if name == "num_particles" else self.dtype

    def _tensor(self, values: NDArray[Any], dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.require(values, requirements=["C", "W"])).to(self.device, dtype)

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.device.type == "cpu":
            # torch.empty would write to all of the memory in torch's deterministic mode.
            return torch.from_numpy(np.empty(shape, dtype=_NUMPY_TYPES[dtype]))
        return torch.empty(shape, dtype=dtype, device=self.device)


_PICKLED_KEYS: Final = (b"dataset-toolkit", b"petastorm")
#: Errors of petastorm, pyarrow, NumPy and features for a file that is damaged or has other columns.
_READ_ERRORS: Final = (
    *(OSError, pa.ArrowException, KeyError, ValueError, RuntimeError, TypeError, AttributeError),
    DatasetError,
)


def refuse_pickled_schema(dataset: FeatureDataset) -> None:
    """Refuse a dataset with a pickled schema, before petastorm unpickles it."""
    files = {path: split for split in dataset.splits for path in dataset.files(split)}
    common = [dataset.data / name for name in sizes_below(dataset.data)]
    files |= {path: path.parent.name for path in common if path.name in ("_common_metadata", "_metadata")}
    with ThreadPoolExecutor() as threads:
        for path, keys in zip(files, threads.map(partial(_keys, dataset), files, files.values()), strict=True):
            for key in keys:
                if any(word in key for word in _PICKLED_KEYS):
                    raise HostileDatasetError(
                        f"{path} carries a pickled petastorm schema ({key.decode(errors='replace')}), which could run "
                        f"any code when read. This pipeline never writes one: find out where the file comes from, then "
                        f"make the features again."
                    )


def _keys(dataset: FeatureDataset, path: Path, split: str) -> list[bytes]:
    with reporting(dataset, split, f"{path.name}: "):
        return list(pq.read_schema(readable(path)).metadata or {})


@contextmanager
def reporting(dataset: FeatureDataset, split: str, where: str = "") -> Iterator[None]:
    """Turn errors of reading a split into those of its server, or of its files; others stay as they are."""
    try:
        yield
    except (DamagedDatasetError, IngestionError):
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
