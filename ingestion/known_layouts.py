"""The layouts of files that need no map: names of the tree, of the branches and of the weight."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from ingestion.schema import COLLECTIONS, SCALARS


class BranchLayout(StrEnum):
    """Whose names the files have."""

    DELPHES = "delphes"
    """Tree Delphes, with Electron.PT and Event.Weight."""
    NANOAOD = "nanoaod"
    """CMS' NanoAOD: tree Events, with Electron_pt, Muon_pt, Jet_btagDeepFlavB, MET_pt and
    genWeight."""


class LayoutNames(NamedTuple):
    """The names of a layout."""

    tree: str
    stems: Mapping[str, str]
    """The start of the branches of a collection, by collection."""
    members: Mapping[str, str]
    """The name after the dot (or underscore), by field of the events."""
    scalars: Mapping[str, str]
    """Branches of one number an event, by field of the events."""

    def branches(self, branch_map: Mapping[str, str]) -> dict[str, str]:
        """Branch of every field of the events, such as `muons.pt`, with a branch map applied.

        A key of the map is a collection or a field. A mapped collection (`muons: Muon`) replaces
        the stem of its branches. A mapped field (`muons.pt: Muon_pt`) replaces the whole name, also
        where its collection is mapped.
        """
        names = dict(self.scalars)
        for collection, fields in COLLECTIONS.items():
            stem = branch_map.get(collection, self.stems[collection])
            names |= {f"{collection}.{field}": f"{stem}.{self.members[field]}" for field in fields}
        return {field: branch_map.get(field, branch) for field, branch in names.items()}


def _delphes_names() -> LayoutNames:
    """The names of Delphes, from the branches in the table of fields (`Electron.PT`)."""
    stems, members = {}, {}
    for collection, fields in COLLECTIONS.items():
        for name, field in fields.items():
            stems[collection], members[name] = field.branch.split(".", 1)
    scalars = {name: field.branch for name, field in SCALARS.items()}
    return LayoutNames("Delphes", stems, members, scalars)


LAYOUTS: Final = {
    BranchLayout.DELPHES: _delphes_names(),
    BranchLayout.NANOAOD: LayoutNames(
        tree="Events",
        # NanoAOD has no lists of tracks and of particle-flow photons and neutral hadrons; its
        # Photon is none of these.
        stems={
            "tracks": "PFTrack",
            "photons": "PFPhoton",
            "neutral_hadrons": "PFNeutralHadron",
            "electrons": "Electron",
            "muons": "Muon",
            "jets": "Jet",
        },
        members={
            **{name: name for name in ("charge", "pt", "eta", "phi", "x", "y", "z")},
            "et": "pt",
            "pid": "pdgId",
            "btag": "btagDeepFlavB",
        },
        scalars={"met": "MET.pt", "met_phi": "MET.phi", "weight": "genWeight"},
    ),
}
