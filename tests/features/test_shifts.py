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
def events_file(tmp_path: Path) -> Path:
    """Four events with a muon; entry 2 has no jets."""
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
    path = tmp_path / "events.parquet"
    pq.write_table(events_table(events), path, row_group_size=3)
    return path


def identities(*entries: int) -> pa.Array:
    return pa.array([f"{UUID}:{entry}" for entry in entries])


def test_jets_cross_their_threshold_and_mt_follows_met(events_file: Path) -> None:
    shifts = [EnergyScales(1.02), EnergyScales(0.98), EnergyScales(met=1.1)]

    hlf = np.stack(
        shifted_features([events_file], identities(3, 0), FeatureSettings(), shifts), axis=-1
    )

    np.testing.assert_array_equal(hlf[0], hlf[1])
    shifted = dict(zip(hlf_names(), hlf[0], strict=True))
    mt = np.sqrt(2 * 40 * 50 * np.array([1, 1, 1.1]) * (1 - np.cos(1.0)))
    assert shifted["num_jets"].tolist() == [3, 1, 2]
    assert shifted["num_bjets"].tolist() == [1, 0, 0]
    np.testing.assert_allclose(shifted["ht"], [1.02 * 159.7, 98.0, 130.2], rtol=1e-6)
    np.testing.assert_allclose(shifted["mt"], mt, rtol=1e-6)
    np.testing.assert_allclose(shifted["met"], [50, 50, 55], rtol=1e-6)


@pytest.mark.parametrize(("scale", "fails"), [(1.0, [False, True, False]), (0.98, [True] * 3)])
def test_events_that_fail_the_selection_are_nan(
    events_file: Path, scale: float, fails: list[bool]
) -> None:
    settings = FeatureSettings(min_jets=2)

    (hlf,) = shifted_features([events_file], identities(1, 2, 0), settings, [EnergyScales(scale)])

    assert np.isnan(hlf).all(axis=1).tolist() == fails


def test_missing_events_are_refused(events_file: Path) -> None:
    with pytest.raises(DatasetError, match="1 of 2 events are not in the events Parquet"):
        shifted_features([events_file], identities(0, 9), FeatureSettings(), [EnergyScales()])
