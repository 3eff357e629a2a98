"""Names that a run lacks, and what `predict` warns of."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delphes_files import write_delphes
from event_rows import event_row, lepton
from feature_datasets import write_dataset
from numpy.typing import NDArray
from prediction_trees import uuid_of
from published_by_hand import publish, publish_features

from features.errors import DatasetError
from features.settings import FeatureSettings
from ingestion.settings import IngestSettings
from pipeline.api import EventClassifier, PredictionWarning, Run, predict
from pipeline.errors import MissingInputError, NoOutputYetError
from pipeline.runs.store import StageStore

SELECTION = FeatureSettings(particles=False)
STAGES = "simulate, ingest, features, gridsearch, train, evaluate, export, report"


def publish_files(run_dir: Path, stage: str, *files: str) -> None:
    """Publish a version of a stage with some files."""
    store = StageStore(run_dir, stage)
    folder = store.next_folder("00" * 8)
    store.create(folder)
    for name in files:
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_text("made up")
    publish(run_dir, stage, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    publish_features(folder, rows={"train": [5], "val": [4], "test": [3]})
    publish_files(folder, "train", "hlf/model/model.json", "particle-set/model/model.json")
    trees = "boosted-trees/predictions.parquet"
    publish_files(folder, "evaluate", "hlf/predictions.parquet", trees, "plots/rates.png")
    return Run(folder)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda run: run.output("evaluation"),
            f"there is no stage 'evaluation', only {STAGES}. Did you mean 'evaluate'?",
        ),
        (
            lambda run: run.features("tset"),
            "there is no split 'tset', only train, val, test. Did you mean 'test'?",
        ),
        (
            lambda run: run.dataset().num_rows("validation"),
            "there is no split 'validation', only train, val, test.",
        ),
        (
            lambda run: run.predictions("boosted_trees"),
            "no network 'boosted_trees', only boosted-trees, hlf. Did you mean 'boosted-trees'?",
        ),
        # Folders of the evaluation that are not those of a network.
        (lambda run: run.predictions("plots"), "there is no network 'plots', only boosted-trees"),
        (lambda run: run.predictions(""), "there is no network '', only boosted-trees, hlf."),
        (
            lambda run: run.classifier("hfl"),
            "there is no network 'hfl', only hlf, particle-set. Did you mean 'hlf'?",
        ),
        (lambda run: run.classifier(""), "there is no network '', only hlf, particle-set."),
    ],
)
def test_an_unknown_name_is_refused_with_the_valid_ones(
    run: Run, ask: Callable[[Run], Any], message: str
) -> None:
    with pytest.raises((MissingInputError, DatasetError), match=re.escape(message)) as error:
        ask(run)

    # The command cannot help, nor can its options.
    assert not isinstance(error.value, NoOutputYetError)
    assert "--model" not in str(error.value)


def test_a_stage_without_output_names_the_command_that_makes_it(run: Run) -> None:
    with pytest.raises(NoOutputYetError, match="Run `python -m pipeline export` first"):
        run.output("export")


class EqualScores:
    """A model that gives all events the same probabilities."""

    inputs = ("hlf",)

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Predict (num_events, 2) probabilities of 0.5."""
        return np.full((len(columns["hlf"]), 2), 0.5, np.float32)


def warnings_of_predict(path: Path, dataset: Path | None = None) -> list[str]:
    """The messages of the warnings when a file is scored; each names the line of the caller."""
    reading = IngestSettings()
    model = EventClassifier("hlf", EqualScores(), ["a", "b"], reading, SELECTION, dataset)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predict(path, model)
    assert {warning.filename for warning in caught} <= {__file__}
    assert {warning.category for warning in caught} <= {PredictionWarning}
    return [str(warning.message) for warning in caught]


def test_notes_of_the_command_are_warnings_of_the_caller(tmp_path: Path) -> None:
    event = event_row(electrons=[lepton(40.0, 0.5, 0.5)])
    usual = write_delphes(tmp_path / "usual.root", [event])
    in_mev = write_delphes(tmp_path / "mev.root", [event | {"met": 50_000.0}])

    (message,) = warnings_of_predict(in_mev)

    assert message == "Momenta of MET of the files are very large: are they in MeV? GeV is needed."
    assert warnings_of_predict(usual) == []


def test_scores_of_training_events_come_with_a_warning(tmp_path: Path) -> None:
    event = event_row(electrons=[lepton(40.0, 0.5, 0.5)])
    path = write_delphes(tmp_path / "a.root", [event])
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})
    for file in dataset.files("val"):
        table = pq.read_table(file)
        uuids = pa.array([uuid_of(path)] * table.num_rows)
        index = table.schema.get_field_index("file_uuid")
        pq.write_table(table.set_column(index, "file_uuid", uuids), file)

    (message,) = warnings_of_predict(path, dataset.folder)

    assert message.startswith("hlf was trained on 5 events of these files")


def test_scores_do_not_need_the_features_of_the_training(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row(electrons=[lepton(40.0, 0.5, 0.5)])])
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})

    # `clean`, or another run, removes them one after the other.
    (first_file, *_) = dataset.files("val")
    first_file.unlink()
    warnings_after_first = warnings_of_predict(path, dataset.folder)
    shutil.rmtree(dataset.folder)

    assert warnings_after_first == []
    assert warnings_of_predict(path, dataset.folder) == []
