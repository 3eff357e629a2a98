"""Events as tensors: the rows of one or many row groups, and batches of these rows."""

from __future__ import annotations

import math
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
#: Most rows of a validation batch, without and with particles. A recurrent network needs ten times
#: the memory of its input particles.
_VAL_ROWS: Final = 8192
_VAL_ROWS_PARTICLES: Final = 512


class Batch(NamedTuple):
    """One step's events of one rank."""

    inputs: tuple[Tensor, ...]
    """The input columns that the model takes, from these three.

    `hlf`: (num_events, NUM_HLF) high-level features. `particles`: (num_events, longest, 19), 19
    features of each particle, cut to the longest event of the batch. `num_particles`: (num_events,)
    int64.
    """
    labels: Tensor
    """(num_events,) int64."""
    weights: Tensor
    """(num_events,) event weight times class weight."""
    spectators: Tensor | None = None
    """(num_events, num_spectators) columns that the loss needs beside the inputs; None for none."""

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
    """The columns of `Batch`, with `particles` of shape (num_rows, most particles, 19)."""
    labels: Tensor
    """(num_rows,) int64."""
    weights: Tensor
    """(num_rows,) event weight times class weight."""
    lengths: NDArray[np.int64] | None = None
    """(num_rows,) number of particles of each event, in host memory; None without particles."""
    spectators: Tensor | None = None
    """(num_rows, num_spectators) columns that the loss needs beside the inputs; None for none."""

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Return copies of the rows with these numbers, in this order.

        Particles are cut to the longest event among them, but at least to one.
        """
        longest = 1 if self.lengths is None else int(self.lengths[rows].max(initial=1))
        indices = torch.from_numpy(rows).to(self.labels.device)
        inputs: list[Tensor] = []
        for column in self.inputs:
            if column.dim() == 3:
                inputs.append(_select_particles(column, indices, longest))
            else:
                inputs.append(column.index_select(0, indices))
        spectators = None
        if self.spectators is not None:
            spectators = self.spectators.index_select(0, indices)
        labels = self.labels.index_select(0, indices)
        weights = self.weights.index_select(0, indices)
        return Batch(tuple(inputs), labels, weights, spectators)

    def batches(self, rows: NDArray[np.int64], sizes: Sequence[int]) -> Iterator[Batch]:
        """Return the rows with these numbers, in this order, as batches of these sizes.

        Without particles, the batches share the memory of one copy.
        """
        if self.lengths is None:
            # All rows are copied at once, and the batches are views of this copy.
            copied = self.batch(rows)
            columns = [*copied.inputs, copied.labels, copied.weights]
            if copied.spectators is not None:
                columns.append(copied.spectators)
            num_inputs = len(copied.inputs)
            pieces = [column.split_with_sizes(list(sizes)) for column in columns]
            for batch_columns in zip(*pieces, strict=True):
                yield Batch(batch_columns[:num_inputs], *batch_columns[num_inputs:])
            return
        # Each batch is a copy of its own, since particles are large and longest events differ.
        for start, stop in pairwise(accumulate(sizes, initial=0)):
            yield self.batch(rows[start:stop])

    def write(self, start: int, rows: Rows) -> None:
        """Overwrite the rows from number `start` on by `rows`."""
        stop = start + len(rows.labels)
        for target, source in zip(self.inputs, rows.inputs, strict=True):
            target[start:stop] = source
        self.labels[start:stop] = rows.labels
        self.weights[start:stop] = rows.weights
        if self.lengths is not None and rows.lengths is not None:
            self.lengths[start:stop] = rows.lengths
        if self.spectators is not None and rows.spectators is not None:
            self.spectators[start:stop] = rows.spectators


def event_shape(name: str, max_particles: int) -> tuple[int, ...]:
    """Return the shape of one event of a column: (particles, features), (features,) or ().

    `max_particles`: rows of a particle matrix.
    """
    if name == "particles":
        return max_particles, NUM_PARTICLE_FEATURES
    return INPUT_COLUMNS[name].shape if name in INPUT_COLUMNS else ()


def validation_share(
    group_rows: Sequence[int], *, rank: int, world_size: int, has_particles: bool
) -> tuple[list[int], list[int]]:
    """Return a rank's row groups of the validation split, and the sizes of its batches.

    The ranks take the row groups in turn. Each row group becomes one batch, or several even ones if
    it is larger than a batch may be. `group_rows`: number of rows of each row group.
    """
    max_rows = _VAL_ROWS_PARTICLES if has_particles else _VAL_ROWS
    groups = list(range(rank, len(group_rows), world_size))
    batch_sizes: list[int] = []
    for group in groups:
        num_rows = group_rows[group]
        batch_sizes += even_parts(num_rows, math.ceil(num_rows / max_rows))
    return groups, batch_sizes


def _select_particles(particles: Tensor, rows: Tensor, longest: int) -> Tensor:
    """Copy rows of (num_rows, max_particles, 19), cut to (num_events, longest, 19).

    The first `longest` particles of a row are consecutive in memory, so rows are cut as flat ones.
    """
    _, max_particles, width = particles.shape
    flat = particles.view(-1, max_particles * width)[:, : longest * width]
    if not flat.is_cpu:
        return flat.index_select(0, rows).view(-1, longest, width)
    # NumPy copies faster than torch, which in its deterministic mode first fills the result with
    # NaN, and splits this short copy over threads, which is slower when the cores are busy.
    selected = torch.from_numpy(flat.numpy()[rows.numpy()])
    return selected.view(-1, longest, width)


@dataclass(frozen=True)
class BatchLayout:
    """The columns that a model takes, and their conversion to tensors."""

    inputs: tuple[str, ...]
    """Names of the model's input columns."""
    class_weights: tuple[float, ...]
    """Factor of the event weights of each class."""
    dtype: torch.dtype
    """Type of all real numbers."""
    device: torch.device
    max_particles: int = MAX_PARTICLES
    """Rows of a particle matrix."""
    spectators: tuple[str, ...] = ()
    """Names of columns that the loss needs beside the inputs."""

    @classmethod
    def for_inputs(
        cls,
        dataset: FeatureDataset,
        inputs: Sequence[str],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        spectators: Sequence[str] = (),
    ) -> Self:
        """Make the layout for some inputs of a dataset.

        The arguments are those of `training.readers.reader.open_reader`.

        Raises:
            ValueError: The features have no such input.
        """
        unknown = set(inputs) - set(INPUT_COLUMNS)
        if unknown:
            raise ValueError(
                f"the features have no model inputs {sorted(unknown)}; "
                f"they have {list(INPUT_COLUMNS)}"
            )
        return cls(
            tuple(inputs),
            tuple(dataset.class_weights),
            dtype,
            torch.device(device),
            dataset.max_particles,
            tuple(spectators),
        )

    @property
    def fields(self) -> list[str]:
        """Columns to read, each once: inputs, number of particles, label, weight, spectators."""
        fields = list(self.inputs)
        if "particles" in fields and "num_particles" not in fields:
            fields.append("num_particles")
        return list(dict.fromkeys([*fields, "label", "weight", *self.spectators]))

    @property
    def _columns(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Name, type and shape of one event of each column: inputs, label, weight."""
        columns: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
        for name in self.inputs:
            dtype = torch.int64 if name == "num_particles" else self.dtype
            columns.append((name, dtype, event_shape(name, self.max_particles)))
        return [*columns, ("label", torch.int64, ()), ("weight", self.dtype, ())]

    def rows(self, columns: Columns) -> Rows:
        """Convert a row group to tensors, which may share the memory of the arrays.

        The weight of a row becomes the event weight times the class weight.
        """
        class_weights = np.asarray(self.class_weights)[columns["label"]]
        arrays = {**columns, "weight": columns["weight"] * class_weights}
        tensors: list[Tensor] = []
        for name, dtype, shape in self._columns:
            # Torch needs arrays that are contiguous and can be written to.
            array = np.require(arrays[name], requirements=["C", "W"])
            tensors.append(torch.from_numpy(array).to(self.device, dtype).view(-1, *shape))
        *inputs, labels, weights = tensors
        lengths = columns["num_particles"].astype(np.int64) if "particles" in self.inputs else None
        rows = Rows(tuple(inputs), labels, weights, lengths)
        if not self.spectators:
            return rows
        spectators = np.column_stack([columns[name] for name in self.spectators])
        return rows._replace(spectators=torch.from_numpy(spectators).to(self.device, self.dtype))

    def allocate(self, num_rows: int) -> Rows:
        """Return memory for some rows, with undefined content.

        Host memory is taken from the system page by page, as rows are written.
        """
        *inputs, labels, weights = [
            self._allocate_tensor((num_rows, *shape), dtype) for _, dtype, shape in self._columns
        ]
        lengths = np.empty(num_rows, dtype=np.int64) if "particles" in self.inputs else None
        rows = Rows(tuple(inputs), labels, weights, lengths)
        if not self.spectators:
            return rows
        spectators = self._allocate_tensor((num_rows, len(self.spectators)), self.dtype)
        return rows._replace(spectators=spectators)

    def _allocate_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
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


def require_no_pickled_schema(dataset: FeatureDataset) -> None:
    """Refuse a dataset with a pickled schema, before petastorm unpickles it.

    A pickle can run any code when it is read. Petastorm looks for one under certain keys of the
    metadata of Parquet files; this reads the keys of all files of the dataset.

    Raises:
        DamagedDatasetError: A file has such a key, or cannot be read.
    """
    split_of_file = {path: split for split in dataset.splits for path in dataset.files(split)}
    # Petastorm also reads files of common metadata, which belong to no split's list.
    for name in file_sizes(dataset.data):
        path = dataset.data / name
        if path.name in ("_common_metadata", "_metadata"):
            split_of_file[path] = path.parent.name
    with ThreadPoolExecutor() as threads:
        read_keys = partial(_read_metadata_keys, dataset)
        keys_of_files = threads.map(read_keys, split_of_file, split_of_file.values())
        for path, keys in zip(split_of_file, keys_of_files, strict=True):
            for key in keys:
                _require_harmless_key(path, key)


def _require_harmless_key(path: Path, key: bytes) -> None:
    """Raise an error if a key of a file's metadata is one of a pickled schema of petastorm."""
    if any(pickled_key in key for pickled_key in _PICKLED_KEYS):
        raise DamagedDatasetError(
            f"{path} carries a pickled petastorm schema ({key.decode(errors='replace')}), which "
            f"could run any code when read. This pipeline never writes one: find out where the "
            f"file comes from, then make the features again."
        )


def _read_metadata_keys(dataset: FeatureDataset, path: Path, split: str) -> list[bytes]:
    """Read the keys of the metadata of a Parquet file; `split` is for messages."""
    with translate_read_errors(dataset, split, f"{path.name}: "):
        return list(pq.read_schema(parquet_source(path)).metadata or {})


@contextmanager
def translate_read_errors(
    dataset: FeatureDataset, split: str, location: str = ""
) -> Iterator[None]:
    """Within this context, replace errors of reading a split by errors that name their cause.

    If the split is on a server whose failure explains the error, it becomes the server's error.
    An error that damaged files cause becomes `DamagedDatasetError`. Others stay as they are.

    `location`: begin of the message, such as the file.
    """
    try:
        yield
    except (DamagedDatasetError, DamagedOutputError, InputFileError):
        raise
    except Exception as cause:
        if is_remote(dataset.data):
            problem = remote_error(dataset.lies_in, where=f"the {split} split", cause=cause)
            if problem:
                raise problem from cause
        if not isinstance(cause, _READ_ERRORS):
            raise
        reason = " ".join(f"{location}{cause}".split())
        raise DamagedDatasetError(
            f"the {split} split in {dataset.data} cannot be read ({reason}). "
            f"Make the features again: `python -m pipeline features --force`."
        ) from cause
