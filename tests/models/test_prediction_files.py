"""Predictions as ROOT files, read back with uproot and joined to where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import awkward as ak
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot
from prediction_trees import read_root

from models.errors import ModelError, ModelInputError
from models.prediction_files import probability_branches, write_parquet, write_root

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
CLASSES = ["QCD", "ttbar", "W+jets"]


def made(uuids: list[str], *, seed: int = 1) -> pa.Table:
    """Predictions of an event of each UUID, entries shuffled."""
    rng = np.random.default_rng(seed)
    num_events = len(uuids)
    scores = rng.dirichlet([1, 1, 1], num_events).astype(np.float32)
    samples = [f"sample {seed}"] * num_events
    return pa.table(
        {
            "file_uuid": pa.array(uuids, pa.string()),
            "sample": pa.array(samples, pa.string()),
            "entry": rng.permutation(num_events),
            "label": rng.integers(0, 3, num_events),
            "weight": rng.normal(1, 1, num_events),
            "probability": pa.array(list(scores), pa.list_(pa.float32())),
        }
    )


@pytest.fixture
def predictions() -> pa.Table:
    rng = np.random.default_rng(2)
    uuids_of_files = [str(UUID(bytes=rng.bytes(16))) for _ in range(3)]
    file_of_event = rng.integers(0, 3, 250)
    return made([uuids_of_files[index] for index in file_of_event])


@pytest.mark.parametrize("chunk_rows", [1, 40, 250, 10_000])
def test_what_is_written_in_chunks_is_read_back_whole(
    tmp_path: Path, predictions: pa.Table, chunk_rows: int
) -> None:
    some = predictions.slice(0, 60) if chunk_rows == 1 else predictions

    write_root(some, CLASSES, tmp_path / "a.root", chunk_rows=chunk_rows)

    back = read_root(tmp_path / "a.root")
    assert back.schema == some.schema
    assert back.to_pylist() == some.to_pylist()
    assert [path.name for path in tmp_path.iterdir()] == ["a.root"]


def test_the_tree_says_all_of_each_event(tmp_path: Path, predictions: pa.Table) -> None:
    write_root(predictions, CLASSES, tmp_path / "a.root", chunk_rows=100)

    with uproot.open(tmp_path / "a.root") as file:
        assert file.classnames() == {"predictions;1": "TTree"}
        tree = file["predictions"]
        assert tree.title == '["QCD", "ttbar", "W+jets"]'
        assert tree.typenames() == {
            "file_uuid": "char*",
            "sample": "char*",
            "file_uuid_high": "uint64_t",
            "file_uuid_low": "uint64_t",
            "entry": "int64_t",
            "label": "int64_t",
            "weight": "double",
            "predicted": "int64_t",
            "probability_QCD": "float",
            "probability_ttbar": "float",
            "probability_Wjets": "float",
        }
        columns = tree.arrays(library="np")
    scores = np.stack(predictions["probability"].to_numpy())
    np.testing.assert_array_equal(columns["predicted"], scores.argmax(axis=1))
    np.testing.assert_array_equal(columns["probability_Wjets"], scores[:, 2])
    np.testing.assert_array_equal(columns["weight"], predictions["weight"].to_numpy())


def test_it_joins_to_the_parquet_predictions_and_to_the_root_files_of_the_events(
    tmp_path: Path,
) -> None:
    sources = sorted(SAMPLES.glob("*_0.root"))
    uuids = []
    for source in sources:
        with uproot.open(source) as file:
            uuids.append(str(file.file.uuid))
    tables = [made([uuid] * 50, seed=seed) for seed, uuid in enumerate(uuids)]
    predictions = pa.concat_tables(tables)

    write_parquet(predictions, CLASSES, tmp_path / "p.parquet")
    write_root(predictions, CLASSES, tmp_path / "p.root", chunk_rows=70)

    with uproot.open(tmp_path / "p.root") as file:
        root_rows = file["predictions"].arrays()
    parquet_rows = {}
    for row in pq.read_table(tmp_path / "p.parquet").to_pylist():
        parquet_rows[row["file_uuid"], row["entry"]] = row
    assert len(root_rows) == 150
    assert len(parquet_rows) == 150
    common = [*probability_branches(CLASSES), "predicted", "label", "weight", "sample"]
    for row in root_rows.to_list():
        parquet_row = parquet_rows[row["file_uuid"], row["entry"]]
        for name in common:
            assert row[name] == parquet_row[name]
        uuid_of_halves = (row["file_uuid_high"] << 64) + row["file_uuid_low"]
        assert uuid_of_halves == UUID(row["file_uuid"]).int
    # As the documentation of `write_root` joins.
    for source in sources:
        with uproot.open(source) as events:
            selected = root_rows[root_rows.file_uuid == str(events.file.uuid)]
            assert sorted(selected.entry.to_list()) == list(range(50))
            met = events["Delphes/MissingET/MissingET.MET"].array()
            assert ak.num(met[selected.entry]).to_list() == [1] * 50


def test_parquet_says_in_its_metadata_what_its_columns_are(
    tmp_path: Path, predictions: pa.Table
) -> None:
    branches = probability_branches(CLASSES)
    no_predictions = predictions.slice(0, 0)

    write_parquet(predictions, CLASSES, tmp_path / "a.parquet")
    write_parquet(no_predictions, CLASSES, tmp_path / "none.parquet")

    table = pq.read_table(tmp_path / "a.parquet")
    event_columns = ["file_uuid", "sample", "entry", "label", "weight", "predicted"]
    assert table.column_names == [*event_columns, *branches]
    probabilities = np.stack([table[branch].to_numpy() for branch in branches], axis=1)
    expected = np.stack(predictions["probability"].to_numpy())
    np.testing.assert_array_equal(probabilities, expected)
    metadata = pq.read_metadata(tmp_path / "a.parquet").metadata
    assert json.loads(metadata[b"classes"]) == CLASSES
    document = json.loads(metadata[b"columns"])
    assert list(document) == ["predicted", *branches]
    assert document["probability_Wjets"]["definition"].startswith("probability of W+jets")
    assert pq.read_schema(tmp_path / "none.parquet").equals(table.schema)


def test_a_file_without_events_is_a_file(tmp_path: Path, predictions: pa.Table) -> None:
    write_root(predictions.slice(0, 0), CLASSES, tmp_path / "a.root")
    back = read_root(tmp_path / "a.root")
    assert back.num_rows == 0
    assert back.schema == predictions.schema


def test_an_older_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, predictions: pa.Table
) -> None:
    path = tmp_path / "a:b.root"
    lists = [[0.5, 0.25, 0.25]] * 249 + [[0.5, 0.5]]
    probabilities = pa.array(lists, pa.list_(pa.float32()))
    damaged = predictions.set_column(5, "probability", probabilities)

    write_root(predictions, CLASSES, path)
    write_root(predictions.slice(0, 10), CLASSES, path)

    assert read_root(path).num_rows == 10
    with pytest.raises(ModelInputError, match="probability has lists of different lengths"):
        write_root(damaged, CLASSES, path, chunk_rows=100)
    assert read_root(path).num_rows == 10


@pytest.mark.parametrize(
    "classes", [["W+jets", "W-jets"], ["Wjets", "W jets"], ["QCD", "+"], ["QCD", "QCD"]]
)
def test_classes_that_root_cannot_tell_apart_are_refused(
    tmp_path: Path, predictions: pa.Table, classes: list[str]
) -> None:
    with pytest.raises(ModelError, match="need different branch names in ROOT"):
        write_root(predictions, classes, tmp_path / "a.root")
    assert list(tmp_path.iterdir()) == []
