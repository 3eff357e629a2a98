"""Layouts of files from the field: names, counters, types, padding.

Each is read right, or refused by name.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import awkward as ak
import delphes_files
import numpy as np
import pytest
import uproot
from delphes_files import columns_of, kinds_of, write_delphes
from event_rows import event_row, jet, lepton, tower, track

from hep_core.input_errors import DamagedFileError, InputFileError
from ingestion.errors import ConflictingFilesError, MissingBranchError, WrongBranchTypeError
from ingestion.files import Inventory, expand, inventory
from ingestion.layout import BranchNames, field_sources
from ingestion.notes import notes
from ingestion.selection import Selection
from ingestion.settings import IngestSettings, SampleSettings

DATA: Final = Path(__file__).resolve().parents[1] / "data"
#: Two jets in the first event, one in the second.
EVENTS: Final = [
    event_row(
        electrons=[lepton(40.0, 0.5, 1.0)], jets=[jet(90.0, 0.1, 0.2, btag=1), jet(50.0, 1.1, 1.2)]
    ),
    event_row(electrons=[lepton(41.0, 0.5, 1.0)], jets=[jet(70.0, 2.1, 2.2)]),
]


def check(*paths: Path, settings: IngestSettings | None = None) -> Inventory:
    """Check the files of a sample."""
    sample = SampleSettings(name="made", label=0, files=[str(path) for path in paths])
    return inventory(expand([sample]), settings or IngestSettings())


def select(path: Path, **settings: Any) -> Selection:
    return delphes_files.select(path, IngestSettings(**settings))


def jet_pts(selection: Selection) -> list[list[float]]:
    pts: list[list[float]] = ak.from_arrow(selection.table)["jets", "pt"].to_list()
    return pts


def write_snapshot(path: Path, changes: Mapping[str, Any], **options: Any) -> Path:
    """Write `EVENTS` with underscores in names, as a Snapshot has, and some branches replaced."""
    names = {name: name.replace(".", "_") for name in columns_of(EVENTS)}
    return write_delphes(path, EVENTS, rename=names, more=changes, flat_scalars=True, **options)


def jets_in_slots(fill: float, *, stale: bool = False) -> dict[str, Any]:
    """Jets in four slots; the empty ones hold `fill`, or values of earlier events."""
    slots = {
        "PT": [[90.0, 50.0, fill, fill], [70.0, fill, fill, fill]],
        "Eta": [[0.1, 1.1, fill, fill], [2.1, fill, fill, fill]],
        "Phi": [[0.2, 1.2, fill, fill], [2.2, fill, fill, fill]],
    }
    branches = {"Jet_BTag": np.array([[1, 0, 0, 0], [0, 0, 0, 0]], "i4")}
    for name, rows in slots.items():
        values = np.array(rows, "f4")
        if stale:
            values[1, 1] = values[0, 1]
        branches[f"Jet_{name}"] = values
    return branches


COUNTS: Final = np.array([2, 1], "i4")
TWO_AND_ONE: Final = [[90.0, 50.0], [70.0]]


@pytest.mark.parametrize("name", ["nJet", "njets", "Jet_size"])
def test_slots_behind_the_counter_are_no_jets(tmp_path: Path, name: str) -> None:
    path = write_snapshot(tmp_path / "a.root", {**jets_in_slots(0, stale=True), name: COUNTS})

    assert jet_pts(select(path)) == TWO_AND_ONE


@pytest.mark.parametrize(
    "counts", [COUNTS, COUNTS.astype("u1"), COUNTS.astype("f8"), COUNTS.astype("i8")[:, None]]
)
def test_a_counter_of_any_name_and_type_is_mapped(tmp_path: Path, counts: Any) -> None:
    branches = {**jets_in_slots(0, stale=True), "how_many": counts}
    path = write_snapshot(tmp_path / "a.root", branches)

    assert jet_pts(select(path, branch_map={"jets.count": "how_many"})) == TWO_AND_ONE


@pytest.mark.parametrize("fill", [-999, np.nan, 0])
def test_padded_slots_without_a_counter_are_dropped(tmp_path: Path, fill: float) -> None:
    path = write_snapshot(tmp_path / "a.root", jets_in_slots(fill))

    with pytest.raises(
        MissingBranchError, match=r"'Jet_PT' .* arrays of 4 slots .*set `jets\.count`.* `filled`"
    ):
        check(path)
    assert jet_pts(select(path, branch_map={"jets.count": "filled"})) == TWO_AND_ONE


def test_slots_may_all_hold_a_candidate(tmp_path: Path) -> None:
    two_slots = {name: values[:, :2] for name, values in jets_in_slots(0, stale=True).items()}
    path = write_snapshot(tmp_path / "a.root", two_slots)

    assert jet_pts(select(path, branch_map={"jets.count": "all"})) == [[90.0, 50.0], [70.0, 50.0]]


def test_an_array_beside_lists_has_their_lengths(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path / "a.root", {"Jet_BTag": jets_in_slots(0)["Jet_BTag"]})

    assert jet_pts(select(path)) == TWO_AND_ONE


@pytest.mark.parametrize(
    ("counters", "branch_map", "error", "message"),
    [
        ({"nJet": [2, 5]}, {}, WrongBranchTypeError, r"has 4 slots in entry 1.* counter says 5"),
        ({"nJet": [-1, 1]}, {}, WrongBranchTypeError, r"entry 0, but its counter says -1"),
        ({"nJet": [2, 1], "Jet_n": [2, 1]}, {}, MissingBranchError, r"nJet and Jet_n may both"),
        (
            {"nJet": [2, 1]},
            {"jets.count": "njets"},
            MissingBranchError,
            r"no branch 'njets' .*jets\.count.*Nearest: nJet",
        ),
        (
            {"nJet": [[2] * 4, [1] * 4]},
            {},
            WrongBranchTypeError,
            r"branch 'nJet' holds 4 numbers in entry 0",
        ),
    ],
)
def test_a_counter_that_cannot_be_right_is_named(
    tmp_path: Path,
    counters: dict[str, list[Any]],
    branch_map: dict[str, str],
    error: type[InputFileError],
    message: str,
) -> None:
    branches = jets_in_slots(0, stale=True)
    for name, counts in counters.items():
        branches[name] = np.array(counts, "i4")
    path = write_snapshot(tmp_path / "a.root", branches)

    with pytest.raises(error, match=message):
        select(path, branch_map=branch_map)


@pytest.mark.parametrize("fill", [999, -99, 0])
def test_padding_in_lists_is_named(tmp_path: Path, fill: float) -> None:
    slots = jets_in_slots(fill)
    lists = {name: ak.Array(ak.from_regular(values)) for name, values in slots.items()}
    path = write_snapshot(tmp_path / "a.root", lists)
    path_with_counter = write_snapshot(tmp_path / "b.root", {**lists, "how_many": COUNTS})

    message = rf"5 of 8 candidates of 'jets' look like padding, such as pt {fill}, .*`filled`"
    with pytest.raises(WrongBranchTypeError, match=message):
        select(path)
    filled = select(path, branch_map={"jets.count": "filled"})
    counted = select(path_with_counter, branch_map={"jets.count": "how_many"})
    assert jet_pts(filled) == jet_pts(counted) == TWO_AND_ONE


@pytest.mark.parametrize(
    ("branch_map", "message"),
    [
        (
            {"muons": "Electron"},
            "'electrons.pt' and 'muons.pt' would both be read from 'Electron.PT'",
        ),
        (
            {"jets.phi": "Jet_Eta"},
            "'jets.eta' and 'jets.phi' would both be read from 'Jet.Eta'",
        ),
    ],
)
def test_one_branch_for_two_momenta_is_refused(
    tmp_path: Path, branch_map: dict[str, str], message: str
) -> None:
    path = write_delphes(tmp_path / "a.root", EVENTS)

    with pytest.raises(WrongBranchTypeError, match=message):
        check(path, settings=IngestSettings(branch_map=branch_map))


def test_tracks_below_the_threshold_reject_no_event(tmp_path: Path) -> None:
    soft_tracks = [track(0.0, np.inf, 0), track(0.2, 0, 720.0), track(-999.0, -999.0, -999.0)]
    event = event_row(
        electrons=[lepton(40, 0, 0)],
        tracks=[*soft_tracks, track(9.0, 0, 0)],
        photons=[tower(0.0, np.inf, 0), tower(5.0, 0, 0)],
    )

    table = select(write_delphes(tmp_path / "a.root", [event])).table

    events = ak.from_arrow(table)
    assert events["tracks", "pt"].to_list() == [[9.0]]
    assert events["photons", "et"].to_list() == [[5.0]]


def test_two_trees_of_one_file_are_two_samples(tmp_path: Path) -> None:
    path = tmp_path / "both.root"
    with uproot.recreate(path) as file:
        for name, scale in (("signal", 1.0), ("background", 2.0)):
            columns = columns_of(EVENTS)
            columns["Electron.PT"] = columns["Electron.PT"] * scale
            file.mktree(name, kinds_of(columns)).extend(columns)
    signal = SampleSettings(name="signal", label=0, files=[str(path)], tree="signal")
    background = SampleSettings(name="background", label=1, files=[str(path)], tree="background")

    first, second = inventory(expand([signal, background]), IngestSettings()).infos

    assert first.uuid != second.uuid
    for info, expected_pts in ((first, [40.0, 41.0]), (second, [80.0, 82.0])):
        electrons = delphes_files.read_raw_events(info).collections["electrons"]
        assert electrons.fields["pt"].tolist() == expected_pts
    # A tree that all samples have belongs to the file itself.
    (info,) = inventory(expand([signal]), IngestSettings(tree="signal")).infos
    with uproot.open(path) as file:
        assert info.uuid == str(file.file.uuid)
    with pytest.raises(ConflictingFilesError, match="is listed twice"):
        inventory(expand([signal, signal]), IngestSettings())


def test_names_of_a_snapshot_need_no_map(tmp_path: Path) -> None:
    weights = {"Event_Weight": np.array([-1.0, 5.0])}

    table = select(write_snapshot(tmp_path / "a.root", weights)).table

    assert table["weight"].to_pylist() == [-1.0, 5.0]
    assert table["electrons"].to_pylist() == [event["electrons"] for event in EVENTS]


def names_of(file: str) -> BranchNames:
    return BranchNames(uproot.open({DATA / file: "Delphes"}), file)


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("electron/PT", "electron/PT", [[40.0], [41.0]]),
        ("electron.PT", "electron/PT", [[40.0], [41.0]]),
        ("muon_PT", "muon/PT", [[5.0], [6.0]]),
        ("met.phi", "met/phi", [0.25, 0.25]),
        ("met/met", "met/met", [20.0, 21.0]),
        ("Jet_Eta", "Jet_Eta", [[0.5], [0.5, 0.5]]),
        ("Jet.isB", "Jet_isB", [[False], [False, True]]),
        ("Jet_tag", "Jet_tag", [[0], [0, 1]]),
    ],
)
def test_objects_and_leaves_are_read_by_their_full_path(
    name: str, path: str, expected: list[Any]
) -> None:
    source = names_of("types_of_root.root")[name]

    assert source.path == path
    assert source.read(0, 2).tolist() == expected


def test_an_ambiguous_short_name_is_refused() -> None:
    with pytest.raises(
        MissingBranchError, match=r"'PT' is the name of 2 branches: 'electron/PT', 'muon/PT'"
    ):
        names_of("types_of_root.root")["PT"]


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        ("met", "met", r"holds several numbers: 'met/met' or 'met/phi'"),
        (
            "electrons.pt",
            "electron",
            r"holds several numbers: 'electron/PT' or 'electron/Charge'",
        ),
        ("jets.pt", "nJet", r"holds 'int32' per event; a list of numbers is needed"),
        ("met", "name", r"holds text; a number per event is needed"),
        ("jets.pt", "p4", r"holds objects \(TLorentzVector\)"),
    ],
)
def test_a_type_that_cannot_be_read_is_named_when_files_are_checked(
    field: str, name: str, message: str
) -> None:
    names = names_of("types_of_root.root")

    with pytest.raises(WrongBranchTypeError, match=message):
        field_sources(names, {field: name}, {})


def test_a_merge_after_an_empty_file_is_named() -> None:
    with pytest.raises(
        DamagedFileError, match=r"first file of the merge .* had no entries.*Merge again without"
    ):
        check(DATA / "hadd_after_an_empty_file.root")


def test_samples_state_their_tree_and_branches(tmp_path: Path) -> None:
    plain_path = write_delphes(tmp_path / "plain.root", EVENTS)
    renamed_path = write_delphes(
        tmp_path / "renamed.root", EVENTS, tree="ntuple", rename={"Electron.PT": "Electron.P_T"}
    )
    plain = SampleSettings(name="a", label=0, files=[str(plain_path)])
    renamed = SampleSettings(
        name="b",
        label=1,
        files=[str(renamed_path)],
        tree="ntuple",
        branch_map={"electrons.pt": "Electron.P_T"},
    )
    settings = IngestSettings(branch_map={"muons": "MuonTight"})

    first, second = inventory(expand([plain, renamed]), settings).infos

    electrons = delphes_files.select(first, settings).table["electrons"]
    assert delphes_files.select(second, settings).table["electrons"].equals(electrons)


def test_a_collection_of_a_sample_comes_before_a_field_of_all() -> None:
    settings_of_all = IngestSettings(branch_map={"muons.pt": "mu_pt", "jets": "AK4"})

    settings = settings_of_all.for_sample("", {"muons": "Muon"})

    assert settings.branch_map == {"muons": "Muon", "jets": "AK4"}


def test_every_letter_may_be_in_a_name(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "plain.root", EVENTS)
    names = ["a::b.root", "a:b.root", "a#b?c.root", "a b%20.root", "ü.root", "[a]*.root", "a;1"]

    for name in names:
        path = path.rename(tmp_path / name)
        assert jet_pts(select(path)) == TWO_AND_ONE, name


def test_a_tree_without_entries_may_lack_branches(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("Delphes", {"Jet.PT": "var * float32"})

    for info in check(DATA / "tree_without_branches.root", tmp_path / "a.root").infos:
        assert (info.entries, info.edges) == (0, (0,))


def test_files_of_one_uuid_are_known_by_their_content(tmp_path: Path) -> None:
    shared_uuid = uuid.uuid1()
    paths = []
    for name, met in (("a.root", 1.0), ("b.root", 2.0)):
        branches = {"MissingET_MET": np.array([met, 9.0], "f4")}
        path = tmp_path / name
        paths.append(write_snapshot(path, branches, uuid_function=lambda: shared_uuid))

    first, second = check(*paths).infos

    assert first.uuid == str(shared_uuid)
    assert second.uuid not in {"", first.uuid}
    # The identity stays, whatever comes later and however the files are ordered.
    reordered = SampleSettings(name="s", label=0, files=[str(path) for path in reversed(paths)])
    infos_by_path = {first.path: first, second.path: second}
    infos = inventory(expand([reordered]), IngestSettings(), known=infos_by_path).infos
    assert [info.uuid for info in infos] == [second.uuid, first.uuid]

    copy = tmp_path / "c.root"
    copy.write_bytes(paths[0].read_bytes())
    with pytest.raises(ConflictingFilesError, match="the same ROOT file"):
        check(*paths, copy)


def test_a_file_that_was_saved_but_never_closed_is_read_with_a_note(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", EVENTS)
    # After its last save, the job wrote further baskets.
    path.write_bytes(path.read_bytes() + bytes(1000))

    (info,) = check(path).infos
    (waiting,) = check(path, settings=IngestSettings(settle_seconds=3600)).waiting

    (message,) = notes([info], [])
    assert "never closed" in message
    assert "Its 2 entries up to the last save are read" in message
    assert "not closed" in waiting.reason


def test_a_negative_missing_energy_is_refused(tmp_path: Path) -> None:
    branches = {"MissingET_MET": np.array([20.0, -999.0], "f4")}
    path = write_snapshot(tmp_path / "a.root", branches)

    with pytest.raises(
        WrongBranchTypeError, match=r"'met' is -999 in entry 1; no missing energy is negative"
    ):
        select(path)
