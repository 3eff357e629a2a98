"""Predictions of a model on features Parquet, keyed by event identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.columns import COLUMNS
from features.matrices import as_numpy, model_inputs, required_columns
from features.schema import IDENTITY_COLUMNS
from hep_core.checked_parquet import open_parquet
from models.errors import ModelInputError

#: Columns of the features Parquet that predictions have too.
_EVENT_COLUMNS: Final = (*IDENTITY_COLUMNS, "sample", "label", "weight")
#: Rows to read at once, and to predict at once without particle lists.
BATCH_SIZE: Final = 256
#: Rows with particle lists to predict at once. They take 60 MB; 256 take four times as much, and no
#: less time.
_BATCH_SIZE_PARTICLES: Final = 64


class Predictor(Protocol):
    """A model that gives each event a probability of each class.

    It is a network, an exported network or boosted trees.
    """

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of the features Parquet that the model takes."""

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Predict (num_events, num_classes) probabilities from columns of the features Parquet."""


class Candidate(NamedTuple):
    """A model to evaluate."""

    name: str
    """Letters, digits, `-` and `_`, since it is also the name of a folder."""
    model: Predictor
    history: Sequence[Mapping[str, Any]] = ()
    """Records of its training, one per epoch; empty if there are none."""
    further: Sequence[Predictor] = ()
    """The same network from trainings with other seeds: how much they differ is measured."""


def prediction_batch(inputs: Sequence[str]) -> int:
    """Return the number of events to predict at once by a model of these inputs."""
    return _BATCH_SIZE_PARTICLES if "particles" in inputs else BATCH_SIZE


def predict(
    model: Predictor,
    files: Sequence[Path],
    *,
    batch_size: int | None = None,
    also: Sequence[str] = (),
    at_most: int | None = None,
    on_events: Callable[[int], None] | None = None,
    instead: Mapping[str, NDArray[Any]] | None = None,
) -> pa.Table:
    """Predict class probabilities of all rows of some features files, in their order.

    The files are read and predicted in batches.

    Args:
        model: The model.
        files: Features Parquet files.
        batch_size: Number of rows to read and predict at once; None: `prediction_batch`.
        also: Inputs to keep, such as `hlf`.
        at_most: Highest number of events; the first events are a random sample, since rows are
            mixed.
        on_events: Called with the number of events of each batch.
        instead: Inputs that replace those of the files, one row for each row of all files.

    Returns:
        Columns `file_uuid`, `entry`, `sample`, `label`, `weight` (the physics weight), those of
        `also`, those passed through, and `probability` (a list with one number per class). Events
        without finite probabilities are a `ModelInputError`: no class may be read from them.
    """
    tables: list[pa.Table] = []
    start = 0
    batch_size = batch_size or prediction_batch(model.inputs)
    for file, full_batch in _batches(files, [*model.inputs, *also], batch_size):
        # The last batch may hold more events than are still needed.
        batch = full_batch if at_most is None else full_batch.slice(0, at_most - start)
        if batch.num_rows == 0:
            break
        stop = start + batch.num_rows
        # `max_particles=None` keeps the particle lists as long as they are.
        columns = model_inputs(batch, {*model.inputs, *also}, max_particles=None)
        inputs = {name: columns[name] for name in model.inputs}
        if instead is not None:
            inputs |= {name: rows[start:stop] for name, rows in instead.items()}
        probabilities = model.probabilities(inputs)
        _check_finite(file, batch, inputs, probabilities)
        # Identity, label and weight of the events, and columns of the user, pass through unchanged.
        table = pa.Table.from_batches([batch.select([*_EVENT_COLUMNS, *_passed_through(batch)])])
        for name in also:
            table = table.append_column(name, pa.array(list(columns[name])))
        table = table.append_column("probability", pa.array(list(probabilities)))
        tables.append(table)
        start = stop
        if on_events:
            on_events(batch.num_rows)
    if not tables:
        raise ModelInputError(
            "there are no events to predict. Add files, or enlarge the split in features.split."
        )
    return pa.concat_tables(tables)


def _batches(
    files: Sequence[Path], inputs: Sequence[str], batch_size: int
) -> Iterator[tuple[Path, pa.RecordBatch]]:
    """Read batches of the files, each with its file.

    They hold the columns of predictions, the inputs, and the columns that are passed through. A
    file without one of the first two is a `ModelInputError`.
    """
    for file in files:
        with open_parquet(file) as parquet:
            names = set(parquet.schema.names)
            needed = {*_EVENT_COLUMNS, *required_columns(inputs)}
            if missing := needed - names:
                raise ModelInputError(
                    f"{file} has no column {sorted(missing)}. Make the features again."
                )
            # Columns that no feature has belong to the user.
            columns = sorted(needed | (names - set(COLUMNS)))
            for batch in parquet.iter_batches(batch_size, columns=columns):
                yield file, batch


def _passed_through(batch: pa.RecordBatch) -> list[str]:
    """Return the names of the user's columns, which no feature has, in the order of the file."""
    return [name for name in batch.schema.names if name not in COLUMNS]


def _check_finite(
    file: Path,
    events: pa.RecordBatch,
    inputs: Mapping[str, NDArray[Any]],
    probabilities: NDArray[np.float32],
) -> None:
    """Check that all events have finite probabilities; the error names the first without."""
    is_undefined = ~np.isfinite(probabilities).all(axis=1)
    if not is_undefined.any():
        return
    first = int(is_undefined.argmax())
    # The error says whether the features or the model is to blame.
    damaged = [name for name, rows in inputs.items() if not np.isfinite(rows[first]).all()]
    cause = "its features are finite, so the model is damaged. Train it again."
    if damaged:
        cause = f"its {' and '.join(damaged)} are not finite. Make the features again."
    num_undefined = is_undefined.sum()
    entry = events["entry"][first]
    file_uuid = events["file_uuid"][first]
    raise ModelInputError(
        f"{file}: the model gives {num_undefined} of {len(probabilities)} events no finite "
        f"probabilities, the first is entry {entry} of the input file {file_uuid}: {cause}"
    )


def inputs_of_rows(
    model: Predictor, files: Sequence[Path], rows: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Read the inputs of a model from some rows of features files.

    `rows` (num_rows,) are rising numbers of rows, counted through all files.
    """
    selected: list[pa.RecordBatch] = []
    first_row = 0
    for file in files:
        with open_parquet(file) as parquet:
            for batch in parquet.iter_batches(BATCH_SIZE, columns=required_columns(model.inputs)):
                in_batch = (rows >= first_row) & (rows < first_row + batch.num_rows)
                if in_batch.any():
                    # Within a batch, rows count from its first row.
                    selected.append(batch.take(pa.array(rows[in_batch] - first_row)))
                first_row += batch.num_rows
    return model_inputs(pa.Table.from_batches(selected), model.inputs, max_particles=None)


def column_array(table: pa.RecordBatch | pa.Table, name: str) -> NDArray[Any]:
    """Return a column as an array: (num_rows, width) for lists, (num_rows,) for single numbers.

    All lists of a column must have the same length; else it is a `ModelInputError`.
    """
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        # A column in pieces becomes one array first.
        combined = column.combine_chunks()
        column = combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
    if not pa.types.is_list(column.type):
        return as_numpy(column)
    lengths = column.value_lengths().unique()
    if len(lengths) > 1:
        raise ModelInputError(
            f"column {name} has lists of different lengths. Make the features again."
        )
    width = lengths[0].as_py() if len(lengths) else 0
    return as_numpy(column.flatten()).reshape(table.num_rows, width)
