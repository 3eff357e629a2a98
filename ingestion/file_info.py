"""Results of the checks of input files: readable files, bad files, and files that wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ingestion.expressions import LabelBy, sample_labels
from ingestion.schema import PARTICLE_COLLECTIONS, SCALARS

#: The key that says, beside the settings of a reading, whether the files that were read have
#: particles. Earlier releases did not write it.
HAS_PARTICLES: Final = "has_particles"


class FileInfo(NamedTuple):
    """A checked ROOT file. Its identity is the UUID, never the path."""

    sample: str
    """Name of its sample."""
    label: int | None
    """Class of its events, an index; None if `label_by` gives the class of each event."""
    path: str
    uuid: str
    """Its identity: the UUID in the ROOT file, or one of its content or of its tree."""
    entries: int
    size: int
    """Size [bytes]."""
    modified: str
    """Time of the last change, in the format of its storage; empty if the server reports none."""
    missing_optional: Sequence[str]
    """Fields of the events (`weight`, `tracks.pt`) that the file lacks and may lack."""
    edges: Sequence[int]
    """Entries at which the file is cut into pieces, one events part each: between baskets, from 0
    to `entries`."""
    pass_through: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    """Type of each pass-through column (`IngestSettings.pass_through_columns`): int64 or
    float64."""
    digest: str = ""
    """Digest of the content of a local file; empty until the file is read."""
    revision: str = ""
    """Time of the last change in place; empty if the file never changed."""
    weight: str = SCALARS["weight"].branch
    """The branch of the weights, or a number of it; `none` if the sample states so, empty if the
    file has none."""
    like_weights: Sequence[str] = ()
    """Weights that the sample may state, of branches that are named like weights, if `weight` is
    empty."""
    generated: dict[str, float] = {}  # noqa: RUF012 - nobody changes it
    """Sum of weights of all generated events, by its name in `sum_of_weights` of the sample."""
    skim: str | None = ""
    """The sign that the file holds a part of the generated events; empty if it holds all, None if
    nothing shows it."""
    is_unclosed: bool = False
    """Whether the job that wrote the file ended before it closed it: the entries are those of its
    last save."""
    tree: str = ""
    branch_map: Mapping[str, str] = {}
    """Tree and branches that the sample states."""
    label_by: LabelBy = {}  # noqa: RUF012 - nobody changes it
    """Conditions of the sample on branches, each with the class of its events."""
    weights: Mapping[str, str] = {}
    """The further weights that the sample states."""
    list_lengths: Mapping[str, int] = {}
    """How many numbers an event has in the branch of one of `ingest.weights`, by column; 0 if all
    lists are empty."""
    absent_weights: Mapping[str, str] = {}
    """A sentence about the nearest branches for each of `ingest.weights` that the file lacks, by
    column."""

    @property
    def samples(self) -> dict[str, int | None]:
        """The names that its events get as their sample, each with the class."""
        return sample_labels(self.sample, self.label, self.label_by)

    @property
    def lacks_particles(self) -> bool:
        """Whether the file has no tracks, photons and neutral hadrons."""
        return any(field.startswith(PARTICLE_COLLECTIONS) for field in self.missing_optional)

    @property
    def location(self) -> str:
        """Sample and path, as messages name the file."""
        return f"sample '{self.sample}': {self.path}"


class BadFile(NamedTuple):
    """A skipped file and the reason."""

    sample: str
    path: str
    reason: str
    """Name of the error."""
    message: str
    size: int = -1
    """Size [bytes]; -1 if it could not be read."""
    modified: str = ""
    """Time of the last change; empty if unknown."""
    found_while_reading: bool = False
    """Whether only reading the content shows the damage; the checks of `inventory` pass."""


class WaitingFile(NamedTuple):
    """A file that waits for a later run, and the reason."""

    sample: str
    path: str
    reason: str


def have_particles(infos: Iterable[FileInfo]) -> bool | None:
    """Whether files that were checked together have particles; None if they have no entries."""
    for info in infos:
        if info.entries:
            return not info.lacks_particles
    return None


#: The result of an earlier check.
Checked = FileInfo | BadFile
