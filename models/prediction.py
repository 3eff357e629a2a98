"""Predictions of a model on features Parquet, keyed by event identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.columns import COLUMNS
from features.matrices import as_numpy, model_inputs, required_columns
from features.schema import IDENTITY_COLUMNS
from hep_core.checked_parquet import open_parquet
from models.errors import ModelInputError


class Predictor(Protocol):
    """A model that gives each event a probability of each class: a network, an exported network or boosted trees."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of the features Parquet that the model takes."""

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Class probabilities, (num_events, num_classes), for columns of the features Parquet, one row per event."""


class Candidate(NamedTuple):
    """A model to evaluate."""

    name: str
    """Letters, digits, `-` and `_`, since it is also the name of a folder."""
    model: Predictor
    history: Sequence[Mapping[str, Any]] = ()
    """Records of its training, one per epoch; empty if there are none."""
    further: Sequence[Predictor] = ()
    """The same network from trainings with other seeds: how much they differ is measured."""


def predict(
    model: Predictor,
    files: Sequence[Path],
    *,
    batch_size: int = 256,
    also: Sequence[str] = (),
    at_most: int | None = None,
    on_events: Callable[[int], None] | None = None,
    instead: Mapping[str, NDArray[Any]] | None = None,
) -> pa.Table:
    """Class probabilities of all rows of some features files.

    Args:
        model: The model.
        files: Features Parquet files.
        batch_size: Number of rows to read and predict at once; 256 rows with particle lists take half a GB.
        also: Inputs to keep, such as `hlf`.
        at_most: Highest number of events; the first events are a random sample, since rows are mixed.
        on_events: Called with the number of each batch.
        instead: Inputs that replace those of the files, one row for each row of all files.

    Returns:
        Columns `file_uuid`, `entry`, `sample`, `label`, `weight` (the physics weight), those of `also`, those
        passed through, and `probability` (a list with one number per class). Events without finite probabilities are
        an `ModelInputError`: no class may be read from them.
    """
    kept = [*IDENTITY_COLUMNS, "sample", "label", "weight"]
    parts: list[pa.Table] = []
    start = 0
    for file in files:
        if start == at_most:
            break
        with open_parquet(file) as parquet:
            names = parquet.schema.names
            needed = {*kept, *required_columns([*model.inputs, *also])}
            missing = needed - set(names)
            if missing:
                raise ModelInputError(
                    f"{file} has no column {sorted(missing)}. Make the features again."
                )
            passed_through = [name for name in names if name not in COLUMNS]
            for batch in parquet.iter_batches(
                batch_size, columns=sorted({*needed, *passed_through})
            ):
                chosen = batch if at_most is None else batch.slice(0, at_most - start)
                if chosen.num_rows == 0:
                    break
                inputs = model_inputs(chosen, {*model.inputs, *also}, max_particles=None)
                replaced = {
                    name: rows[start : start + chosen.num_rows]
                    for name, rows in (instead or {}).items()
                }
                start += chosen.num_rows
                taken = {name: inputs[name] for name in model.inputs} | replaced
                scores = model.probabilities(taken)
                _refuse_unscored(file, chosen, taken, scores)
                part = pa.Table.from_batches([chosen.select([*kept, *passed_through])])
                for name, rows in {
                    **{name: inputs[name] for name in also},
                    "probability": scores,
                }.items():
                    part = part.append_column(name, pa.array(list(rows)))
                parts.append(part)
                if on_events:
                    on_events(chosen.num_rows)
    if not parts:
        raise ModelInputError(
            "there are no events to predict. Add files, or enlarge the split in features.split."
        )
    return pa.concat_tables(parts)


def _refuse_unscored(
    file: Path,
    events: pa.RecordBatch,
    inputs: Mapping[str, NDArray[Any]],
    scores: NDArray[np.float32],
) -> None:
    """Refuse events without finite probabilities, and name the first."""
    is_unscored = ~np.isfinite(scores).all(axis=1)
    if not is_unscored.any():
        return
    first = int(is_unscored.argmax())
    place = f"entry {events['entry'][first]} of the input file {events['file_uuid'][first]}"
    damaged = [name for name, rows in inputs.items() if not np.isfinite(rows[first]).all()]
    cause = (
        f"its {' and '.join(damaged)} are not finite. Make the features again."
        if damaged
        else "its features are finite, so the model is damaged. Train it again."
    )
    raise ModelInputError(
        f"{file}: the model gives {is_unscored.sum()} of {len(scores)} events no finite probabilities, the first is "
        f"{place}: {cause}"
    )


def inputs_of(
    model: Predictor, files: Sequence[Path], rows: NDArray[np.int64], *, batch_size: int = 256
) -> dict[str, NDArray[Any]]:
    """Inputs of a model, of some rows of features files.

    `rows` are numbers of rows, counted through all files, rising.
    """
    chosen: list[pa.RecordBatch] = []
    first = 0
    for file in files:
        with open_parquet(file) as parquet:
            for batch in parquet.iter_batches(batch_size, columns=required_columns(model.inputs)):
                inside = rows[(rows >= first) & (rows < first + batch.num_rows)] - first
                if len(inside):
                    chosen.append(batch.take(pa.array(inside)))
                first += batch.num_rows
    return model_inputs(pa.Table.from_batches(chosen), model.inputs, max_particles=None)


def rows_of(batch: pa.RecordBatch | pa.Table, name: str) -> NDArray[Any]:
    """A column as an array: (num_rows, width) for lists, (num_rows,) for single numbers."""
    column = batch.column(name)
    if isinstance(column, pa.ChunkedArray):
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
    return as_numpy(column.flatten()).reshape(batch.num_rows, width)
