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


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare single-precision numbers with those that are computed in double precision."""
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_matrices_hold_the_columns_and_what_follows_from_them(dataset: FeatureDataset) -> None:
    table = pq.read_table(dataset.folder / "train")

    inputs = model_inputs(table, ["hlf", "particles", "num_particles"])

    for event, row in enumerate(table.to_pylist()):
        assert inputs["hlf"][event].tolist() == [row[name] for name in hlf_names()]
        count = row["num_particles"]
        matrix = inputs["particles"][event]
        columns = dict(zip(PARTICLE_FEATURE_NAMES, matrix[:count].T, strict=True))
        for name in PARTICLE_CORE:
            if name != "kind":
                assert columns[name].tolist() == row[f"particle_{name}"]
        pt = np.array(row["particle_pt"])
        eta = np.array(row["particle_eta"])
        phi = np.array(row["particle_phi"])
        assert_close(columns["px"], pt * np.cos(phi))
        assert_close(columns["py"], pt * np.sin(phi))
        assert_close(columns["pz"], pt * np.sinh(eta))
        assert_close(columns["energy"], pt * np.cosh(eta))
        names = ["is_charged_hadron", "is_photon", "is_neutral_hadron", "is_electron", "is_muon"]
        flags = np.stack([columns[name] for name in names])
        assert flags.argmax(axis=0).tolist() == row["particle_kind"]
        assert flags.sum(axis=0).tolist() == [1] * count
        assert not matrix[count:].any()


def test_a_slice_of_a_table_gives_a_slice_of_the_matrices(dataset: FeatureDataset) -> None:
    table = pq.read_table(dataset.folder / "train")
    # Rows 3 to 13.
    table_slice = table.slice(3, 11)
    (batch,) = table_slice.combine_chunks().to_batches()
    names = ["hlf", "particles"]

    inputs_of_table = model_inputs(table, names)
    inputs_of_slice = model_inputs(table_slice, names)
    inputs_of_batch = model_inputs(batch, names)

    for name in names:
        np.testing.assert_array_equal(inputs_of_slice[name], inputs_of_table[name][3:14])
        np.testing.assert_array_equal(inputs_of_batch[name], inputs_of_slice[name])


def test_a_missing_column_is_named(dataset: FeatureDataset) -> None:
    table = pq.read_table(dataset.files("val")[0])
    without_phi = table.drop(["particle_phi"])
    with_list_of_features = pa.table({"hlf": [[1.0]]})

    with pytest.raises(DatasetError, match="no column 'particle_phi'"):
        model_inputs(without_phi, ["particles"])
    with pytest.raises(DatasetError, match="no column 'ht'"):
        model_inputs(with_list_of_features, ["hlf"])


def test_pandas_and_awkward_read_a_split_by_name(dataset: FeatureDataset) -> None:
    folder = dataset.folder / "train"
    table = pq.read_table(folder)

    frame = pd.read_parquet(folder)
    array = ak.from_parquet(folder)

    for name in ("ht", "label"):
        column = table[name].to_pylist()
        assert frame[name].tolist() == column
        assert array[name].tolist() == column
    particle_counts = frame["particle_pt"].map(len)
    assert particle_counts.tolist() == ak.num(array.particle_pt).tolist()
    # The kind 0 is a charged hadron.
    hadron_pt = array.particle_pt[array.particle_kind == 0]
    matrices = model_inputs(table, ["particles"])["particles"]
    is_hadron = matrices[..., PARTICLE_FEATURE_NAMES.index("is_charged_hadron")]
    pt = matrices[..., PARTICLE_FEATURE_NAMES.index("pt")]
    expected_sums = (pt * is_hadron).sum(axis=1)
    np.testing.assert_allclose(ak.sum(hadron_pt, axis=1), expected_sums, rtol=1e-5)
