"""The files that a classifier scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pyarrow as pa
import pytest
from delphes_files import PARTICLE_BRANCHES, write_delphes
from event_rows import event_row, events_table, jet, lepton

from features.errors import DatasetError
from features.matrices import hlf_array
from features.settings import FeatureSettings
from ingestion.errors import ConflictingFilesError
from ingestion.reader import read_events
from models.prediction import Candidate
from pipeline.runs.trained_models import FoundModel
from pipeline.scoring import EventClassifier, features_of

SELECTION = FeatureSettings(particles=False)
EVENTS = [
    event_row(muons=[lepton(40.0, 0.3, 1.0)], jets=[jet(60.0, 0.1, -2.0)]),
    event_row(muons=[lepton(50.0, -1.3, 2.0)]),
]


def classifier(**reading: Any) -> EventClassifier:
    """A classifier whose model is never asked; `reading` changes how its events were read."""
    network: Any = None
    definitions = FeatureSettings(particles=False).model_dump(mode="json")
    reading = {"min_lepton_pt": 25.0, **reading}
    found = FoundModel(Candidate("hlf", network), ["QCD", "ttbar"], definitions, None, reading)
    return EventClassifier.from_model(found)


def test_files_of_another_kind_than_those_of_the_training_are_not_scored(tmp_path: Path) -> None:
    full = write_delphes(tmp_path / "full.root", [event_row()])
    bare = write_delphes(tmp_path / "bare.root", [event_row()], without=PARTICLE_BRANCHES)
    said: list[str] = []

    for of_training, other in ((full, bare), (bare, full)):
        model = classifier(has_particles=of_training == full)
        settings, infos = model.files([str(of_training)], said.append)
        assert [info.path for info in infos] == [str(of_training)]
        assert settings.min_lepton_pt == 25.0
        with pytest.raises(ConflictingFilesError, match=other.name):
            model.files([str(other)], said.append)
    earlier_release = classifier()
    for path in (full, bare):
        assert earlier_release.files([str(path)], said.append)[1]


def test_branches_of_any_name_are_kept(tmp_path: Path) -> None:
    more = {"weight_mc": np.array([0.5]), "met": np.array([np.nan])}
    path = write_delphes(tmp_path / "a.root", [event_row()], without=PARTICLE_BRANCHES, more=more)

    settings, infos = classifier().files([str(path)], str, keep=["weight_mc", "met"])

    (raw,) = read_events(infos[0], settings, start=0, stop=1)
    assert raw.pass_through["weight_mc"].tolist() == [0.5]
    assert np.isnan(raw.pass_through["met"]).all()
    assert raw.scalars["met"].tolist() == [50.0]


def test_a_data_frame_without_electrons_has_the_features_of_the_table() -> None:
    table = events_table(EVENTS)
    expected = hlf_array(features_of(table, SELECTION))

    # pandas has no types of lists: Arrow finds them in the candidates, of which there are none.
    features = features_of(table.to_pandas(), SELECTION)

    assert len(expected) == len(EVENTS)
    np.testing.assert_array_equal(hlf_array(features), expected)
    no_events = features_of(table.to_pandas().iloc[:0], SELECTION)
    assert no_events.num_rows == 0


def without(table: pa.Table, name: str) -> pa.Table:
    """A table without a column, or without a field of the candidates of a collection."""
    collection, _, field = name.partition(".")
    if not field:
        return table.drop_columns([name])
    rows = table[collection].to_pylist()
    for candidates in rows:
        for candidate in candidates:
            del candidate[field]
    index = table.schema.get_field_index(collection)
    return table.set_column(index, collection, pa.array(rows))


@pytest.mark.parametrize("name", ["photons", "met", "jets.btag"])
def test_events_without_a_column_or_field_are_refused_by_its_name(name: str) -> None:
    events = without(events_table(EVENTS), name)

    for score_or_compute in (classifier().scores, lambda table: features_of(table, SELECTION)):
        with pytest.raises(DatasetError, match=f"the events have no '{name}'"):
            score_or_compute(events)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("met", [None, 50.0]),
        ("jets", [None, []]),
        ("jets", [[None], []]),
        ("jets.pt", [[{**jet(60.0, 0.1, -2.0), "pt": None}], []]),
    ],
)
def test_events_with_empty_values_are_refused_by_their_column(name: str, values: list[Any]) -> None:
    table = events_table(EVENTS)
    collection, _, _ = name.partition(".")
    index = table.schema.get_field_index(collection)
    events = table.set_column(index, collection, pa.array(values))

    with pytest.raises(DatasetError, match=f"'{name}' of the events has 1 empty values"):
        features_of(events, SELECTION)


def test_a_record_batch_has_the_features_of_its_table() -> None:
    table = events_table(EVENTS)
    (batch,) = table.combine_chunks().to_batches()

    features = features_of(batch, SELECTION)

    assert features.equals(features_of(table, SELECTION))
    assert features.num_rows == len(EVENTS)


@pytest.mark.parametrize(
    "events",
    [
        EVENTS,
        dict.fromkeys(["met", "jets"], 1.0),
        ak.Array(EVENTS)[0],
        np.zeros((2, 14)),
        ak.Array([1.0, 2.0]),
        "events.parquet",
        None,
    ],
    ids=["list", "dict", "record", "matrix", "numbers", "path", "none"],
)
def test_events_that_are_no_table_are_refused_by_their_type(events: Any) -> None:
    type_name = type(events).__name__
    expected = (
        f"events are an awkward array of records, a pandas DataFrame, or an Arrow table or record "
        f"batch, not a {type_name}"
    )

    for score_or_compute in (classifier().scores, lambda table: features_of(table, SELECTION)):
        with pytest.raises(DatasetError, match=expected):
            score_or_compute(events)
