"""Layouts of files from the field: names, counters, types, padding, units. Each is read right, or
refused by name."""

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
from event_rows import Row, event_row, jet, lepton, tower, track

from hep_core.input_errors import DamagedFileError, InputFileError
from ingestion.errors import ConflictingFilesError, MissingBranchError, WrongBranchTypeError
from ingestion.files import Inventory, expand, inventory
from ingestion.layout import BranchNames, field_sources
from ingestion.notes import notes, unusual_content
from ingestion.schema import COLLECTIONS
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


def found(
    paths: Path | list[Path], settings: IngestSettings | None = None, **sample: Any
) -> Inventory:
    files = [str(path) for path in ([paths] if isinstance(paths, Path) else paths)]
    samples = [SampleSettings(name="made", label=0, files=files, **sample)]
    return inventory(expand(samples), settings or IngestSettings())


def select(path: Path, **settings: Any) -> Selection:
    return delphes_files.select(path, IngestSettings(**settings))


def jet_pts(selection: Selection) -> list[list[float]]:
    pts: list[list[float]] = ak.from_arrow(selection.table)["jets", "pt"].to_list()
    return pts


def rewritten(path: Path, changes: Mapping[str, Any], **options: Any) -> Path:
    """A file of `EVENTS` with underscores in its names, as a Snapshot has, and some branches replaced."""
    names = {name: name.replace(".", "_") for name in columns_of(EVENTS)}
    return write_delphes(path, EVENTS, rename=names, more=changes, flat_scalars=True, **options)


def fixed(fill: float, *, stale: bool = False) -> dict[str, Any]:
    """Jets in four slots; the empty ones hold `fill`, or values of earlier events."""
    values = {
        "PT": [[90.0, 50.0, fill, fill], [70.0, fill, fill, fill]],
        "Eta": [[0.1, 1.1, fill, fill], [2.1, fill, fill, fill]],
        "Phi": [[0.2, 1.2, fill, fill], [2.2, fill, fill, fill]],
    }
    if stale:
        for columns in values.values():
            columns[1][1] = columns[0][1]
    jets = {f"Jet_{name}": np.array(columns, "f4") for name, columns in values.items()}
    jets["Jet_BTag"] = np.array([[1, 0, 0, 0], [0, 0, 0, 0]], "i4")
    return jets


COUNTS: Final = np.array([2, 1], "i4")
TWO_AND_ONE: Final = [[90.0, 50.0], [70.0]]


@pytest.mark.parametrize("name", ["nJet", "njets", "Jet_size"])
def test_slots_behind_the_counter_are_no_jets(tmp_path: Path, name: str) -> None:
    path = rewritten(tmp_path / "a.root", {**fixed(0, stale=True), name: COUNTS})
    assert jet_pts(select(path)) == TWO_AND_ONE


@pytest.mark.parametrize(
    "counts", [COUNTS, COUNTS.astype("u1"), COUNTS.astype("f8"), COUNTS.astype("i8")[:, None]]
)
def test_a_counter_of_any_name_and_type_is_mapped(tmp_path: Path, counts: Any) -> None:
    path = rewritten(tmp_path / "a.root", {**fixed(0, stale=True), "how_many": counts})
    assert jet_pts(select(path, branch_map={"jets.count": "how_many"})) == TWO_AND_ONE


@pytest.mark.parametrize("fill", [-999, np.nan, 0])
def test_padded_slots_without_a_counter_are_dropped(tmp_path: Path, fill: float) -> None:
    path = rewritten(tmp_path / "a.root", fixed(fill))
    with pytest.raises(
        MissingBranchError, match=r"'Jet_PT' .* arrays of 4 slots .*set `jets\.count`.* `filled`"
    ):
        found(path)
    assert jet_pts(select(path, branch_map={"jets.count": "filled"})) == TWO_AND_ONE


def test_slots_may_all_hold_a_candidate(tmp_path: Path) -> None:
    changes = {name: values[:, :2] for name, values in fixed(0, stale=True).items()}
    path = rewritten(tmp_path / "a.root", changes)
    assert jet_pts(select(path, branch_map={"jets.count": "all"})) == [[90.0, 50.0], [70.0, 50.0]]


