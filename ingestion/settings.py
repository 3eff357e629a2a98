"""What a user may choose about reading ROOT files."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from ingestion.schema import COLLECTIONS, SCALARS


class SampleSettings(BaseModel):
    """One physics process and the files that hold its events."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=100)
    """Name in cutflows and tables: at most 100 letters, digits, `_ . + -`."""
    label: int = Field(ge=0, strict=True)
    """Class of its events: an index into `classes`."""
    files: list[str] = Field(min_length=1)
    """Paths, globs or URLs of its ROOT files. A glob may match nothing (yet) where another of them matches."""
    cross_section_pb: float | None = Field(default=None, gt=0)
    """Cross-section in picobarn, if known."""


class OnBadFile(StrEnum):
    """What to do about a file that cannot be read."""

    FAIL = "fail"
    """Stop and list what is wrong."""
    SKIP = "skip"
    """Go on without it, and list it in the manifest and the report."""


class IngestSettings(BaseModel):
    """How events are read and which are worth keeping."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
    #: Keys that do not change what comes of a file: they never make a stage stale.
    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset(
        {"entries_per_task", "on_bad_file", "max_bad_files", "settle_seconds", "until"}
    )

    tree: str = "Delphes"
    """Name of the tree (its highest cycle is read)."""
    branch_map: dict[str, str] = {}
    """Other branch names: a collection (`muons: Muon`) or one field (`muons.pt: Muon_pt`)."""
    min_track_pt: float = Field(default=0.5, ge=0)
    """Tracks need more pT than this [GeV]."""
    min_photon_et: float = Field(default=1.0, ge=0)
    """Photons need more ET than this [GeV]."""
    min_neutral_hadron_et: float = Field(default=1.0, ge=0)
    """Neutral hadrons need more ET than this [GeV]."""
    min_lepton_pt: float = Field(default=23.0, ge=0)
    """Events need an electron or muon with more pT than this [GeV]."""
    on_bad_file: OnBadFile = OnBadFile.FAIL
    """A file that cannot be read: fail, or skip (it is listed in the manifest and the report)."""
    max_bad_files: int = Field(default=10, ge=0)
    """More skipped files than this are an error all the same."""
    settle_seconds: float = Field(default=0.0, ge=0)
    """A file that cannot be read, and was modified less than so long ago, is still being written: it is left for the
    next run. Local files only."""
    until: AwareDatetime | None = None
    """Files that were modified at this time or later are left for another run. Local files only."""
    entries_per_task: int = Field(default=4000, ge=1, le=1_000_000)
    """Larger files are read in several pieces of about so many entries, one output file each."""

    @field_validator("branch_map")
    @classmethod
    def _known_fields(cls, value: dict[str, str]) -> dict[str, str]:
        known = {*COLLECTIONS, *field_branches({})}
        for name in value:
            if name not in known:
                raise ValueError(
                    f"'{name}' is no collection or field of the events; there are: {', '.join(sorted(known))}"
                )
        return value


def field_branches(branch_map: dict[str, str]) -> dict[str, str]:
    """Branch of every field of the events schema, after the user's branch map.

    A mapped collection replaces the part before the dot of Delphes' own branch names; a mapped field replaces the whole
    name and wins over its collection.

    Examples:
        >>> field_branches({"muons": "Muon", "met": "MET_pt"})["muons.pt"]
        'Muon.PT'
        >>> field_branches({"muons": "Muon", "met": "MET_pt"})["met"]
        'MET_pt'
    """
    branches = {name: field.branch for name, field in SCALARS.items()}
    for collection, fields in COLLECTIONS.items():
        for name, field in fields.items():
            stem, member = field.branch.split(".", 1)
            branches[f"{collection}.{name}"] = f"{branch_map.get(collection, stem)}.{member}"
    return {name: branch_map.get(name, branch) for name, branch in branches.items()}
