"""Files of known layouts need no map; the error about missing branches gives the lines to paste."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import awkward as ak
import pytest
import uproot
import yaml
from delphes_files import (
    checked_files,
    columns_of,
    kinds_of,
    read_raw_events,
    select,
    write_delphes,
)
from event_rows import event_row, jet, lepton

from ingestion.errors import MissingBranchError, MissingTreeError, WrongBranchTypeError
from ingestion.known_layouts import BranchLayout
from ingestion.settings import IngestSettings

CHECKOUT: Final = Path(__file__).resolve().parents[2]
CMS_FILE: Final = CHECKOUT / "tests" / "data" / "nanoAOD_2015_CMS_Open_Data_ttbar.root"
TTBAR_FILE: Final = CHECKOUT / "docs" / "examples" / "nanoaod" / "ttbar.root"
EVENTS: Final = [
    event_row(
        electrons=[lepton(40.0, 0.5, 1.0)],
        muons=[lepton(9.0, 1.5, 2.0)],
        jets=[jet(90.0, 0.1, 0.2, btag=1)],
    ),
    event_row(electrons=[lepton(41.0, 0.5, 1.0)], jets=[jet(70.0, 2.1, 2.2)], weight=-2.0),
]
PARTICLES: Final = ("EFlowTrack", "EFlowPhoton", "EFlowNeutralHadron")


def write_ntuple(path: Path, tree: str, names: dict[str, str]) -> Path:
    """Write `EVENTS` without particles under other names of branches; returns the path."""
    columns = {}
    for name, values in columns_of(EVENTS, flat_scalars=True).items():
        if not name.startswith(PARTICLES):
            columns[names.get(name, name)] = values
    with uproot.recreate(path) as file:
        file.mktree(tree, kinds_of(columns)).extend(columns)
    return path


def names_of(stems: dict[str, str], separator: str = "_") -> dict[str, str]:
    """The names of an ntuple for the branches of Delphes, where stems have other names."""
    members = {"PT": "pt", "Eta": "eta", "Phi": "phi", "Charge": "charge", "BTag": "btagDeepFlavB"}
    names = {}
    for stem, new_stem in stems.items():
        for member, new_member in members.items():
            names[f"{stem}.{member}"] = f"{new_stem}{separator}{new_member}"
    return names


SCALAR_NAMES: Final = {
    "MissingET.MET": "MET_pt",
    "MissingET.Phi": "MET_phi",
    "Event.Weight": "genWeight",
}
NANOAOD: Final = (
    names_of({"Electron": "Electron", "MuonTight": "Muon", "Jet": "Jet"}) | SCALAR_NAMES
)


def test_nanoaod_is_read_without_a_map(tmp_path: Path) -> None:
    path = write_ntuple(tmp_path / "a.root", "Events", NANOAOD)
    settings = IngestSettings(layout=BranchLayout.NANOAOD, min_btag=0.5)

    (info,) = checked_files(path, settings=settings, needs_particles=False)
    table = select(info, settings).table

    assert info.weight == "genWeight"
    assert table["weight"].to_pylist() == [1.0, -2.0]
    for name in ("electrons", "muons", "met", "met_phi"):
        assert table[name].to_pylist() == [event[name] for event in EVENTS]
    assert ak.from_arrow(table)["jets", "btag"].to_list() == [[1], [0]]


def test_a_file_of_cms_is_read_without_a_map() -> None:
    settings = IngestSettings(layout=BranchLayout.NANOAOD, min_btag=0.5)
    (info,) = checked_files(CMS_FILE, settings=settings, needs_particles=False)
    with uproot.open({CMS_FILE: "Events"}) as tree:
        expected = tree.arrays(["Electron_pt", "Muon_pt", "Jet_pt", "MET_pt", "genWeight"])

    raw = read_raw_events(info, settings)

    for collection, branch in (
        ("electrons", "Electron_pt"),
        ("muons", "Muon_pt"),
        ("jets", "Jet_pt"),
    ):
        pts = raw.collections[collection].to_awkward()["pt"]
        assert pts.to_list() == expected[branch].to_list()
    assert raw.scalars["met"].tolist() == expected["MET_pt"].to_list()
    assert raw.scalars["weight"].tolist() == expected["genWeight"].to_list()


@pytest.mark.parametrize("branch_map", [{}, {"jets.btag": "Jet_btagDeepFlavB"}])
def test_a_discriminant_without_a_threshold_is_refused_before_events_are_read(
    branch_map: dict[str, str],
) -> None:
    settings = IngestSettings(layout=BranchLayout.NANOAOD, branch_map=branch_map)
    message = (
        r"branch 'Jet_btagDeepFlavB' holds {}, .*threshold of a discriminant.*ingest\.min_btag"
    )

    with pytest.raises(WrongBranchTypeError, match=message.format(r"-3000\.0")):
        checked_files(CMS_FILE, settings=settings, needs_particles=False)
    with pytest.raises(WrongBranchTypeError, match=message.format(r"0\.\d+")):
        checked_files(TTBAR_FILE, settings=settings, needs_particles=False)


@pytest.mark.parametrize("separator", ["_", "."])
def test_a_mapped_collection_finds_branches_in_small_letters(
    tmp_path: Path, separator: str
) -> None:
    names = names_of({"Electron": "goodEl"}, separator) | {"MissingET.MET": "missinget_met"}
    path = write_ntuple(tmp_path / "a.root", "Delphes", names)
    settings = IngestSettings(branch_map={"electrons": "goodEl"})

    (info,) = checked_files(path, settings=settings, needs_particles=False)
    table = select(info, settings).table

    assert table["electrons"].to_pylist() == [event["electrons"] for event in EVENTS]
    assert table["met"].to_pylist() == [event["met"] for event in EVENTS]


def test_a_branch_in_the_letters_of_the_config_comes_before_others(tmp_path: Path) -> None:
    second = {"electron_pt": columns_of(EVENTS)["Electron.PT"] * 2}
    path = write_delphes(tmp_path / "a.root", EVENTS, more=second)
    assert select(path).table["electrons"].to_pylist() == [event["electrons"] for event in EVENTS]
    with pytest.raises(MissingBranchError, match="'Electron_Pt' is the name of 2 branches"):
        checked_files(path, settings=IngestSettings(branch_map={"electrons.pt": "Electron_Pt"}))


@pytest.mark.parametrize(
    ("stems", "scalars", "lines"),
    [
        (
            {"Electron": "Electron", "MuonTight": "Muon", "Jet": "Jet"},
            SCALAR_NAMES,
            "\n  ingest: {layout: nanoaod}",
        ),
        (
            {"Electron": "goodEl", "MuonTight": "goodMu", "Jet": "cleanJet"},
            {},
            """
  ingest:
    branch_map:
      electrons: goodEl
      muons: goodMu
      jets: cleanJet
      jets.btag: cleanJet_btagDeepFlavB""",
        ),
        (
            {},
            {"MissingET.MET": "PFMET_pt", "MissingET.Phi": "MissingET_phi2"},
            "\n  ingest:\n    branch_map:\n      met_phi: MissingET_phi2",
        ),
    ],
)
def test_the_error_about_missing_branches_gives_the_lines_to_paste(
    tmp_path: Path, stems: dict[str, str], scalars: dict[str, str], lines: str
) -> None:
    path = write_ntuple(tmp_path / "a.root", "Delphes", names_of(stems) | scalars)

    with pytest.raises(MissingBranchError) as caught:
        checked_files(path, needs_particles=False)

    message = str(caught.value)
    assert lines in message
    # YAML that a config can hold.
    config = yaml.safe_load(message[message.index("\n  ingest") :])
    assert IngestSettings.model_validate(config["ingest"])


def test_a_tree_of_another_layout_is_named_with_the_layout(tmp_path: Path) -> None:
    path = write_ntuple(tmp_path / "a.root", "Events", NANOAOD)
    with pytest.raises(
        MissingTreeError, match=r"For the tree 'Events' there is `ingest: {layout: nanoaod}`"
    ):
        checked_files(path, needs_particles=False)
