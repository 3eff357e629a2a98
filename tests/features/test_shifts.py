"""High-level features after a shift of an energy scale, against numbers found by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_rows import event_row, events_table, jet, lepton

from features.columns import hlf_names
from features.errors import DatasetError
from features.kernels import EnergyScales
from features.settings import FeatureSettings
from features.shifts import shifted_features

UUID = "00000000-0000-0000-0000-000000000000"
JETS = [jet(29.5, 0.0, 3.0, btag=1), jet(100.0, 1.0, 2.0), jet(30.2, -1.0, -2.0)]


@pytest.fixture
def part(tmp_path: Path) -> Path:
    events = [
        event_row(
            entry=entry,
            muons=[lepton(40.0, 0.0, 0.0)],
            jets=JETS if entry != 2 else [],
            met=50.0,
            met_phi=1.0,
        )
        for entry in range(4)
    ]
    path = tmp_path / "part.parquet"
    pq.write_table(events_table(events), path, row_group_size=3)
    return path


def identities(*entries: int) -> pa.Array:
    return pa.array([f"{UUID}:{entry}" for entry in entries])


def test_jets_cross_their_threshold_and_met_carries_mt_along(part: Path) -> None:
    up, down, met = (EnergyScales(1.02), EnergyScales(0.98), EnergyScales(met=1.1))
    results = shifted_features([part], identities(3, 0), FeatureSettings(), [up, down, met])
    by_name = [dict(zip(hlf_names(), rows[0], strict=True)) for rows in results]
    assert [each["num_jets"] for each in by_name] == [3, 1, 2]
    assert [each["num_bjets"] for each in by_name] == [1, 0, 0]
    np.testing.assert_allclose(
        [each["ht"] for each in by_name], [1.02 * 159.7, 98.0, 130.2], rtol=1e-6
    )
    mt = np.sqrt(2 * 40 * 50 * np.array([1, 1, 1.1]) * (1 - np.cos(1.0)))
    np.testing.assert_allclose([each["mt"] for each in by_name], mt, rtol=1e-6)
    np.testing.assert_allclose([each["met"] for each in by_name], [50, 50, 55], rtol=1e-6)
    for rows in results:
        np.testing.assert_array_equal(rows[0], rows[1])


def test_events_that_no_longer_pass_are_not_numbers_and_the_order_is_that_of_the_rows(
    part: Path,
) -> None:
    settings = FeatureSettings(min_jets=2)
    (actual,) = shifted_features([part], identities(1, 2, 0), settings, [EnergyScales()])
    assert np.isnan(actual).all(axis=1).tolist() == [False, True, False]
    (down,) = shifted_features([part], identities(1), settings, [EnergyScales(0.98)])
    assert np.isnan(down).all()


def test_events_that_are_not_there_are_refused(part: Path) -> None:
    with pytest.raises(DatasetError, match="1 of 2 events are not in the events Parquet"):
        shifted_features([part], identities(0, 9), FeatureSettings(), [EnergyScales()])