def test_an_array_beside_lists_has_their_lengths(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "a.root", {"Jet_BTag": fixed(0)["Jet_BTag"]})
    assert jet_pts(select(path)) == TWO_AND_ONE


@pytest.mark.parametrize(
    ("counters", "branch_map", "error", "message"),
    [
        ({"nJet": [2, 5]}, {}, WrongBranchTypeError, r"has 4 slots in entry 1.* counter says 5"),
        ({"nJet": [-1, 1]}, {}, WrongBranchTypeError, r"entry 0, but its counter says -1"),
        (
            {"nJet": [2, 1], "Jet_n": [2, 1]},
            {},
            MissingBranchError,
            r"nJet and Jet_n may both count",
        ),
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
    changes = fixed(0, stale=True)
    for name, counts in counters.items():
        changes[name] = np.array(counts, "i4")
    path = rewritten(tmp_path / "a.root", changes)

    with pytest.raises(error, match=message):
        select(path, branch_map=branch_map)


@pytest.mark.parametrize("fill", [999, -99, 0])
def test_padding_in_lists_is_named(tmp_path: Path, fill: float) -> None:
    lists = {name: ak.Array(ak.from_regular(values)) for name, values in fixed(fill).items()}
    path = rewritten(tmp_path / "a.root", lists)

    message = rf"5 of 8 candidates of 'jets' look like padding, such as pt {fill}, .*`filled`"
    with pytest.raises(WrongBranchTypeError, match=message):
        select(path)

    assert jet_pts(select(path, branch_map={"jets.count": "filled"})) == TWO_AND_ONE
    with_counter = rewritten(tmp_path / "b.root", {**lists, "how_many": COUNTS})
    assert jet_pts(select(with_counter, branch_map={"jets.count": "how_many"})) == TWO_AND_ONE


@pytest.mark.parametrize(
    ("branch_map", "message"),
    [
        (
            {"muons": "Electron"},
            "'electrons.pt' and 'muons.pt' would both be read from branch 'Electron.PT'",
        ),
        (
            {"jets.phi": "Jet_Eta"},
            "'jets.eta' and 'jets.phi' would both be read from branch 'Jet.Eta'",
        ),
    ],
)
def test_one_branch_for_two_momenta_is_refused(
    tmp_path: Path, branch_map: dict[str, str], message: str
) -> None:
    with pytest.raises(WrongBranchTypeError, match=message):
        found(write_delphes(tmp_path / "a.root", EVENTS), IngestSettings(branch_map=branch_map))


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


def test_a_rejected_event_names_the_branch(tmp_path: Path) -> None:
    good = event_row(electrons=[lepton(40, 0, 0)])
    events = [
        good,
        {**good, "tracks": [track(9.0, np.inf, 0)]},
        {**good, "tracks": [track(np.nan, np.nan, 0)]},
    ]
    counts = select(write_delphes(tmp_path / "a.root", events)).tally().counts
    assert (counts["rejected_nonfinite"], counts["events"]) == (2, 1)
    (message,) = unusual_content({"made": counts})
    assert message.startswith(
        "2 events of made rejected: EFlowTrack.PT of 1, EFlowTrack.Eta of 2 not finite."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, []),
        ({"scale": 1000.0}, ["are they in MeV?"]),
        ({"met": 45_000.0}, ["Momenta of MET of made are very large: are they in MeV?"]),
        *(
            ({name: 1000.0}, [f"Momenta of {name} of made are very large: are they in MeV?"])
            for name in ("electrons", "muons", "jets", "tracks", "photons", "neutral_hadrons")
        ),
        ({"btags": [0, 0]}, ["No jet of made has a b-tag"]),
        ({"btags": [1, 3]}, ["Each jet of made has a b-tag"]),
        ({"btags": []}, []),
        *(({"charge": charge}, ["charges other than -1 and 1"]) for charge in (255, 0, 3)),
        ({"track_charge": 255}, ["charges other than -1 and 1"]),
    ],
)
def test_units_charges_and_tags_that_look_wrong_are_named(
    tmp_path: Path, change: Mapping[str, Any], message: list[str]
) -> None:
    events = [unusual_event(index, change) for index in range(50)]
    counts = select(write_delphes(tmp_path / "a.root", events)).tally().counts

    sentences = list(unusual_content({"made": counts}))

    assert len(sentences) == len(message)
    for sentence, text in zip(sentences, message, strict=True):
        assert text in sentence


