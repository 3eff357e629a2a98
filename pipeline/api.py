"""For notebooks and other programs: finished runs, models in use, features and scores.

All else is private.

>>> from hep_pipeline import current_model, load_run
>>> run = load_run("demo")  # doctest: +SKIP
>>> current_model(run.folder).scores(run.events())  # doctest: +SKIP
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import awkward as ak
import numpy as np
import pyarrow as pa

from features.dataset import FeatureDataset
from features.settings import FeatureSettings
from hep_core.checked_parquet import read_parquet
from hep_core.paths import expand_path
from hep_core.storage import as_path
from hep_core.unknown_names import there_is_no
from models.prediction_files import probability_branches
from pipeline.errors import MissingInputError, NoOutputYetError
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore
from pipeline.scoring import EventClassifier, features_of, load_classifier
from pipeline.scoring_notes import content_notes, training_note

if TYPE_CHECKING:
    import hist

__all__ = [
    "EventClassifier",
    "FeatureSettings",
    "PredictionWarning",
    "Run",
    "current_model",
    "features_of",
    "load_classifier",
    "load_run",
    "predict",
]


class PredictionWarning(UserWarning):
    """What the command `predict` notes about the files that it scores.

    Such as momenta that look like MeV, or events that the model was trained on.
    """


class Run(NamedTuple):
    """The outputs of a run folder, of the versions in use."""

    folder: Path
    """The run folder."""
    storage: str | None = None
    """Where the outputs of `ingest` and `features` lie if not in the folder."""

    def output(self, stage: str) -> Path:
        """Return the folder of the output of a stage, after its files were checked.

        Raises:
            MissingInputError: There is no such stage.
            NoOutputYetError: The stage has not run yet.
            RunFolderError: The output has no readable manifest.
            DamagedOutputError: A file of the output is not what was written.
        """
        version = self._store(stage).current()
        if version is None:
            from pipeline.stages.table import STAGE_OF  # noqa: PLC0415 - an output needs no stages

            _check_name("stage", stage, STAGE_OF)
            raise NoOutputYetError(
                f"{self.folder} has no output of '{stage}'. Run `python -m pipeline {stage}` first."
            )
        return version.verified().folder

    def dataset(self) -> FeatureDataset:
        """Return the features: classes, definitions, weights, and the files of each split."""
        return FeatureDataset.load(self.output("features"))

    @property
    def classes(self) -> list[str]:
        """Return the names of the classes, in the order of labels and probabilities."""
        return self.dataset().classes

    def events(self) -> ak.Array:
        """Return all ingested events as records; collections are lists of records [GeV, rad]."""
        return ak.from_parquet(self._store("ingest").data_folder(self.output("ingest")) / "events")

    def features(self, split: str = "test") -> pa.Table:
        """Return the features of the events of a split: `train`, `val` or `test`.

        Raises:
            DatasetError: There is no such split.
        """
        return pa.concat_tables([read_parquet(file) for file in self.dataset().files(split)])

    def histograms(self) -> dict[str, hist.Hist[Any]]:
        """Return the distributions of all features by name (`hlf.ht`).

        Axes: the feature, the number of the class.
        """
        from pipeline.reporting.card import load_histograms  # noqa: PLC0415 - the one part that draws

        return load_histograms(self.output("features"))

    def predictions(self, network: str) -> pa.Table:
        """Return the probabilities of a network for the events of the test split, a row for each.

        `file_uuid` and `entry`, the number in the file from 0, identify an event.

        Raises:
            MissingInputError: The evaluation has no such network.
        """
        return read_parquet(self._file_of_network("evaluate", network, "predictions.parquet"))

    def metrics(self) -> dict[str, Any]:
        """Return all numbers of the evaluation; `runs` holds those of each network."""
        file = self.output("evaluate") / "metrics.json"
        metrics: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return metrics

    def classifier(self, network: str) -> EventClassifier:
        """Return a trained network, in use or not.

        Raises:
            MissingInputError: The training has no such network.
        """
        description = self._file_of_network("train", network, "model/model.json")
        # The folder of the training is two levels above its `model/model.json`.
        return load_classifier(description.parents[1])

    def _file_of_network(self, stage: str, network: str, name: str) -> Path:
        """Return a file that the output of a stage has for each network, in a folder of its name.

        Raises:
            MissingInputError: There is no such network.
        """
        folder = self.output(stage)
        networks = [path.name for path in folder.iterdir() if (path / name).is_file()]
        _check_name("network", network, sorted(networks))
        return folder / network / name

    def _store(self, stage: str) -> StageStore:
        """Return the store of a stage, which finds the versions of its output."""
        storage = as_path(self.storage) if self.storage else None
        return StageStore(self.folder, stage, storage=storage)


def _check_name(noun: str, name: str, available: Collection[str]) -> None:
    """Refuse a name that a run lacks.

    Raises:
        MissingInputError: It is none of the valid names.
    """
    if name not in available:
        raise MissingInputError(there_is_no(noun, name, available))


def load_run(name: str | Path) -> Run:
    """Return a finished run.

    Args:
        name: A run folder, or the name or path of a config.

    Raises:
        ConfigError: There is neither such a folder nor such a config.
    """
    if Path(name).is_dir():
        return Run(Path(name))
    from pipeline.config import load_config  # noqa: PLC0415 - a run folder needs no config

    config = load_config(str(name))
    return Run(config.run_dir, config.storage)


def current_model(run: Run | str | Path, network: str | None = None) -> EventClassifier:
    """Return the model that `promote` put in use.

    Args:
        run: A run, or its folder.
        network: Which of several models in use.

    Raises:
        MissingInputError: No model is in use.
        ConfigError: Several models are in use, or none of this network.
    """
    folder = run.folder if isinstance(run, Run) else Path(run)
    return load_classifier(Registry.model_in_use(folder, network).folder)


def predict(files: str | Path | Sequence[str | Path], model: EventClassifier) -> pa.Table:
    """Score all entries of ROOT files without labels, as the command `predict` does.

    What the command notes about the files is a `PredictionWarning` here.

    Args:
        files: Paths, globs or URLs.
        model: From `current_model`, `load_classifier` or `Run.classifier`.

    Returns:
        Arrow table with a row for each entry: `file`, `entry`, `flag` (0 with scores), `predicted`
        (index of the likeliest class, -1 without scores), `probability_<class>` (NaN without
        scores).

    Raises:
        hep_core.input_errors.InputFileError: A file is missing or cannot be read.
    """
    paths = [files] if isinstance(files, (str, Path)) else files
    expanded_paths = [expand_path(str(path)) for path in paths]
    notes: list[str] = []
    settings, infos = model.files(expanded_paths, notes.append)
    if note := training_note(model, infos, settings):
        notes.append(note)
    fields = [("file", pa.string()), ("entry", pa.int64())]
    fields += [("flag", pa.int8()), ("predicted", pa.int64())]
    fields += [(name, pa.float32()) for name in probability_branches(model.classes)]
    schema = pa.schema(fields)
    # The empty table gives the columns also if no file has entries.
    tables = [schema.empty_table()]
    counts_of_batches = []
    for info in infos:
        for raw, scored in model.entries(info, settings):
            file_column = np.full(raw.num_events, info.path)
            score_columns = model.columns(raw, scored)
            table = pa.table({"file": file_column, **score_columns}, schema=schema)
            tables.append(table)
            counts_of_batches.append(scored.counts)
    notes += content_notes(counts_of_batches)
    for note in notes:
        # The warning is that of the line that calls this function.
        warnings.warn(note, PredictionWarning, stacklevel=2)
    return pa.concat_tables(tables)
