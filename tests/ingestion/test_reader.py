"""Reading entries and selecting events, of files with known content and of a real file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import uproot
from delphes_files import checked_files, select, write_delphes
from event_rows import Row, event_row, jet, lepton, tower, track

from ingestion.errors import WrongBranchTypeError
from ingestion.files import SourceFile
from ingestion.schema import COLLECTIONS, events_schema
from ingestion.selection import Selection
from ingestion.settings import IngestSettings

ELECTRON = lepton(30.0, 0.5, 1.0)
NONE_NEGATIVE = {
    "events_of_negative_weight": 0,
    "rejected_copy": 0,
    "events_with_wrapped_azimuths": 0,
    "events_with_tagged_jets": 0,
    "events_with_untagged_jets": 0,
    "events_with_other_charges": 0,
}


def test_the_table_has_the_schema_and_the_identity(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row(electrons=[ELECTRON], weight=-2.0)])

    table = select(path).table

    assert table.schema.equals(events_schema())
    columns = json.loads(table.schema.metadata[b"columns"])
    assert columns["tracks"]["x"] == {"unit": "mm", "branch": "EFlowTrack.X"}
    assert columns["met"]["unit"] == "GeV"
    (row,) = table.select(["file_uuid", "entry", "sample", "label", "weight"]).to_pylist()
    assert row == {
        "file_uuid": checked_files(path)[0].uuid,
        "entry": 0,
        "sample": "made",
        "label": 0,
        "weight": -2.0,
    }


def test_every_value_arrives_where_it_belongs(tmp_path: Path) -> None:
    event = event_row(
        tracks=[track(0.75, 0.1, 0.2, charge=-1, pid=-13, vertex=(1.0, 2.0, 3.0))],
        photons=[tower(1.5, 0.3, 0.4)],
        neutral_hadrons=[tower(2.5, 0.5, 0.6)],
        electrons=[ELECTRON],
        muons=[lepton(5.0, -0.5, -1.0, charge=1)],
        jets=[jet(33.0, 1.5, 2.5, btag=5)],
        met=44.0,
        met_phi=-3.0,
    )

    (row,) = select(write_delphes(tmp_path / "a.root", [event])).table.to_pylist()

    for name in COLLECTIONS:
        assert row[name] == [pytest.approx(candidate) for candidate in event[name]], name
    assert (row["met"], row["met_phi"]) == (44.0, -3.0)


def test_thresholds_are_strict_and_leave_candidates_in_order(tmp_path: Path) -> None:
    event = event_row(
        electrons=[ELECTRON],
        tracks=[track(0.5, 0, 0), track(0.75, 0, 0), track(0.25, 0, 0), track(9.0, 0, 0)],
        photons=[tower(1.0, 0, 0), tower(1.25, 0, 0)],
        neutral_hadrons=[tower(1.5, 0, 0), tower(0.5, 0, 0)],
    )

    events = ak.from_arrow(select(write_delphes(tmp_path / "a.root", [event])).table)

    assert events["tracks", "pt"].to_list() == [[0.75, 9.0]]
    assert events["photons", "et"].to_list() == [[1.25]]
    assert events["neutral_hadrons", "et"].to_list() == [[1.5]]


def test_events_without_a_lepton_above_threshold_are_dropped_and_counted(tmp_path: Path) -> None:
    events = [
        event_row(electrons=[lepton(23.0, 0, 0)]),
        event_row(muons=[lepton(23.5, 0, 0)]),
        event_row(),
        event_row(electrons=[lepton(3.0, 0, 0), ELECTRON]),
    ]

    selection = select(write_delphes(tmp_path / "a.root", events))

    assert selection.tally().counts == {
        "entries": 4,
        "rejected_nonfinite": 0,
        "rejected_no_lepton": 2,
        "events": 2,
        **NONE_NEGATIVE,
    }
    assert selection.table["entry"].to_pylist() == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "fields_with",
    [
        lambda value: {"tracks": [track(value, 0, 0)]},
        lambda value: {"tracks": [track(0.6, 0, 0, vertex=(0, value, 0))]},
        lambda value: {"photons": [tower(2.0, value, 0)]},
        lambda value: {"neutral_hadrons": [tower(2.0, 0, value)]},
        lambda value: {"jets": [jet(value, 0, 0)]},
        lambda value: {"muons": [lepton(1.0, value, 0)]},
        lambda value: {"met": value},
        lambda value: {"weight": value},
    ],
)
def test_events_with_a_number_that_is_not_finite_are_rejected_and_counted(
    tmp_path: Path, value: float, fields_with: Callable[[float], Row]
) -> None:
    good = event_row(electrons=[ELECTRON])
    path = write_delphes(tmp_path / "a.root", [good, good | fields_with(value), good])

    selection = select(path)

    counts = selection.tally().counts
    (branch,) = (counter for counter in counts if counter.startswith("not_finite "))
    assert counts == {
        "entries": 3,
        "rejected_nonfinite": 1,
        branch: 1,
        "rejected_no_lepton": 0,
        "events": 2,
        **NONE_NEGATIVE,
    }
    assert selection.table["entry"].to_pylist() == [0, 2]


def test_an_event_that_fails_both_cuts_is_counted_once(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row(met=math.nan)])

    counts = select(path).tally().counts

    rejected = {"rejected_nonfinite": 1, "not_finite MissingET.MET": 1, "rejected_no_lepton": 0}
    assert counts == {"entries": 1, **rejected, "events": 0, **NONE_NEGATIVE}


def test_a_missing_weight_becomes_one(tmp_path: Path) -> None:
    event = event_row(electrons=[ELECTRON], weight=7.0)
    path = write_delphes(tmp_path / "a.root", [event], without=["Event.Weight"])

    assert select(path).table["weight"].to_pylist() == [1.0]


def test_a_scalar_where_a_list_is_needed_is_named(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row(electrons=[ELECTRON])], flat_scalars=True)
    settings = IngestSettings(branch_map={"muons.pt": "MissingET.MET"})

    with pytest.raises(
        WrongBranchTypeError, match=r"branch 'MissingET\.MET' holds 'float32' per event.*branch_map"
    ):
        select(path, settings)


def test_branches_of_different_length_are_named(tmp_path: Path) -> None:
    event = event_row(electrons=[ELECTRON], muons=[], jets=[jet(1, 2, 3)])
    settings = IngestSettings(branch_map={"muons.charge": "Jet.BTag"})
    path = write_delphes(tmp_path / "a.root", [event])

    with pytest.raises(
        WrongBranchTypeError, match=r"'muons\.pt' and 'muons\.charge' have different numbers"
    ):
        select(path, settings)


def write_btag(path: Path, dtype: str, value: float) -> Path:
    """Write an event with a jet whose b-tag has this type and value; returns the path."""
    event = event_row(electrons=[ELECTRON], jets=[jet(40, 0, 0, btag=1)])
    return write_delphes(path, [event], as_type={"Jet.BTag": (dtype, value)})


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", -1), ("int64", 2**33), ("float32", -1.0), ("float32", 0.5)],
)
def test_b_tags_that_are_no_bits_are_refused_and_a_threshold_reads_them(
    tmp_path: Path, dtype: str, value: float
) -> None:
    path = write_btag(tmp_path / "a.root", dtype, value)

    message = rf"(?s){value}, but its field needs uint32.*ingest\.branch_map.*ingest\.min_btag"
    with pytest.raises(WrongBranchTypeError, match=message):
        select(path)

    with_threshold = select(path, IngestSettings(min_btag=0))
    assert with_threshold.table["jets"][0][0]["btag"].as_py() == int(value > 0)


def test_a_charge_that_is_no_integer_is_refused_without_a_word_of_b_tags(tmp_path: Path) -> None:
    event = event_row(electrons=[ELECTRON])
    path = write_delphes(
        tmp_path / "a.root", [event], as_type={"Electron.Charge": ("float32", 0.5)}
    )

    with pytest.raises(WrongBranchTypeError, match=r"charge' holds 0\.5") as error:
        select(path)

    assert "btag" not in str(error.value)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"), [("bool", True, 1), ("int8", 3, 3), ("float64", 2.0, 2)]
)
def test_integers_of_other_types_are_read(
    tmp_path: Path, dtype: str, value: float, expected: int
) -> None:
    path = write_btag(tmp_path / "a.root", dtype, value)

    assert select(path).table["jets"][0][0]["btag"].as_py() == expected


def test_nan_where_an_integer_belongs_rejects_the_event(tmp_path: Path) -> None:
    path = write_btag(tmp_path / "a.root", "float32", math.nan)

    assert select(path).tally().counts["rejected_nonfinite"] == 1


def test_a_real_file_against_a_plain_uproot_loop(ttbar_source: SourceFile) -> None:
    branches = ["EFlowTrack.PT", "Electron.PT", "MuonTight.PT", "MissingET.MET"]
    with uproot.open(ttbar_source.path) as file:
        arrays = file["Delphes"].arrays(branches)
    lepton_pt = ak.concatenate([arrays["Electron.PT"], arrays["MuonTight.PT"]], axis=1)
    has_lepton = ak.any(lepton_pt > 23, axis=1)
    track_pt = arrays["EFlowTrack.PT"][has_lepton]

    events = ak.from_arrow(select(Path(ttbar_source.path)).table)

    assert events["entry"].to_list() == np.flatnonzero(has_lepton).tolist()
    assert events["tracks", "pt"].to_list() == track_pt[track_pt > 0.5].to_list()
    assert events["met"].to_list() == ak.flatten(arrays["MissingET.MET"][has_lepton]).to_list()


def test_azimuths_from_0_to_2_pi_give_the_table_of_those_from_minus_pi_to_pi(
    tmp_path: Path,
) -> None:
    """Bitwise where nothing is wrapped; the events with a wrapped azimuth are counted."""
    # Azimuths of MET and of the lepton.
    azimuths = np.array([(1.0, 2.0), (-1.0, 0.5), (1.5, -3.0), (-3.125, -0.25)])

    def select_events(name: str, angles: np.ndarray) -> Selection:
        rows = []
        for met_phi, phi in angles:
            electron, boundary_jet = lepton(40.0, 0.5, phi), jet(40.0, 0.5, 3.1415927)
            rows.append(event_row(met_phi=met_phi, electrons=[electron], jets=[boundary_jet]))
        return select(write_delphes(tmp_path / name, rows))

    signed = select_events("signed.root", azimuths)
    positive = select_events("positive.root", azimuths % (2 * math.pi))

    assert signed.tally().counts["events_with_wrapped_azimuths"] == 0
    assert positive.tally().counts["events_with_wrapped_azimuths"] == 3
    wrapped, expected = ak.from_arrow(positive.table), ak.from_arrow(signed.table)
    np.testing.assert_allclose(wrapped["met_phi"], expected["met_phi"], atol=5e-7)
    np.testing.assert_allclose(wrapped["electrons", "phi"], expected["electrons", "phi"], atol=5e-7)
    assert wrapped["jets"].to_list() == expected["jets"].to_list()


def test_azimuths_in_degrees_are_refused(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row(electrons=[lepton(40.0, 0.5, 90.0)])])

    with pytest.raises(
        WrongBranchTypeError, match=r"an azimuth of 'electrons' is 90; radians are needed"
    ):
        select(path)
