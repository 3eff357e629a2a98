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
    muon = lepton(40.0, 0.0, 0.0)
    events = []
    for entry, jets in enumerate([JETS, JETS, [], JETS]):
        events.append(event_row(entry=entry, muons=[muon], jets=jets, met=50.0, met_phi=1.0))
    path = tmp_path / "events.parquet"
    pq.write_table(events_table(events), path, row_group_size=3)
    return path


def identities(*entries: int) -> pa.Array:
    return pa.array([f"{UUID}:{entry}" for entry in entries])


def test_jets_cross_their_threshold_and_mt_follows_met(events_file: Path) -> None:
    shifts = [EnergyScales(1.02), EnergyScales(0.98), EnergyScales(met=1.1)]
    events = identities(3, 0)

    hlf_by_shift = shifted_features([events_file], events, FeatureSettings(), shifts)

    # Both events have the same particles.
    hlf_by_event = np.stack(hlf_by_shift, axis=-1)
    np.testing.assert_array_equal(hlf_by_event[0], hlf_by_event[1])
    shifted = dict(zip(hlf_names(), hlf_by_event[0], strict=True))
    # Jets of 29.5, 100 and 30.2 GeV and a threshold of 30 GeV; only the first is a b-jet.
    assert shifted["num_jets"].tolist() == [3, 1, 2]
    assert shifted["num_bjets"].tolist() == [1, 0, 0]
    expected_ht = [1.02 * (29.5 + 100 + 30.2), 0.98 * 100, 100 + 30.2]
    np.testing.assert_allclose(shifted["ht"], expected_ht, rtol=1e-6)
    expected_met = np.array([50, 50, 1.1 * 50])
    np.testing.assert_allclose(shifted["met"], expected_met, rtol=1e-6)
    expected_mt2 = 2 * 40 * expected_met * (1 - np.cos(1.0))
    np.testing.assert_allclose(shifted["mt"], np.sqrt(expected_mt2), rtol=1e-6)


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
