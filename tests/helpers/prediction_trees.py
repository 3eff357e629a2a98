"""Reads predictions, and the features that they are made from, as tests compare them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uproot
from numpy.typing import NDArray

from features.matrices import hlf_array
from models.prediction_files import TREE_NAME, probability_branches

TEXT = ("file_uuid", "sample")
UUID_HALVES = ("file_uuid_high", "file_uuid_low")
EventKey = tuple[str, int]
"""Identity of an event: UUID of its file, and entry."""


def read_root(path: Path) -> pa.Table:
    """Read predictions that `write_root` wrote, with the columns of `models.prediction.predict`."""
    with uproot.open({path: TREE_NAME}) as tree:
        branches = probability_branches(json.loads(tree.title))
        special = {*TEXT, *UUID_HALVES, "predicted", *branches}
        plain = [name for name in tree.keys() if name not in special]  # noqa: SIM118
        columns = tree.arrays([*TEXT, *plain, *branches], library="np")
    scores = np.stack([columns[name] for name in branches], axis=1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), len(branches))
    table_columns: dict[str, Any] = {}
    for name in TEXT:
        table_columns[name] = pa.array(columns[name], pa.string())
    for name in plain:
        table_columns[name] = columns[name]
    table_columns["probability"] = lists.cast(pa.list_(pa.float32()))
    return pa.table(table_columns)


def probabilities(table: Any) -> NDArray[np.float32]:
    """(num_events, num_classes) scores in a table, a frame or a dict of columns."""
    names = [
        name for name in getattr(table, "column_names", table) if name.startswith("probability_")
    ]
    return np.column_stack([np.asarray(table[name]) for name in names])


def keys_of(table: pa.Table) -> list[EventKey]:
    """The identities of events."""
    return list(zip(table["file_uuid"].to_pylist(), table["entry"].to_pylist(), strict=True))


def features_by_event(folder: Path, *splits: str) -> dict[EventKey, NDArray[np.float32]]:
    """The high-level features of the events in splits of a dataset."""
    features: dict[EventKey, NDArray[np.float32]] = {}
    for split in splits:
        for path in sorted((folder / split).iterdir()):
            table = pq.read_table(path)
            features.update(zip(keys_of(table), hlf_array(table), strict=True))
    return features


def uuid_of(path: Path) -> str:
    """Identity of a ROOT file."""
    with uproot.open(path) as file:
        return str(file.file.uuid)


def strict_json(path: Path) -> Any:
    """JSON as the standard has it."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
