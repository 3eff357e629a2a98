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
    scores = rng.dirichlet([1, 1, 1], len(uuids)).astype(np.float32)
    return pa.table(
        {
            "file_uuid": pa.array(uuids, pa.string()),
            "sample": pa.array([f"sample {seed}"] * len(uuids), pa.string()),
            "entry": rng.permutation(len(uuids)),
            "label": rng.integers(0, 3, len(uuids)),
            "weight": rng.normal(1, 1, len(uuids)),
            "probability": pa.array(list(scores), pa.list_(pa.float32())),
        }
    )


@pytest.fixture
def predictions() -> pa.Table:
    rng = np.random.default_rng(2)
    uuids = [str(UUID(bytes=rng.bytes(16))) for _ in range(3)]
    return made([uuids[index] for index in rng.integers(0, 3, 250)])


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
            **dict.fromkeys(["file_uuid", "sample"], "char*"),
            **dict.fromkeys(["file_uuid_high", "file_uuid_low"], "uint64_t"),
            **dict.fromkeys(["entry", "label"], "int64_t"),
            "weight": "double",
            "predicted": "int64_t",
            **dict.fromkeys(["probability_QCD", "probability_ttbar", "probability_Wjets"], "float"),
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
    predictions = pa.concat_tables(
        [made([uuid] * 50, seed=seed) for seed, uuid in enumerate(uuids)]
    )
    write_parquet(predictions, CLASSES, tmp_path / "p.parquet")
    write_root(predictions, CLASSES, tmp_path / "p.root", chunk_rows=70)
    with uproot.open(tmp_path / "p.root") as file:
        rows = file["predictions"].arrays()
    parquet = {
        (row["file_uuid"], row["entry"]): row
        for row in pq.read_table(tmp_path / "p.parquet").to_pylist()
    }
    assert len(parquet) == len(rows) == 150
    for row in rows.to_list():
        match = parquet[row["file_uuid"], row["entry"]]
        same = [*probability_branches(CLASSES), "predicted", "label", "weight", "sample"]
        assert {name: row[name] for name in same} == {name: match[name] for name in same}
        assert (row["file_uuid_high"] << 64) + row["file_uuid_low"] == UUID(row["file_uuid"]).int
    # As the documentation of `write_root` joins.
    for source in sources:
        with uproot.open(source) as events:
            selected = rows[rows.file_uuid == str(events.file.uuid)]
            assert sorted(selected.entry.to_list()) == list(range(50))
            met = events["Delphes/MissingET/MissingET.MET"].array()[selected.entry]
            assert ak.num(met).to_list() == [1] * 50


def test_parquet_says_in_its_metadata_what_its_columns_are(
    tmp_path: Path, predictions: pa.Table
) -> None:
    write_parquet(predictions, CLASSES, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == [
        "file_uuid", "sample", "entry", "label", "weight", "predicted", *probability_branches(CLASSES)
    ]  # fmt: skip
    np.testing.assert_array_equal(
        np.stack([table[name].to_numpy() for name in probability_branches(CLASSES)], axis=1),
        np.stack(predictions["probability"].to_numpy()),
    )
    metadata = pq.read_metadata(tmp_path / "a.parquet").metadata
    assert json.loads(metadata[b"classes"]) == CLASSES
    document = json.loads(metadata[b"columns"])
    assert list(document) == ["predicted", *probability_branches(CLASSES)]
    assert document["probability_Wjets"]["definition"].startswith("probability of W+jets")
    write_parquet(predictions.slice(0, 0), CLASSES, tmp_path / "none.parquet")
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
    write_root(predictions, CLASSES, path)
    write_root(predictions.slice(0, 10), CLASSES, path)
    assert read_root(path).num_rows == 10
    lists = [[0.5, 0.25, 0.25]] * 249 + [[0.5, 0.5]]
    damaged = predictions.set_column(5, "probability", pa.array(lists, pa.list_(pa.float32())))
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
