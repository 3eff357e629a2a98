"""A features dataset on disk, without Spark and torch.

`dataset.json` describes its content, `scaler.json` its scaling.

Layout of the folder, whose Parquet may lie on object storage instead:
    dataset.json                    names, shapes, row groups, counts, class weights
    scaler.json                     mean and standard deviation, from the training split only
    train/part-00000.parquet ...    one row group per file
    val/...  test/...
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names, max_particles
from features.errors import DatasetError
from hep_core.storage import as_path
from hep_core.unknown_names import there_is_no

#: Version of the layout of `dataset.json`.
DATASET_VERSION: Final = 5


class RowGroup(NamedTuple):
    """One file with one row group, the unit in which workers get data."""

    file: str
    """Path below the folder of the dataset."""
    rows: int
    """Number of events."""


class FeatureDataset(NamedTuple):
    """Description of a dataset, for training and evaluation."""

    folder: Path
    classes: list[str]
    """Names of the classes; a label is an index into them."""
    class_weights: list[float]
    """Factor on the weights of each class that balances the training split."""
    splits: dict[str, list[RowGroup]]
    """The row groups of each split (`train`, `val`, `test`)."""
    counts: dict[str, list[int]]
    """Number of events of each class, by split."""
    definitions: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    """Settings of the selection and the physics of its features."""
    normalisation: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - nobody changes it
    """By sample: what gives its physics weights, a `features.normalisation.GeneratedSample`, and
    their `factor`."""
    lies_in: str = ""
    """URL of the folder of the Parquet on object storage; empty for the dataset's own folder."""
    reading: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    """Settings by which its events were read, as for `ingestion.settings.IngestSettings`, and
    whether the files have particles (`has_particles`); empty if unknown."""
    plugin_code: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    """Digest of the code of the plugin that computed a feature, by `feature NAME`; empty without
    plugins, and if unknown."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read `dataset.json`.

        Raises:
            DatasetError: The file is missing, damaged or of another version.
        """
        path = folder / "dataset.json"
        try:
            description: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as cause:
            raise DatasetError(
                f"{path} cannot be read ({cause}). Make the features again."
            ) from cause
        version = description.get("version") if isinstance(description, dict) else None
        if version != DATASET_VERSION:
            raise DatasetError(
                f"{path} has version {version}; this code reads version {DATASET_VERSION}. "
                f"Make the features again: `python -m pipeline features`."
            )
        try:
            splits = {}
            for name, groups in description["splits"].items():
                splits[name] = [RowGroup(**group) for group in groups]
            # A file of an earlier release may lack these.
            later_fields: dict[str, Any] = {"reading": {}, "plugin_code": {}}
            fields = {**later_fields, **description, "folder": folder, "splits": splits}
            return cls._make(fields[name] for name in cls._fields)
        except (AttributeError, KeyError, TypeError) as cause:
            raise DatasetError(
                f"{path} is damaged ({cause!r}). Make the features again."
            ) from cause

    def save(self, *, columns: dict[str, Any]) -> None:
        """Write `dataset.json`, and `scaler.json` with `columns`.

        `columns` has a `features.scaling.scaler_json` of `hlf` and of `particles`.
        """
        fields = self._asdict()
        del fields["folder"]
        splits = {}
        for split, groups in self.splits.items():
            splits[split] = [group._asdict() for group in groups]
        particles = {"rows": self.max_particles, "features": list(PARTICLE_FEATURE_NAMES)}
        description = {
            "version": DATASET_VERSION,
            "hlf": list(hlf_names()),
            "particles": particles,
            **fields,
            "splits": splits,
        }
        _write_json(self.folder / "dataset.json", description)
        _write_json(self.folder / "scaler.json", columns)

    def scaler(self) -> dict[str, Any]:
        """Content of `scaler.json`: `rows`, `mean` and `std` of `hlf` and `particles`."""
        text = (self.folder / "scaler.json").read_text(encoding="utf-8")
        scaler: dict[str, Any] = json.loads(text)
        return scaler

    @property
    def max_particles(self) -> int:
        """Rows of a particle matrix: the lepton, and the caps on the particle list."""
        return max_particles(self.definitions)

    @property
    def data(self) -> Path:
        """Folder of the Parquet, from `hep_core.storage.as_path`."""
        return as_path(self.lies_in) if self.lies_in else self.folder

    def files(self, split: str) -> list[Path]:
        """Paths of a split's row groups, in order; `hep_core.checked_parquet` reads them.

        Raises:
            DatasetError: There is no such split.
        """
        folder = self.data
        return [folder / group.file for group in self._row_groups(split)]

    def num_rows(self, split: str) -> int:
        """Number of events of a split.

        Raises:
            DatasetError: There is no such split.
        """
        return sum(group.rows for group in self._row_groups(split))

    def _row_groups(self, split: str) -> list[RowGroup]:
        """The row groups of a split; an unknown one is a `DatasetError`."""
        if split not in self.splits:
            raise DatasetError(there_is_no("split", split, self.splits))
        return self.splits[split]


def _write_json(path: Path, description: dict[str, Any]) -> None:
    """Write a description as indented JSON."""
    text = json.dumps(description, indent=1)
    path.write_text(text, encoding="utf-8")
