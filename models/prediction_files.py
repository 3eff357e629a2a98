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
from models.prediction import rows_of

TREE_NAME: Final = "predictions"
#: Events per conversion and write: one basket of each branch.
CHUNK_ROWS: Final = 100_000

_TEXT: Final = ("file_uuid", "sample")
_NO_NUMBER: Final = (*_TEXT, "probability")
_PLAIN_TYPES: Final = {"entry": "int64", "label": "int64", "weight": "float64"}
#: The UUID as two numbers: its first and its last 8 bytes, the most significant byte first.
_UUID_HALVES: Final = ("file_uuid_high", "file_uuid_low")


def write_parquet(predictions: pa.Table, classes: Sequence[str], path: Path) -> None:
    """Write predictions as Parquet, with `predicted` and one column per class, named as in `write_root`.

    The metadata of the file have the form of those of the features Parquet (`features.schema.described`): classes, and
    what the columns are.
    """
    names = probability_branches(classes)
    table = predictions.drop_columns(["probability"])
    scores = _scores(predictions, len(names))
    table = table.append_column("predicted", pa.array(scores.argmax(axis=1)))
    for index, name in enumerate(names):
        table = table.append_column(name, pa.array(np.ascontiguousarray(scores[:, index])))
    columns = {
        "predicted": "label of the most probable class",
        **{
            name: f"probability of {of}, for classes in equal parts"
            for name, of in zip(names, classes, strict=True)
        },
    }
    described = {name: {"unit": "1", "definition": words} for name, words in columns.items()}
    metadata = {"classes": json.dumps(list(classes)), "columns": json.dumps(described)}
    pq.write_table(
        table.replace_schema_metadata(metadata), path, compression="zstd", write_page_checksum=True
    )


def write_root(
    predictions: pa.Table, classes: Sequence[str], path: Path, *, chunk_rows: int = CHUNK_ROWS
) -> None:
    """Write predictions as a TTree named `predictions`, atomically; docs/run-folder.md joins it with the events.

    Branches, one entry per event: `file_uuid` (text, a TLeafC) and `entry` identify the event; `file_uuid_high` and
    `file_uuid_low` are the same UUID as two unsigned numbers of 64 bits. `sample` (text) is its sample, `label` its
    true class, `predicted` its most probable class, `weight` its physics weight, and `probability_<class>` are the
    class probabilities. The title of the tree is the JSON list of the classes, in the order of the labels.
    """
    branches = probability_branches(classes)
    plain = _plain_types(predictions.schema)
    types = {**dict.fromkeys(_TEXT, "string"), **dict.fromkeys(_UUID_HALVES, "uint64"), **plain}
    types |= {"predicted": "int64", **dict.fromkeys(branches, "float32")}
    unfinished = path.with_name(f".{path.name}")
    with uproot.recreate(unfinished) as file:
        tree = file.mktree(TREE_NAME, types, title=json.dumps(list(classes)))
        for batch in predictions.to_batches(chunk_rows):
            tree.extend(_columns(batch, branches))
    unfinished.replace(path)


def probability_branches(classes: Sequence[str]) -> list[str]:
    """Branch names of the classes' probabilities, with the ASCII letters, digits and underscores of class names."""
    plain = [re.sub(r"[^0-9A-Za-z_]", "", name) for name in classes]
    if not all(plain) or len(set(plain)) < len(plain):
        raise ModelError(
            f"the classes {list(classes)} need different branch names in ROOT, which keep only letters, digits and "
            f"underscores: {plain}. Rename the classes."
        )
    return [f"probability_{name}" for name in plain]


def _plain_types(schema: pa.Schema) -> dict[str, str]:
    """Types of the columns of one number per event; pass-through columns keep theirs."""
    others = {
        each.name: str(each.type.to_pandas_dtype().__name__)
        for each in schema
        if each.name not in _NO_NUMBER
    }
    return {name: _PLAIN_TYPES.get(name, kind) for name, kind in others.items()}


def _columns(batch: pa.RecordBatch, branches: Sequence[str]) -> Mapping[str, Any]:
    scores = _scores(batch, len(branches))
    return {
        **{name: ak.Array(batch.column(name).to_pylist()) for name in _TEXT},
        **dict(zip(_UUID_HALVES, _uuid_halves(batch.column("file_uuid")), strict=True)),
        **{
            name: batch.column(name).to_numpy().astype(kind, copy=False)
            for name, kind in _plain_types(batch.schema).items()
        },
        "predicted": scores.argmax(axis=1),
        **{name: scores[:, index] for index, name in enumerate(branches)},
    }


def _scores(predictions: pa.Table | pa.RecordBatch, num_classes: int) -> NDArray[np.float32]:
    """(num_events, num_classes) probabilities."""
    scores = rows_of(predictions, "probability")
    if len(scores) and scores.shape[1] != num_classes:
        raise ModelInputError(
            f"an event needs {num_classes} probabilities, one per class. Predict again."
        )
    return scores.reshape(-1, num_classes)


def _uuid_halves(texts: pa.StringArray) -> NDArray[np.uint64]:
    """(2, num_events) numbers of UUIDs; each different text is read once."""
    encoded = texts.dictionary_encode()
    halves = [divmod(UUID(text).int, 1 << 64) for text in encoded.dictionary.to_pylist()]
    numbers = np.array(halves, dtype=np.uint64).reshape(-1, 2)
    return np.asarray(numbers[encoded.indices.to_numpy()].T)