def unusual_event(index: int, change: Mapping[str, Any]) -> Row:
    """An event with leptons, jets and particles; `change` has values, or factors of momenta."""
    scale, btags = change.get("scale", 1.0), change.get("btags", [1, 0])
    electron = lepton((30.0 + index) * scale, 0, 0) | {"charge": change.get("charge", -1)}
    event = event_row(
        electrons=[electron],
        # A part of the events has muons.
        muons=[lepton(40.0, 0.4, 0.3)] if index % 3 == 0 else [],
        jets=[jet(25.0 * scale, 0.1, phi, btag=btag) for phi, btag in enumerate(btags)],
        tracks=[track(9.0, 0, 0) | {"charge": change.get("track_charge", 1)}],
        photons=[tower(0.6, 0, 0)] * 3,
        neutral_hadrons=[tower(1.1, 0, 0)] * 2,
    )
    if "met" in change:
        event["met"] = change["met"]
    for name in COLLECTIONS.keys() & change.keys():
        size = "et" if "et" in COLLECTIONS[name] else "pt"
        event[name] = [
            candidate | {size: candidate[size] * change[name]} for candidate in event[name]
        ]
    return event


@pytest.mark.parametrize(
    ("lowest_eta", "highest_eta", "message"),
    [
        (-2.5, 2.5, []),
        (-np.pi, np.pi, ["No eta of electrons, jets of made is beyond pi"]),
        (-np.pi, 0.0, ["No eta of electrons, jets of made is beyond pi"]),
        (0.0, np.pi, ["No eta of electrons, jets of made is beyond pi"]),
        # Wide detectors.
        (-4.0, 3.1, []),
        (-3.1, 4.0, []),
    ],
)
def test_swapped_eta_and_phi_are_named(
    tmp_path: Path, lowest_eta: float, highest_eta: float, message: list[str]
) -> None:
    rng = np.random.default_rng(2)
    angles = rng.uniform([lowest_eta, -np.pi], [highest_eta, np.pi], (400, 2))
    events = []
    for index, (eta, phi) in enumerate(angles):
        electron, b_jet = lepton(40.0 + index, eta, phi), jet(50.0, eta, phi, btag=index % 2)
        events.append(event_row(electrons=[electron], jets=[b_jet], met=float(index)))

    counts = select(write_delphes(tmp_path / "a.root", events)).tally().counts

    sentences = list(unusual_content({"made": counts}))
    assert len(sentences) == len(message)
    for sentence, start in zip(sentences, message, strict=True):
        assert sentence.startswith(start)


def test_two_trees_of_one_file_are_two_samples(tmp_path: Path) -> None:
    path = tmp_path / "both.root"
    with uproot.recreate(path) as file:
        for name, scale in (("signal", 1.0), ("background", 2.0)):
            columns = columns_of(EVENTS)
            columns["Electron.PT"] = columns["Electron.PT"] * scale
            file.mktree(name, kinds_of(columns)).extend(columns)
    samples = [
        SampleSettings(name=name, label=label, files=[str(path)], tree=name)
        for label, name in enumerate(("signal", "background"))
    ]
    settings = IngestSettings()
    infos = inventory(expand(samples), settings).infos
    assert len({info.uuid for info in infos}) == 2
    read = [delphes_files.read_raw_events(info, settings) for info in infos]
    assert [raw.collections["electrons"].fields["pt"].tolist() for raw in read] == [
        [40.0, 41.0],
        [80.0, 82.0],
    ]
    # A tree that all samples have belongs to the file itself.
    named = inventory(expand(samples[:1]), IngestSettings(tree="signal")).infos
    with uproot.open(path) as file:
        assert named[0].uuid == str(file.file.uuid)
    with pytest.raises(ConflictingFilesError, match="is listed twice"):
        inventory(expand([samples[0], samples[0]]), settings)


