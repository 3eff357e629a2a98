"""Files that other programs wrote, and flat ntuples: read through a branch map, or refused with a message that helps.

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
from delphes_files import checked_files, columns_of, kinds_of, select, source_of, write_delphes
from event_rows import Row, event_row, jet, lepton, tower, track
from pydantic import ValidationError

from features.columns import hlf_names
from features.kernels import build_features
from features.settings import FeatureSettings
from hep_core.input_errors import InputFileError
from ingestion.errors import ConflictingFilesError, MissingBranchError, UnclosedFileError
from ingestion.files import inventory
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
FLAT_MAP: Final = {
    **{
        f"{name}.{field}": f"{STEMS[name]}_{field}"
        for name, fields in COLLECTIONS.items()
        for field in fields
    },
    "met": "MET",
    "met_phi": "MET_phi",
}


def message_of(path: Path, settings: IngestSettings, kind_name: type[InputFileError]) -> str:
    with pytest.raises(kind_name) as caught:
        checked_files(path, settings=settings)
    return str(caught.value)


def without_file(table: pa.Table) -> list[Row]:
    """Rows without the identity of the file that they came from."""
    rows: list[Row] = table.drop_columns(["file_uuid"]).to_pylist()
    return rows


@pytest.mark.parametrize("path", sorted(DATA.glob("*.root")), ids=lambda path: path.name)
def test_the_provenance_of_every_real_file_is_written_down(path: Path) -> None:
    row = next(
        line
        for line in (DATA / "README.md").read_text(encoding="utf-8").splitlines()
        if f"| `{path.name}`" in line
    )
    file_bytes = path.read_bytes()
    assert f"| {len(file_bytes)} | `{hashlib.sha256(file_bytes).hexdigest()}` |" in row


@pytest.mark.parametrize(
    ("threshold", "expected"), [(23.0, [14]), (3.0, [11, 14]), (0.8, [0, 11, 14])]
)
def test_a_100_tev_file_is_read_through_a_branch_map(threshold: float, expected: list[int]) -> None:
    with uproot.open(FCC) as file:
        arrays = file["Delphes"].arrays(["Electron.PT", "Muon.PT", "EFlowTrack.PT", "Jet.PT"])
    leptons = ak.concatenate([arrays["Electron.PT"], arrays["Muon.PT"]], axis=1)
    passing = ak.any(leptons > threshold, axis=1)
    assert np.flatnonzero(passing).tolist() == expected

    selection = select(FCC, IngestSettings(branch_map={"muons": "Muon"}, min_lepton_pt=threshold))

    counts = selection.tally().counts
    assert (counts["entries"], counts["events"]) == (25, len(expected))
    assert selection.table["entry"].to_pylist() == expected
    events = ak.from_arrow(selection.table)
    num_tracks = ak.sum(arrays["EFlowTrack.PT"][passing] > 0.5, axis=1)
    assert ak.num(events["tracks"]).to_list() == num_tracks.to_list()
    assert events["jets", "pt"].to_list() == arrays["Jet.PT"][passing].to_list()


def test_without_the_map_the_missing_branches_and_the_cure_are_named() -> None:
    message = message_of(FCC, IngestSettings(), MissingBranchError)
    assert str(FCC) in message
    assert "tree 'Delphes' lacks 4 needed branches" in message
    for field, member in {"pt": "PT", "eta": "Eta", "phi": "Phi", "charge": "Charge"}.items():
        assert re.search(
            rf"'MuonTight\.{member}' \(for muons\.{field}\)\. Nearest: Muon\.{member}\b", message
        )
    assert "ingest.branch_map" in message
    assert "`muons: Muon`" in message


def test_a_file_that_was_never_closed_is_named() -> None:
    message = message_of(NO_KEYS, IngestSettings(), UnclosedFileError)
    assert (
        f"{NO_KEYS} was never closed: the job that wrote its 970 bytes ended before it saved a tree."
        in message
    )
    assert "Run the job again" in message


def nano_branches() -> list[tuple[str, str, str]]:
    lepton_fields = [
        (name, field, f"{stem}_{field}")
        for name, stem in (("electrons", "Electron"), ("muons", "Muon"))
        for field in COLLECTIONS[name]
    ]
    jet_fields = [("jets", field, f"Jet_{field}") for field in ("pt", "eta", "phi")]
    return [*lepton_fields, *jet_fields, ("jets", "btag", "Jet_jetId")]


NANO_MAP: Final = {
    **{f"{name}.{field}": branch for name, field, branch in nano_branches()},
    "jets.btag": "Jet_btagCSVV2",
    "met": "MET_pt",
    "met_phi": "MET_phi",
}


def test_nanoaod_gives_a_dataset_of_the_high_level_features_that_need_no_candidates() -> None:
    settings = IngestSettings(tree="Events", branch_map=NANO_MAP, min_btag=0.8)
    (info,) = checked_files(NANO, settings=settings, needs_particles=False)
    assert info.lacks_particles
    events = select(info, settings).table
    block = build_features(events, FeatureSettings(particles=False, jet_lepton_cleaning_dr=0.0))
    hlf = dict(zip(hlf_names(), block.hlf.T, strict=True))
    assert len(block.core) == 0
    assert not block.particle_offsets.any()
    with uproot.open({NANO: "Events"}) as tree:
        nano = tree.arrays([*NANO_MAP.values()])[events["entry"].to_numpy()[block.selected]]
    jets = (nano["Jet_pt"] > 30) & (abs(nano["Jet_eta"]) < 2.6)
    lepton_pt = ak.max(ak.concatenate([nano["Electron_pt"], nano["Muon_pt"]], axis=1), axis=1)
    is_b = nano["Jet_btagCSVV2"] > 0.8
    for name, expected in {
        "ht": ak.sum(nano["Jet_pt"][jets], axis=1),
        "met": nano["MET_pt"],
        "num_jets": ak.sum(jets, axis=1),
        "num_bjets": ak.sum(jets & is_b, axis=1),
        "lepton_pt": lepton_pt,
        **{
            f"lepton_iso_{kind_name}": np.zeros(len(nano))
            for kind_name in ("charged", "photon", "neutral")
        },
    }.items():
        np.testing.assert_allclose(hlf[name], ak.to_numpy(expected), rtol=1e-6, err_msg=name)
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
    settings = IngestSettings(
        tree="Events", branch_map={**NANO_MAP, "photons.et": "Photon_pt"}, min_btag=0.8
    )
    with pytest.raises(InputFileError, match=r"for tracks\.pt"):
        checked_files(NANO, settings=settings, needs_particles=False)


def test_files_with_and_without_candidates_do_not_mix(tmp_path: Path) -> None:
    events = some_events()
    flat = write_flat(tmp_path / "whole.root", events)
    candidates = [
        field_or_path.branch
        for name in PARTICLE_COLLECTIONS
        for field_or_path in COLLECTIONS[name].values()
    ]
    bare = write_flat(tmp_path / "bare.root", events, without=candidates)
    settings = IngestSettings(
        tree="ntuple",
        branch_map={k: v for k, v in FLAT_MAP.items() if not v.startswith(CANDIDATES)},
    )
    (info,) = checked_files(bare, settings=settings, needs_particles=False)
    assert info.lacks_particles
    (actual,) = checked_files(flat, settings=IngestSettings(tree="ntuple", branch_map=FLAT_MAP))
    assert not actual.lacks_particles
    sources = [
        source_of("other", 0, str(field_or_path))._replace(needs_particles=False)
        for field_or_path in (flat, bare)
    ]
    with pytest.raises(ConflictingFilesError, match=r"whole\.root has tracks.*bare\.root has none"):
        inventory(sources, settings, known={str(flat): actual})


def some_events() -> list[Row]:
    """Events with anything from no to several candidates of each kind; one without a lepton, one with a NaN."""
    rng = np.random.default_rng(5)

    def angles() -> list[float]:
        return list(rng.uniform([-2.5, -3.1], [2.5, 3.1]))

    events = []
    for entry in range(12):
        few, many = rng.integers(0, 3), rng.integers(0, 20)
        events.append(
            event_row(
                tracks=[
                    track(
                        rng.exponential(2),
                        *angles(),
                        charge=1 - 2 * int(rng.integers(2)),
                        vertex=(0.1, -0.2, 30.0),
                    )
                    for _ in range(many)
                ],
                photons=[tower(rng.exponential(2), *angles()) for _ in range(few)],
                neutral_hadrons=[tower(rng.exponential(2), *angles()) for _ in range(many)],
                electrons=[] if entry == 3 else [lepton(20 + 2 * entry, *angles())],
                muons=[lepton(5 + entry, *angles(), charge=1) for _ in range(few)],
                jets=[jet(30 + entry, *angles(), btag=int(rng.integers(8))) for _ in range(few)],
                met=float("nan") if entry == 5 else 10.0 * entry,
                met_phi=rng.uniform(-3, 3),
                weight=0.5 + entry,
            )
        )
    return events


def write_flat(path: Path, events: Sequence[Row], **options: Any) -> Path:
    """An ntuple as `FLAT_MAP` names it: lists such as `Track_pt`, and plain numbers such as `MET`."""
    names = {
        branch: FLAT_MAP.get(field, "genWeight")
        for field, branch in LAYOUTS[BranchLayout.DELPHES].branches({}).items()
    }
    return write_delphes(path, events, tree="ntuple", rename=names, flat_scalars=True, **options)


def test_a_flat_ntuple_gives_the_table_of_the_delphes_file(tmp_path: Path) -> None:
    events = some_events()
    delphes = select(write_delphes(tmp_path / "delphes.root", events), IngestSettings())
    flat_path = write_flat(tmp_path / "flat.root", events)
    flat = select(flat_path, IngestSettings(tree="ntuple", branch_map=FLAT_MAP), weight="genWeight")
    assert delphes.tally().counts["rejected_nonfinite"] == 1
    assert delphes.tally().counts["rejected_no_lepton"] >= 1
    assert len(without_file(delphes.table)) >= 5
    assert without_file(flat.table) == without_file(delphes.table)
    assert flat.table.schema.equals(delphes.table.schema)
    for mine, theirs in (
        (flat.tally().counts, delphes.tally().counts),
        (flat.tally().weights, delphes.tally().weights),
    ):
        assert mine == {
            name.replace("MissingET.MET", "MET"): column for name, column in theirs.items()
        }


@pytest.mark.parametrize("wrong", ["muon", "muons.PT", "tracks.energy", "Muon", ""])
def test_a_branch_map_that_names_an_unknown_field_is_refused(wrong: str) -> None:
    with pytest.raises(
        ValidationError,
        match=rf"'{re.escape(wrong)}' is no collection or field of the events.*muons\.pt",
    ):
        IngestSettings(branch_map={wrong: "Muon"})


def test_branches_in_a_friend_tree_are_missing_and_the_message_says_why(tmp_path: Path) -> None:
    jets = [field.branch for field in COLLECTIONS["jets"].values()]
    path = write_delphes(tmp_path / "a.root", some_events(), without=jets)
    with uproot.update(path) as file:
        columns = {
            branch: column for branch, column in columns_of(some_events()).items() if branch in jets
        }
        file.mktree("friend", kinds_of(columns)).extend(columns)
    message = message_of(path, IngestSettings(), MissingBranchError)
    assert "lacks 4 needed branches" in message
    assert "Branches of friend trees are not read; write all into one tree." in message


def test_an_rntuple_gives_the_table_of_the_delphes_file(tmp_path: Path) -> None:
    delphes = write_delphes(tmp_path / "delphes.root", some_events())
    branches = columns_of(some_events(), flat_scalars=True)
    columns: dict[str, Any] = {
        "MissingET_MET": branches["MissingET.MET"],
        "MissingET_Phi": branches["MissingET.Phi"],
        "Weight": branches["Event.Weight"],
    }
    for fields in COLLECTIONS.values():
        members = {}
        for field in fields.values():
            stem, member = field.branch.split(".")
            members[member] = branches[field.branch]
        columns[stem] = ak.zip(members)
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
    delphes = write_delphes(tmp_path / "one.root", second)
    with uproot.update(path) as file:
        columns = columns_of(second)
        file.mktree("Delphes", kinds_of(columns)).extend(columns)
    with uproot.open(path) as file:
        assert sorted(file.keys()) == ["Delphes;1", "Delphes;2"]
    assert without_file(select(path, IngestSettings()).table) == without_file(
        select(delphes, IngestSettings()).table
    )
