"""Checks the columns that the loss needs beside the inputs, before a training. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from features.matrices import as_numpy
from hep_core.checked_parquet import open_parquet, read_parquet
from hep_core.input_errors import nearest_names
from training.decorrelate_settings import DecorrelateSettings
from training.errors import ColumnError


def check_spectators(dataset: FeatureDataset, settings: DecorrelateSettings) -> None:
    """Refuse columns of `train.decorrelate` that the loss cannot use.

    These are columns that are missing, hold no numbers, are not finite within a class of the
    training or validation split, or are constant within a class of the training split.

    Raises:
        ColumnError: There is such a column; the message names the first.
    """
    for name in settings.columns:
        _check_holds_numbers(dataset, name)
    # The validation loss has the term too.
    for split in ("train", "val"):
        # A split without events is refused later, whether or not the loss has the term.
        if dataset.num_rows(split):
            _check_split(dataset, split, settings)


def _check_split(dataset: FeatureDataset, split: str, settings: DecorrelateSettings) -> None:
    """Refuse columns that the loss cannot use for the events of a split.

    Raises:
        ColumnError: There is such a column.
    """
    # Each file is read alone, since pyarrow would look for partitions in the paths of many.
    tables = [read_parquet(file, ["label", *settings.columns]) for file in dataset.files(split)]
    table = pa.concat_tables(tables)
    labels = as_numpy(table["label"].combine_chunks())
    for name in settings.columns:
        values = as_numpy(table[name].combine_chunks())
        for label, class_name in enumerate(dataset.classes):
            if class_name not in settings.classes:
                continue
            values_of_class = values[labels == label]
            _check_is_finite(values_of_class, name, class_name, split)
            if split == "train":
                _check_varies(values_of_class, name, class_name)


def _check_is_finite(values: NDArray[Any], name: str, class_name: str, split: str) -> None:
    """Refuse a column that is NaN or infinite for events of a class in a split.

    One such event would make the loss of its batch NaN, even with a weight of 0.

    Raises:
        ColumnError: There are such events.
    """
    split_name = {"train": "training", "val": "validation"}[split]
    num_not_finite = np.count_nonzero(~np.isfinite(values))
    if num_not_finite:
        raise ColumnError(
            f"train.decorrelate.from: '{name}' is NaN or infinite for {num_not_finite} of the "
            f"{len(values)} {class_name} events of the {split_name} split, so the loss would be NaN. "
            f"Take it out, take {class_name} out of train.decorrelate.classes, or read files in "
            f"which it is finite."
        )


def _check_varies(values: NDArray[Any], name: str, class_name: str) -> None:
    """Refuse a column that is the same for all training events of a class.

    Raises:
        ColumnError: It is the same.
    """
    if len(np.unique(values)) < 2:
        raise ColumnError(
            f"train.decorrelate.from: '{name}' is the same for all {len(values)} {class_name} "
            f"events of the training split, so no score depends on it. Take it out, or take "
            f"{class_name} out of train.decorrelate.classes."
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
