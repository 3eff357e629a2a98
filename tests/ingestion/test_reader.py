"""Reading entries and choosing events: made files with known content, real files against a plain
uproot loop."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import awkward as ak
import pytest
import uproot
from delphes_files import checked_files, select, write_delphes
from event_rows import Row, event_row, jet, lepton, tower, track

from ingestion.errors import WrongBranchTypeError
from ingestion.files import SourceFile
from ingestion.schema import COLLECTIONS, events_schema
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


def test_thresholds_are_strict_and_keep_the_rest_in_order(tmp_path: Path) -> None:
    event = event_row(
        electrons=[ELECTRON],
        tracks=[track(0.5, 0, 0), track(0.75, 0, 0), track(0.25, 0, 0), track(9.0, 0, 0)],
        photons=[tower(1.0, 0, 0), tower(1.25, 0, 0)],
        neutral_hadrons=[tower(1.5, 0, 0), tower(0.5, 0, 0)],
    )
    table = select(write_delphes(tmp_path / "a.root", [event])).table
    retained = {
        name: [c.get("pt", c.get("et")) for c in table[name][0].as_py()] for name in COLLECTIONS
    }
    assert (retained["tracks"], retained["photons"], retained["neutral_hadrons"]) == (
        [0.75, 9.0],
        [1.25],
        [1.5],
    )


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


BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda bad: {"tracks": [track(bad, 0, 0)]},
        lambda bad: {"tracks": [track(0.6, 0, 0, vertex=(0, bad, 0))]},
        lambda bad: {"photons": [tower(2.0, bad, 0)]},
        lambda bad: {"neutral_hadrons": [tower(2.0, 0, bad)]},
        lambda bad: {"jets": [jet(bad, 0, 0)]},
        lambda bad: {"muons": [lepton(1.0, bad, 0)]},
        lambda bad: {"met": bad},
        lambda bad: {"weight": bad},
    ],
)
def test_events_with_a_number_that_is_not_finite_are_rejected_and_counted(
    tmp_path: Path, bad: float, spoil: Any
) -> None:
    good = event_row(electrons=[ELECTRON])
    path = write_delphes(tmp_path / "a.root", [good, good | spoil(bad), good])

    selection = select(path)

    counts = selection.tally().counts
    (branch,) = [counter for counter in counts if counter.startswith("not_finite ")]
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
    counters = select(write_delphes(tmp_path / "a.root", [event_row(met=math.nan)])).tally().counts
    rejected = {"rejected_nonfinite": 1, "not_finite MissingET.MET": 1, "rejected_no_lepton": 0}
    assert counters == {"entries": 1, **rejected, "events": 0, **NONE_NEGATIVE}


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
    with pytest.raises(
        WrongBranchTypeError, match=r"'muons\.pt' and 'muons\.charge' have different numbers"
    ):
        select(write_delphes(tmp_path / "a.root", [event]), settings)


@pytest.mark.parametrize(
    ("kind_name", "value", "key"),
    [("int32", -1, "branch_map"), ("float32", 0.5, "min_btag"), ("int64", 2**33, "branch_map")],
)
def test_integers_that_would_change_are_refused(
    tmp_path: Path, kind_name: str, value: float, key: str
) -> None:
    event = event_row(electrons=[ELECTRON], jets=[jet(40, 0, 0, btag=1)])
    path = write_delphes(tmp_path / "a.root", [event], as_type={"Jet.BTag": (kind_name, value)})
    with pytest.raises(
        WrongBranchTypeError, match=rf"(?s){value}, but its field needs uint32.*ingest\.{key}"
    ):
        select(path)


@pytest.mark.parametrize(
    ("kind_name", "value", "expected"), [("bool", True, 1), ("int8", 3, 3), ("float64", 2.0, 2)]
)
def test_integers_of_other_types_are_taken(
    tmp_path: Path, kind_name: str, value: float, expected: int
) -> None:
    event = event_row(electrons=[ELECTRON], jets=[jet(40, 0, 0, btag=1)])
    path = write_delphes(tmp_path / "a.root", [event], as_type={"Jet.BTag": (kind_name, value)})
    assert select(path).table["jets"][0][0]["btag"].as_py() == expected


def test_nan_where_an_integer_belongs_rejects_the_event(tmp_path: Path) -> None:
    event = event_row(electrons=[ELECTRON], jets=[jet(40, 0, 0, btag=1)])
    path = write_delphes(tmp_path / "a.root", [event], as_type={"Jet.BTag": ("float32", math.nan)})
    assert select(path).tally().counts["rejected_nonfinite"] == 1


def test_a_real_file_against_a_plain_uproot_loop(ttbar_source: SourceFile) -> None:
    selection = select(Path(ttbar_source.path))
    with uproot.open(ttbar_source.path) as file:
        arrays = file["Delphes"].arrays(
            ["EFlowTrack.PT", "Electron.PT", "MuonTight.PT", "MissingET.MET"]
        )
    expected = [
        (entry, [pt for pt in event["EFlowTrack.PT"] if pt > 0.5], event["MissingET.MET"][0])
        for entry, event in enumerate(ak.to_list(arrays))
        if any(pt > 23 for pt in event["Electron.PT"] + event["MuonTight.PT"])
    ]
    rows = selection.table.to_pylist()
    assert [
        (row["entry"], [t["pt"] for t in row["tracks"]], row["met"]) for row in rows
    ] == expected


def test_azimuths_from_0_to_2_pi_give_the_table_of_those_from_minus_pi_to_pi(
    tmp_path: Path,
) -> None:
    """Bitwise where nothing is wrapped; the events with a wrapped azimuth are counted."""

    def row(met_phi: float, phi: float, turn: float) -> Row:
        return event_row(
            met_phi=met_phi + (turn if met_phi < 0 else 0.0),
            electrons=[lepton(40.0, 0.5, phi + (turn if phi < 0 else 0.0))],
            jets=[jet(40.0, 0.5, 3.1415927)],
        )

    azimuths = [(1.0, 2.0), (-1.0, 0.5), (1.5, -3.0), (-3.125, -0.25)]
    plain, turned = (
        select(
            write_delphes(tmp_path / f"{turn}.root", [row(*azimuth, turn) for azimuth in azimuths])
        )
        for turn in (0.0, 2 * math.pi)
    )
    assert plain.tally().counts["events_with_wrapped_azimuths"] == 0
    assert turned.tally().counts["events_with_wrapped_azimuths"] == 3
    for mine, theirs in zip(plain.table.to_pylist(), turned.table.to_pylist(), strict=True):
        assert theirs["met_phi"] == pytest.approx(mine["met_phi"], abs=5e-7)
        assert theirs["electrons"][0]["phi"] == pytest.approx(mine["electrons"][0]["phi"], abs=5e-7)
        assert theirs["jets"] == mine["jets"]


def test_azimuths_in_degrees_are_refused(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row(electrons=[lepton(40.0, 0.5, 90.0)])])
    with pytest.raises(
        WrongBranchTypeError, match=r"an azimuth of 'electrons' is 90; radians are needed"
    ):
        select(path)