def test_names_of_a_snapshot_need_no_map(tmp_path: Path) -> None:
    table = select(rewritten(tmp_path / "a.root", {"Event_Weight": np.array([-1.0, 5.0])})).table
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
        ("met", "met", r"holds several numbers: map 'met/met' or 'met/phi'"),
        (
            "electrons.pt",
            "electron",
            r"holds several numbers: map 'electron/PT' or 'electron/Charge'",
        ),
        ("jets.pt", "nJet", r"holds 'int32' per event; a list of numbers is needed"),
        ("met", "name", r"holds 'string'"),
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
        found(DATA / "hadd_after_an_empty_file.root")


def test_samples_state_their_tree_and_branches(tmp_path: Path) -> None:
    plain = write_delphes(tmp_path / "plain.root", EVENTS)
    delphes = write_delphes(
        tmp_path / "other.root", EVENTS, tree="ntuple", rename={"Electron.PT": "Electron.P_T"}
    )
    samples = [
        SampleSettings(name="a", label=0, files=[str(plain)]),
        SampleSettings(
            name="b",
            label=1,
            files=[str(delphes)],
            tree="ntuple",
            branch_map={"electrons.pt": "Electron.P_T"},
        ),
    ]
    settings = IngestSettings(branch_map={"muons": "MuonTight"})
    infos = inventory(expand(samples), settings).infos
    first, second = (
        delphes_files.select(info, settings).table["electrons"].to_pylist() for info in infos
    )
    assert first == second


def test_a_collection_of_a_sample_comes_before_a_field_of_all() -> None:
    (source,) = expand(
        [SampleSettings(name="a", label=0, files=[__file__], branch_map={"muons": "Muon"})]
    )
    settings = IngestSettings(branch_map={"muons.pt": "mu_pt", "jets": "AK4"}).for_sample(
        source.sample.tree, source.sample.branch_map
    )
    assert settings.branch_map == {"muons": "Muon", "jets": "AK4"}


def test_every_letter_may_be_in_a_name(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "plain.root", EVENTS)
    for name in (
        "a::b.root",
        "a:b.root",
        "a#b?c.root",
        "a b%20.root",
        "ü.root",
        "[a]*.root",
        "a;1",
    ):
        path = path.rename(tmp_path / name)
        assert jet_pts(select(path)) == TWO_AND_ONE, name


def test_a_tree_without_entries_may_lack_branches(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("Delphes", {"Jet.PT": "var * float32"})
    for info in found([DATA / "tree_without_branches.root", tmp_path / "a.root"]).infos:
        assert (info.entries, info.edges) == (0, (0,))


def test_files_of_one_uuid_are_known_by_their_content(tmp_path: Path) -> None:
    same = uuid.uuid1()
    a, b = (
        rewritten(
            tmp_path / f"{name}.root",
            {"MissingET_MET": np.array([met, 9.0], "f4")},
            uuid_function=lambda: same,
        )
        for name, met in (("a", 1.0), ("b", 2.0))
    )
    first, second = found([a, b]).infos
    assert first.uuid == str(same)
    assert second.uuid not in {"", first.uuid}
    # The identity stays, whatever comes later and however the files are ordered.
    expected = {info.path: info for info in (first, second)}
    repeated = inventory(
        expand([SampleSettings(name="s", label=0, files=[str(b), str(a)])]),
        IngestSettings(),
        known=expected,
    )
    assert [info.uuid for info in repeated.infos] == [second.uuid, first.uuid]
    (tmp_path / "c.root").write_bytes(a.read_bytes())
    with pytest.raises(ConflictingFilesError, match="the same ROOT file"):
        found([a, b, tmp_path / "c.root"])


def test_a_file_that_was_saved_but_never_closed_is_read_with_a_note(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", EVENTS)
    # After its last save, the job wrote further baskets.
    path.write_bytes(path.read_bytes() + bytes(1000))
    (info,) = found(path).infos
    (message,) = notes([info], [])
    assert "never closed" in message
    assert "Its 2 entries up to the last save are read" in message
    (waiting,) = found(path, IngestSettings(settle_seconds=3600)).waiting
    assert "not closed" in waiting.reason


def test_a_negative_missing_energy_is_refused(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "a.root", {"MissingET_MET": np.array([20.0, -999.0], "f4")})
    with pytest.raises(
        WrongBranchTypeError, match=r"'met' is -999 in entry 1; no missing energy is negative"
    ):
        select(path)
