"""Checks the columns that the loss needs beside the inputs, before a training. No torch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from features.dataset import FeatureDataset
from features.matrices import as_numpy
from hep_core.checked_parquet import open_parquet, read_parquet
from hep_core.input_errors import nearest_names
from training.decorrelate_settings import DecorrelateSettings
from training.errors import ColumnError


def check_spectators(dataset: FeatureDataset, settings: DecorrelateSettings) -> None:
    """Refuse columns of `train.decorrelate` without effect: missing, no numbers, or constant.

    Raises:
        ColumnError: There is such a column; the message names the first.
    """
    files = dataset.files("train")
    for name in settings.columns:
        _check_holds_numbers(dataset, name)
    # Each file is read alone, since pyarrow would look for partitions in the paths of many.
    tables = [read_parquet(file, ["label", *settings.columns]) for file in files]
    table = pa.concat_tables(tables)
    labels = as_numpy(table["label"].combine_chunks())
    for name in settings.columns:
        values = as_numpy(table[name].combine_chunks())
        for label, class_name in enumerate(dataset.classes):
            in_class = values[labels == label]
            if class_name in settings.classes and len(np.unique(in_class)) < 2:
                raise ColumnError(
                    f"train.decorrelate.from: '{name}' is the same for all {len(in_class)} "
                    f"{class_name} events of the training split, so no score depends on it. Take "
                    f"it out, or take {class_name} out of train.decorrelate.classes."
                )


def _check_holds_numbers(dataset: FeatureDataset, name: str) -> None:
    """Refuse a name that is no column with one number for each event.

    Raises:
        ColumnError: There is no such column.
    """
    with open_parquet(dataset.files("train")[0]) as file:
        numbers = [
            field.name
            for field in file.schema
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        ]
    numbers.remove("label")
    if name not in numbers:
        raise ColumnError(
            f"train.decorrelate.from: the features have no column '{name}' with one number for "
            f"each event.{nearest_names(name, numbers)} A branch of the input files needs "
            f"ingest.pass_through."
        )
