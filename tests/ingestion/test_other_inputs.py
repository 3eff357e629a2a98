"""Files of other programs and flat ntuples, read through a branch map or refused with advice.

The real files and where they come from: tests/data/README.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import pyarrow as pa
import pytest
import uproot
from delphes_files import (
    checked_files,
    columns_of,
    kinds_of,
    ntuple_columns,
    select,
    source_of,
    write_delphes,
)
from event_rows import Row, event_row, jet, lepton, tower, track
from pydantic import ValidationError

from features.columns import hlf_names
from features.kernels import build_features
from features.settings import FeatureSettings
from hep_core.input_errors import InputFileError
from ingestion.errors import (
    ConflictingFilesError,
    MissingBranchError,
    UnclosedFileError,
    WrongBranchTypeError,
)
from ingestion.files import SourceFile, inventory
from ingestion.known_layouts import LAYOUTS, BranchLayout
from ingestion.schema import COLLECTIONS, PARTICLE_COLLECTIONS
from ingestion.settings import IngestSettings

DATA: Final = Path(__file__).resolve().parents[1] / "data"
FCC: Final = DATA / "delphes_100TeV.root"
NO_KEYS: Final = DATA / "bad_delphes.root"
NANO: Final = DATA / "nanoAOD_2015_CMS_Open_Data_ttbar.root"

#: A flat ntuple's names: stem of the branches of each collection, then of the fields.
STEMS: Final = {
    "tracks": "Track",
    "photons": "Photon",
    "neutral_hadrons": "NeutralHadron",
    "electrons": "Electron",
    "muons": "Muon",
    "jets": "Jet",
}
#: Stems of the candidates that NanoAOD lacks.
CANDIDATES: Final = ("Track_", "Photon_", "NeutralHadron_")
FLAT_MAP: Final = {"met": "MET", "met_phi": "MET_phi"}
for _name, _fields in COLLECTIONS.items():
    FLAT_MAP.update({f"{_name}.{field}": f"{STEMS[_name]}_{field}" for field in _fields})


def error_message(path: Path, settings: IngestSettings, error: type[InputFileError]) -> str:
    with pytest.raises(error) as caught:
        checked_files(path, settings=settings)
    return str(caught.value)


def without_file(table: pa.Table) -> list[Row]:
    """Rows without the identity of the file that they came from."""
    rows: list[Row] = table.drop_columns(["file_uuid"]).to_pylist()
    return rows


@pytest.mark.parametrize("path", sorted(DATA.glob("*.root")), ids=lambda path: path.name)
def test_the_provenance_of_every_real_file_is_written_down(path: Path) -> None:
    file_bytes = path.read_bytes()
    sha256 = hashlib.sha256(file_bytes).hexdigest()
    page = (DATA / "README.md").read_text(encoding="utf-8")

    (row,) = (line for line in page.splitlines() if f"| `{path.name}`" in line)

    assert f"| {len(file_bytes)} | `{sha256}` |" in row


@pytest.mark.parametrize(
    ("threshold", "expected"), [(23.0, [14]), (3.0, [11, 14]), (0.8, [0, 11, 14])]
)
def test_a_100_tev_file_is_read_through_a_branch_map(threshold: float, expected: list[int]) -> None:
    with uproot.open(FCC) as file:
        arrays = file["Delphes"].arrays(["Electron.PT", "Muon.PT", "EFlowTrack.PT", "Jet.PT"])
    leptons = ak.concatenate([arrays["Electron.PT"], arrays["Muon.PT"]], axis=1)
    passing = ak.any(leptons > threshold, axis=1)
    assert np.flatnonzero(passing).tolist() == expected

    settings = IngestSettings(branch_map={"muons": "Muon"}, min_lepton_pt=threshold)
    selection = select(FCC, settings)

    counts = selection.tally().counts
    assert (counts["entries"], counts["events"]) == (25, len(expected))
    assert selection.table["entry"].to_pylist() == expected
    events = ak.from_arrow(selection.table)
    num_tracks = ak.sum(arrays["EFlowTrack.PT"][passing] > 0.5, axis=1)
    assert ak.num(events["tracks"]).to_list() == num_tracks.to_list()
    assert events["jets", "pt"].to_list() == arrays["Jet.PT"][passing].to_list()


def test_without_the_map_the_missing_branches_and_the_cure_are_named() -> None:
    message = error_message(FCC, IngestSettings(), MissingBranchError)

    assert str(FCC) in message
    assert "tree 'Delphes' lacks 4 needed branches" in message
    for member in ("PT", "Eta", "Phi", "Charge"):
        missing = rf"'MuonTight\.{member}' \(for muons\.{member.lower()}\)"
        assert re.search(rf"{missing}\. Nearest: Muon\.{member}\b", message)
    assert "ingest.branch_map" in message
    assert "`muons: Muon`" in message


def test_a_file_that_was_never_closed_is_named() -> None:
    message = error_message(NO_KEYS, IngestSettings(), UnclosedFileError)

    assert (
        f"{NO_KEYS} was never closed: the job that wrote its 970 bytes ended before it saved a tree."
        in message
    )
    assert "Run the job again" in message


NANO_MAP: Final = {
    "electrons": "Electron",
    "muons": "Muon",
    "jets": "Jet",
    "jets.btag": "Jet_btagCSVV2",
    "met": "MET_pt",
    "met_phi": "MET_phi",
}
NANO_BRANCHES: Final = ["Jet_pt", "Jet_eta", "Jet_btagCSVV2", "Electron_pt", "Muon_pt", "MET_pt"]


def test_nanoaod_gives_a_dataset_of_the_high_level_features_that_need_no_candidates() -> None:
    settings = IngestSettings(tree="Events", branch_map=NANO_MAP, min_btag=0.8)
    (info,) = checked_files(NANO, settings=settings, needs_particles=False)
    events = select(info, settings).table

    block = build_features(events, FeatureSettings(particles=False, jet_lepton_cleaning_dr=0.0))

    assert info.lacks_particles
    assert len(block.core) == 0
    assert not block.particle_offsets.any()
    with uproot.open({NANO: "Events"}) as tree:
        nano = tree.arrays(NANO_BRANCHES)[events["entry"].to_numpy()[block.selected]]
    passes = (nano["Jet_pt"] > 30) & (abs(nano["Jet_eta"]) < 2.6)
    has_tag = nano["Jet_btagCSVV2"] > 0.8
    lepton_pt = ak.max(ak.concatenate([nano["Electron_pt"], nano["Muon_pt"]], axis=1), axis=1)
    no_isolation = np.zeros(len(nano))
    expected = {
        "ht": ak.sum(nano["Jet_pt"][passes], axis=1),
        "met": nano["MET_pt"],
        "num_jets": ak.sum(passes, axis=1),
        "num_bjets": ak.sum(passes & has_tag, axis=1),
        "lepton_pt": lepton_pt,
        "lepton_iso_charged": no_isolation,
        "lepton_iso_photon": no_isolation,
        "lepton_iso_neutral": no_isolation,
    }
    hlf = dict(zip(hlf_names(), block.hlf.T, strict=True))
    for name, values in expected.items():
        np.testing.assert_allclose(hlf[name], ak.to_numpy(values), rtol=1e-6, err_msg=name)
    assert len(nano) == ak.sum(lepton_pt > 23) > 50
    assert 0 < hlf["num_bjets"].mean() < hlf["num_jets"].mean()
    assert not block.lacks_own_track.any()


def test_jets_whose_discriminant_is_nan_reject_the_event(tmp_path: Path) -> None:
    events = some_events()[:3] + some_events()[6:9]
    num_jets = np.array([len(event["jets"]) for event in events])
    discriminants = np.linspace(0.0, 1.0, num_jets.sum())
    discriminants[-1] = np.nan
    branches = {"Jet_btag": ak.unflatten(discriminants, num_jets)}
    path = write_flat(tmp_path / "flat.root", events, more=branches)
    settings = IngestSettings(tree="ntuple", branch_map=FLAT_MAP, min_btag=0.5, min_lepton_pt=0.0)

    selection = select(path, settings)

    last_event_with_jets = np.flatnonzero(num_jets)[-1]
    assert selection.tally().counts["rejected_nonfinite"] == 1
    assert last_event_with_jets not in selection.table["entry"].to_pylist()
    tags = ak.flatten(ak.from_arrow(selection.table)["jets", "btag"]).to_list()
    assert tags == (discriminants[: len(tags)] > 0.5).astype(int).tolist()
    assert set(tags) == {0, 1}


@pytest.mark.slow
def test_a_file_with_a_part_of_the_candidates_is_refused_also_without_particle_lists() -> None:
    with_photons = NANO_MAP | {"photons.et": "Photon_pt"}
    settings = IngestSettings(tree="Events", branch_map=with_photons, min_btag=0.8)

    with pytest.raises(InputFileError, match=r"for tracks\.pt"):
        checked_files(NANO, settings=settings, needs_particles=False)


def test_files_with_and_without_candidates_do_not_mix(tmp_path: Path) -> None:
    events = some_events()
    full = write_flat(tmp_path / "full.root", events)
    candidates = []
    for name in PARTICLE_COLLECTIONS:
        candidates += [field.branch for field in COLLECTIONS[name].values()]
    bare = write_flat(tmp_path / "bare.root", events, without=candidates)
    bare_map = {
        field: branch for field, branch in FLAT_MAP.items() if not branch.startswith(CANDIDATES)
    }
    full_settings = IngestSettings(tree="ntuple", branch_map=FLAT_MAP)
    bare_settings = IngestSettings(tree="ntuple", branch_map=bare_map)

    (full_info,) = checked_files(full, settings=full_settings)
    (bare_info,) = checked_files(bare, settings=bare_settings, needs_particles=False)

    assert not full_info.lacks_particles
    assert bare_info.lacks_particles
    sources = [
        source_of("other", 0, str(path))._replace(needs_particles=False) for path in (full, bare)
    ]
    with pytest.raises(ConflictingFilesError, match=r"full\.root has tracks.*bare\.root has none"):
        inventory(sources, bare_settings, known={str(full): full_info})


def some_events() -> list[Row]:
    """Events with different numbers of candidates; one has no electron, and one a NaN."""
    rng = np.random.default_rng(5)

    def angles() -> list[float]:
        return list(rng.uniform([-2.5, -3.1], [2.5, 3.1]))

    def random_track() -> Row:
        charge = int(rng.choice([-1, 1]))
        return track(rng.exponential(2), *angles(), charge=charge, vertex=(0.1, -0.2, 30.0))

    events = []
    for entry in range(12):
        few, many = rng.integers(0, 3), rng.integers(0, 20)
        event = event_row(
            tracks=[random_track() for _ in range(many)],
            photons=[tower(rng.exponential(2), *angles()) for _ in range(few)],
            neutral_hadrons=[tower(rng.exponential(2), *angles()) for _ in range(many)],
            electrons=[lepton(20 + 2 * entry, *angles())],
            muons=[lepton(5 + entry, *angles(), charge=1) for _ in range(few)],
            jets=[jet(30 + entry, *angles(), btag=int(rng.integers(8))) for _ in range(few)],
            met=10.0 * entry,
            met_phi=rng.uniform(-3, 3),
            weight=0.5 + entry,
        )
        events.append(event)
    events[3]["electrons"] = []
    events[5]["met"] = float("nan")
    return events


def write_flat(path: Path, events: Sequence[Row], **options: Any) -> Path:
    """Write an ntuple as `FLAT_MAP` names it: lists such as `Track_pt`, numbers such as `MET`."""
    names = {
        branch: FLAT_MAP.get(field, "genWeight")
        for field, branch in LAYOUTS[BranchLayout.DELPHES].branches({}).items()
    }
    return write_delphes(path, events, tree="ntuple", rename=names, flat_scalars=True, **options)


def test_a_flat_ntuple_gives_the_table_of_the_delphes_file(tmp_path: Path) -> None:
    events = some_events()
    delphes_path = write_delphes(tmp_path / "delphes.root", events)
    flat_path = write_flat(tmp_path / "flat.root", events)
    flat_settings = IngestSettings(tree="ntuple", branch_map=FLAT_MAP)

    delphes = select(delphes_path, IngestSettings())
    flat = select(flat_path, flat_settings, weight="genWeight")

    counts = delphes.tally().counts
    assert counts["rejected_nonfinite"] == 1
    assert counts["rejected_no_lepton"] >= 1
    assert len(delphes.table) >= 5
    assert without_file(flat.table) == without_file(delphes.table)
    assert flat.table.schema.equals(delphes.table.schema)
    weights = delphes.tally().weights
    # A counter is named after the branch.
    for counters in (counts, weights):
        counters["not_finite MET"] = counters.pop("not_finite MissingET.MET")
    assert flat.tally().counts == counts
    assert flat.tally().weights == weights


@pytest.mark.parametrize("name", ["muon", "muons.PT", "tracks.energy", "Muon", ""])
def test_a_branch_map_that_names_an_unknown_field_is_refused(name: str) -> None:
    message = rf"'{re.escape(name)}' is no collection or field of the events.*muons\.pt"

    with pytest.raises(ValidationError, match=message):
        IngestSettings(branch_map={name: "Muon"})


def test_branches_in_a_friend_tree_are_missing_and_the_message_says_why(tmp_path: Path) -> None:
    jets = [field.branch for field in COLLECTIONS["jets"].values()]
    path = write_delphes(tmp_path / "a.root", some_events(), without=jets)
    with uproot.update(path) as file:
        columns = columns_of(some_events())
        jet_columns = {branch: columns[branch] for branch in jets}
        file.mktree("friend", kinds_of(jet_columns)).extend(jet_columns)

    message = error_message(path, IngestSettings(), MissingBranchError)

    assert "lacks 4 needed branches" in message
    assert "Branches of friend trees are not read; write all into one tree." in message


def test_an_rntuple_gives_the_table_of_the_delphes_file(tmp_path: Path) -> None:
    delphes = write_delphes(tmp_path / "delphes.root", some_events())
    columns = ntuple_columns(some_events())
    path = tmp_path / "rntuple.root"
    with uproot.recreate(path) as file:
        # Two clusters, of three events and of the others.
        ntuple = file.mkrntuple("Delphes", {name: values[:3] for name, values in columns.items()})
        ntuple.extend({name: values[3:] for name, values in columns.items()})
    branch_map = {"met": "MissingET_MET", "met_phi": "MissingET_Phi"}

    selection = select(path, IngestSettings(branch_map=branch_map), weight="Weight")

    assert without_file(selection.table) == without_file(select(delphes, IngestSettings()).table)
    settings = IngestSettings(branch_map=branch_map, entries_per_task=1)
    (info,) = checked_files(path, settings=settings)
    assert info.edges[:2] == (0, 3)


def test_of_several_cycles_the_highest_is_read(tmp_path: Path) -> None:
    first, second = some_events()[:3], some_events()[3:]
    path = write_delphes(tmp_path / "cycles.root", first)
    single = write_delphes(tmp_path / "single.root", second)
    with uproot.update(path) as file:
        columns = columns_of(second)
        file.mktree("Delphes", kinds_of(columns)).extend(columns)
    with uproot.open(path) as file:
        assert sorted(file.keys()) == ["Delphes;1", "Delphes;2"]

    table = select(path, IngestSettings()).table

    expected = select(single, IngestSettings()).table
    assert without_file(table) == without_file(expected)


@pytest.mark.parametrize(
    ("settings", "stated"),
    [
        ({"branch_map": {"met": "MissingET"}}, {}),
        ({"pass_through": ["MissingET"]}, {}),
        ({"weights": {"up": "MissingET"}}, {}),
        ({}, {"weight": "MissingET"}),
        ({}, {"sum_of_weights": "Delphes.MissingET"}),
        ({}, {"label": None, "label_by": {"MissingET == 1": 0, "MissingET != 1": 1}}),
    ],
)
def test_the_number_of_objects_of_a_collection_is_no_number_of_the_event(
    ttbar_source: SourceFile, settings: dict[str, Any], stated: dict[str, Any]
) -> None:
    sample = ttbar_source.sample.model_copy(update=stated)
    source = ttbar_source._replace(sample=sample)

    with pytest.raises(
        WrongBranchTypeError, match=r"MissingET' holds several numbers: '\S*MissingET\.MET' or"
    ):
        inventory([source], IngestSettings(**settings))
