"""Reads the predictions that `models.prediction_files.write_root` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import uproot

from models.prediction_files import TREE_NAME, probability_branches

TEXT = ("file_uuid", "sample")
UUID_HALVES = ("file_uuid_high", "file_uuid_low")


def read_root(path: Path) -> pa.Table:
    """Read predictions that `write_root` wrote, with the columns of `models.prediction.predict`."""
    with uproot.open({path: TREE_NAME}) as tree:
        branches = probability_branches(json.loads(tree.title))
        plain = [name for name in tree.keys() if name not in {*TEXT, *UUID_HALVES, "predicted", *branches}]  # noqa: SIM118
        columns = tree.arrays([*TEXT, *plain, *branches], library="np")
    scores = np.stack([columns[name] for name in branches], axis=1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), len(branches))
    return pa.table(
        {
            **{name: pa.array(columns[name], pa.string()) for name in TEXT},
            **{name: columns[name] for name in plain},
            "probability": lists.cast(pa.list_(pa.float32())),
        }
    )
