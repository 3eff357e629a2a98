"""Predictions as files: Parquet, and ROOT for analyses that do not read Parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import awkward as ak
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uproot
from numpy.typing import NDArray

from models.errors import ModelError, ModelInputError
from models.prediction import column_array

TREE_NAME: Final = "predictions"
#: Events that are converted and written at once; they become one basket of each branch.
CHUNK_ROWS: Final = 100_000

#: Names of the columns of text.
_TEXTS: Final = ("file_uuid", "sample")
#: Types of the branches in ROOT, where they differ from those of the table.
_ROOT_TYPES: Final = {"entry": "int64", "label": "int64", "weight": "float64"}
#: The UUID as two numbers: its first and its last 8 bytes, the most significant byte first.
_UUID_HALVES: Final = ("file_uuid_high", "file_uuid_low")


def write_parquet(predictions: pa.Table, classes: Sequence[str], path: Path) -> None:
    """Write predictions as Parquet, with the columns `predicted` and one for each class.

    The metadata of the file have the form of those of the features Parquet
    (`features.schema.described_schema`): classes, and what the columns are.
    """
    # One column for each class, named `probability_<class>`.
    names = probability_branches(classes)
    scores = _scores(predictions, len(names))
    predicted = scores.argmax(axis=1)
    table = predictions.drop_columns(["probability"])
    table = table.append_column("predicted", pa.array(predicted))
    definitions = {"predicted": "label of the most probable class"}
    for name, class_name, class_scores in zip(names, classes, scores.T, strict=True):
        column = np.ascontiguousarray(class_scores)
        table = table.append_column(name, pa.array(column))
        definitions[name] = f"probability of {class_name}, for classes in equal parts"
    columns = {
        name: {"unit": "1", "definition": definition} for name, definition in definitions.items()
    }
    metadata = {"classes": json.dumps(list(classes)), "columns": json.dumps(columns)}
    described = table.replace_schema_metadata(metadata)
    pq.write_table(described, path, compression="zstd", write_page_checksum=True)


def write_root(
    predictions: pa.Table, classes: Sequence[str], path: Path, *, chunk_rows: int = CHUNK_ROWS
) -> None:
    """Write predictions as a TTree named `predictions`, atomically.

    The branches have one entry per event:

    - `file_uuid` (text, a TLeafC) and `entry` identify the event.
    - `file_uuid_high` and `file_uuid_low` are the same UUID as two unsigned numbers of 64 bits.
    - `sample` (text) is its sample, `label` its true class, `weight` its physics weight.
    - `predicted` is its most probable class; `probability_<class>` are the class probabilities.

    The title of the tree is the JSON list of the classes, in the order of the labels.
    docs/run-folder.md joins the tree with the events.
    """
    branches = probability_branches(classes)
    types = {
        **dict.fromkeys(_TEXTS, "string"),
        **dict.fromkeys(_UUID_HALVES, "uint64"),
        **_number_types(predictions.schema),
        "predicted": "int64",
        **dict.fromkeys(branches, "float32"),
    }
    unfinished = path.with_name(f".{path.name}")
    with uproot.recreate(unfinished) as file:
        tree = file.mktree(TREE_NAME, types, title=json.dumps(list(classes)))
        for batch in predictions.to_batches(chunk_rows):
            tree.extend(_tree_columns(batch, branches))
    unfinished.replace(path)


def probability_branches(classes: Sequence[str]) -> list[str]:
    """Name the branches of the probabilities, `probability_<class>`.

    Names keep only letters, digits and underscores of the classes. If they are then empty or equal,
    it is a `ModelError`.
    """
    names = [re.sub(r"[^0-9A-Za-z_]", "", class_name) for class_name in classes]
    has_empty_name = "" in names
    has_equal_names = len(set(names)) < len(names)
    if has_empty_name or has_equal_names:
        raise ModelError(
            f"the classes {list(classes)} need different branch names in ROOT, which keep only "
            f"letters, digits and underscores: {names}. Rename the classes."
        )
    return [f"probability_{name}" for name in names]


def _number_types(schema: pa.Schema) -> dict[str, str]:
    """Return the types of the columns of one number per event, by name.

    Columns that are passed through keep their own type.
    """
    types = {}
    for field in schema:
        if field.name not in (*_TEXTS, "probability"):
            own_type = str(field.type.to_pandas_dtype().__name__)
            types[field.name] = _ROOT_TYPES.get(field.name, own_type)
    return types


def _tree_columns(batch: pa.RecordBatch, branches: Sequence[str]) -> Mapping[str, Any]:
    """Convert a batch of predictions to arrays of all branches, by name."""
    columns: dict[str, Any] = {}
    for name in _TEXTS:
        columns[name] = ak.Array(batch.column(name).to_pylist())
    # ROOT joins trees by numbers, so the UUID is also written as two of them.
    uuid_halves = _uuid_halves(batch.column("file_uuid"))
    columns |= zip(_UUID_HALVES, uuid_halves, strict=True)
    for name, dtype in _number_types(batch.schema).items():
        columns[name] = batch.column(name).to_numpy().astype(dtype, copy=False)
    scores = _scores(batch, len(branches))
    columns["predicted"] = scores.argmax(axis=1)
    columns |= zip(branches, scores.T, strict=True)
    return columns


def _scores(predictions: pa.Table | pa.RecordBatch, num_classes: int) -> NDArray[np.float32]:
    """Return the (num_events, num_classes) probabilities of predictions.

    A wrong number of probabilities per event is a `ModelInputError`.
    """
    scores = column_array(predictions, "probability")
    if len(scores) and scores.shape[1] != num_classes:
        raise ModelInputError(
            f"an event needs {num_classes} probabilities, one per class. Predict again."
        )
    return scores.reshape(-1, num_classes)


def _uuid_halves(texts: pa.StringArray) -> NDArray[np.uint64]:
    """Convert the texts of UUIDs to (2, num_events) numbers, their upper and lower 64 bits."""
    # Events of a file have the same UUID, so each different text is read once.
    encoded = texts.dictionary_encode()
    # A division by 2^64 splits the 128 bits.
    different_texts = encoded.dictionary.to_pylist()
    halves = [divmod(UUID(text).int, 1 << 64) for text in different_texts]
    numbers = np.array(halves, dtype=np.uint64).reshape(-1, 2)
    numbers_of_events = numbers[encoded.indices.to_numpy()]
    return np.asarray(numbers_of_events.T)
