"""Column statistics: merging equals one pass."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
import torch
from extracted_features import particles_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import StandardScaler

from features.columns import INPUT_COLUMNS
from features.kernels import build_features
from features.scaling import ColumnStatistics, scaler_json
from features.settings import FeatureSettings
from ingestion.file_info import FileInfo
from ingestion.reader import read_events
from ingestion.selection import select_events
from ingestion.settings import IngestSettings
from models.networks.scaling_layer import Scaler, Standardize

numbers = st.floats(-1e3, 1e3)
blocks = st.integers(0, 8).flatmap(lambda rows: arrays(np.float64, (rows, 3), elements=numbers))
lists_of_blocks = st.lists(blocks, min_size=1, max_size=5)


@given(lists_of_blocks)
def test_merging_blocks_from_either_end_equals_one_pass(rows_by_block: list[np.ndarray]) -> None:
    one_pass = ColumnStatistics.from_rows(np.concatenate(rows_by_block))
    statistics = [ColumnStatistics.from_rows(rows) for rows in rows_by_block]

    merged_forwards = reduce(ColumnStatistics.merge, statistics)
    merged_backwards = reduce(ColumnStatistics.merge, reversed(statistics))

    for merged in (merged_forwards, merged_backwards):
        assert merged.rows == one_pass.rows
        np.testing.assert_allclose(merged.mean, one_pass.mean, atol=1e-9)
        np.testing.assert_allclose(merged.m2, one_pass.m2, atol=1e-6)


def test_mean_and_deviation_equal_those_of_scikit_learn() -> None:
    rows = np.random.default_rng(1).normal(5, 3, (1000, 4))
    expected = StandardScaler().fit(rows)

    statistics = ColumnStatistics.from_rows(rows)

    np.testing.assert_allclose(statistics.mean, expected.mean_)
    np.testing.assert_allclose(statistics.std, expected.scale_)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e6])
def test_a_constant_column_gets_a_std_of_one(value: float) -> None:
    statistics = ColumnStatistics.from_rows(np.full((1000, 1), value))

    assert statistics.std.tolist() == [1.0]


def test_a_logarithmic_column_has_the_statistics_of_its_logarithm() -> None:
    rng = np.random.default_rng(4)
    magnitudes = 10.0 ** rng.uniform(-3, 5, (100, 2))
    rows = rng.normal(size=(100, 2)) * magnitudes
    logarithmic = np.arcsinh(rows[:, 0] / 0.1)
    expected = np.stack([logarithmic, rows[:, 1]], axis=1)

    statistics = ColumnStatistics.from_rows(rows, [0.1, 0.0])

    np.testing.assert_allclose(statistics.mean, expected.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(statistics.std, expected.std(axis=0), rtol=1e-9)


def test_displaced_tracks_are_visible_to_networks_and_no_value_is_too_large(
    bundled_files: list[FileInfo],
) -> None:
    """On a linear scale a vertex at 0.1 mm is 0.004, since the deviation is 25 mm."""
    column = INPUT_COLUMNS["particles"]
    particles_by_file = []
    for info in bundled_files[::2]:
        (raw,) = read_events(info, IngestSettings(), start=0, stop=60)
        events = select_events(raw, info, IngestSettings()).table
        particles_by_file.append(particles_of(build_features(events, FeatureSettings())))
    particles = np.concatenate(particles_by_file)
    statistics = ColumnStatistics.from_rows(particles, column.log_above)
    layer = Standardize(Scaler.from_json(scaler_json(statistics, column)))
    vertex_x = column.names.index("vertex_x")
    displaced = torch.zeros(4, 19)
    displaced[:, vertex_x] = torch.tensor([0.0, 0.1, 1.0, 5.0])

    steps = layer(displaced)[:, vertex_x].diff()
    scaled = layer(torch.from_numpy(particles)).abs()

    assert ColumnStatistics.from_rows(particles).std[vertex_x] > 15
    assert (steps > 0.5).all()
    is_flag = torch.tensor([name.startswith("is_") for name in column.names])
    assert float(scaled[:, ~is_flag].max()) < 9.99, "the limit is for rarer values"
    assert float(scaled.max()) <= 10
