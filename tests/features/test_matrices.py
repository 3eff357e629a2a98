"""The columns of the features Parquet and the matrices that are made from them."""

from __future__ import annotations

import awkward as ak
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feature_datasets import write_dataset

from features.columns import PARTICLE_CORE, PARTICLE_FEATURE_NAMES, hlf_names
from features.dataset import FeatureDataset
from features.errors import DatasetError
from features.matrices import model_inputs


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(
        tmp_path_factory.mktemp("matrices") / "data",
        rows={"train": [9, 8], "val": [3], "test": [3]},
    )


def test_matrices_hold_the_columns_and_what_follows_from_them(dataset: FeatureDataset) -> None:
    table = pq.read_table(dataset.folder / "train")
    created = model_inputs(table, ["hlf", "particles", "num_particles"])
    for event, row in enumerate(table.to_pylist()):
        assert created["hlf"][event].tolist() == [row[name] for name in hlf_names()]
        count = row["num_particles"]
        actual = dict(
            zip(PARTICLE_FEATURE_NAMES, created["particles"][event, :count].T, strict=True)
        )
        for name in PARTICLE_CORE:
            if name != "kind":
                assert actual[name].tolist() == row[f"particle_{name}"]
        pt, eta, phi = (np.array(row[f"particle_{name}"]) for name in ("pt", "eta", "phi"))
        expected = {
            "px": pt * np.cos(phi),
            "py": pt * np.sin(phi),
            "pz": pt * np.sinh(eta),
            "energy": pt * np.cosh(eta),
        }
        for name, values in expected.items():
            np.testing.assert_allclose(actual[name], values, rtol=1e-6, atol=1e-6)
        flags = ["is_charged_hadron", "is_photon", "is_neutral_hadron", "is_electron", "is_muon"]
        assert np.argmax([actual[name] for name in flags], axis=0).tolist() == row["particle_kind"]
        assert np.sum([actual[name] for name in flags], axis=0).tolist() == [1] * count
        assert not created["particles"][event, count:].any()


def test_a_slice_of_a_table_gives_a_slice_of_the_matrices(dataset: FeatureDataset) -> None:
    table = pq.read_table(dataset.folder / "train")
    complete = model_inputs(table, ["hlf", "particles"])
    chunk = model_inputs(table.slice(3, 11), ["hlf", "particles"])
    (batch,) = table.slice(3, 11).combine_chunks().to_batches()
    for name, values in chunk.items():
        np.testing.assert_array_equal(values, complete[name][3:14])
        np.testing.assert_array_equal(model_inputs(batch, [name])[name], values)


def test_a_missing_column_is_named(dataset: FeatureDataset) -> None:
    table = pq.read_table(dataset.files("val")[0])
    with pytest.raises(DatasetError, match="no column 'particle_phi'"):
        model_inputs(table.drop(["particle_phi"]), ["particles"])
    with pytest.raises(DatasetError, match="no column 'ht'"):
        model_inputs(pa.table({"hlf": [[1.0]]}), ["hlf"])


def test_pandas_and_awkward_read_a_split_by_name(dataset: FeatureDataset) -> None:
    folder = dataset.folder / "train"
    frame, array = pd.read_parquet(folder), ak.from_parquet(folder)
    table = pq.read_table(folder)
    for name in ("ht", "label"):
        assert frame[name].tolist() == array[name].tolist() == table[name].to_pylist()
    assert [len(lists) for lists in frame["particle_pt"]] == ak.num(array.particle_pt).tolist()
    hadrons = ak.sum(array.particle_pt[array.particle_kind == 0], axis=1)
    matrices = model_inputs(table, ["particles"])["particles"]
    is_track = matrices[..., PARTICLE_FEATURE_NAMES.index("is_charged_hadron")] == 1
    expected = (matrices[..., PARTICLE_FEATURE_NAMES.index("pt")] * is_track).sum(axis=1)
    np.testing.assert_allclose(hadrons, expected, rtol=1e-5)
