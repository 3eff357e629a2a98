"""Settings of the ingestion: samples, branch names, thresholds and bad files."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    Field,
    field_validator,
    model_validator,
)

from hep_core.input_errors import nearest_names
from hep_core.settings_section import SettingsSection
from ingestion.expressions import (
    COLUMN_PREFIX,
    ColumnSource,
    LabelBy,
    LabelRule,
    sample_labels,
)
from ingestion.known_layouts import LAYOUTS, BranchLayout, LayoutNames
from ingestion.schema import COLLECTIONS, WEIGHT_PREFIX

#: The `weight` of a sample without weights of a generator.
NO_WEIGHT: Final = "none"


def _check_fields(branch_map: dict[str, str]) -> dict[str, str]:
    """Refuse keys of a branch map that are no collection, field or count of a collection."""
    if "weight" in branch_map:
        raise ValueError(
            f"'weight' belongs to each sample: `weight: {branch_map['weight']}`, or `weight: none`"
        )
    names = {
        *COLLECTIONS,
        *LAYOUTS[BranchLayout.DELPHES].branches({}),
        *(f"{collection}.count" for collection in COLLECTIONS),
    }
    valid_names = sorted(names - {"weight"})
    for name in branch_map:
        if name not in valid_names:
            raise ValueError(
                f"'{name}' is no collection or field of the events."
                f"{nearest_names(name, valid_names)} There are: {', '.join(valid_names)}"
            )
    return branch_map


BranchMap = Annotated[dict[str, str], AfterValidator(_check_fields)]


def _check_no_product(text: str) -> None:
    """Refuse a product in place of a branch."""
    if "*" in text:
        raise ValueError(
            f"'{text}': products are not computed. Write the product as a branch, for example by "
            f"Define and Snapshot of RDataFrame. Only ingest.weights may have `weight * BRANCH`, a "
            f"factor of the sample's weight"
        )


def _check_weights(weights: dict[str, str]) -> dict[str, str]:
    for text in weights.values():
        _check_no_product(ColumnSource.of_weight(text).branch)
    return weights


class SampleSettings(SettingsSection):
    """One physics process and the files that hold its events."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=100)
    """Name of the sample in cutflows and tables: at most 100 letters, digits, `_ . + -`."""
    label: int | None = Field(default=None, ge=0, strict=True)
    """Class of the sample's events: an index into `classes`, from 0."""
    label_by: dict[str, Annotated[int, Field(ge=0, strict=True)] | None] = Field(default={})
    """Instead of `label`, conditions on branches (`abs(flavour) == 5`), each with the class of the
    events for which it holds; null leaves them out. Exactly one holds for each event. Those of
    class 1 are then called `<name>.1`."""
    files: list[str] = Field(min_length=1)
    """Paths, globs or URLs of the sample's ROOT files, `bundled://*` for the bundled ones, or
    `simulate://NAME` for a process of `simulate`. `~`, `$NAME`, `**` and `{a,b}` are as in a shell.
    At least one must match; a glob may match nothing yet."""
    weight: str | None = Field(default=None, min_length=1)
    """Weight of the generator: a branch (`genWeight`), a number of a list per event
    (`LHEWeight[3]`, from 0), or `none` (every event has weight 1, as in collision data); null for
    that of the layout, Event.Weight or genWeight, where the files have it."""
    weights: dict[str, str] = Field(default={})
    """Other weights of the sample, before those of the same names in `ingest.weights`; `none` for
    its `weight`."""
    tree: str = ""
    """Name of the tree in the files of the sample; empty for `ingest.tree`."""
    branch_map: BranchMap = Field(default={})
    """Branch names of the sample, before those of `ingest.branch_map`."""
    cross_section_pb: float | None = Field(default=None, gt=0)
    """Cross-section of the sample [pb], greater than 0, with k-factor and efficiency of the
    generator's filter; null if unknown, or for that of `simulate`."""
    sum_of_weights: float | str | None = None
    """Sum of the weights of all generated events, also of those that a skim dropped: a number for
    all files, or a branch of another tree (`Runs.genEventSumw`) or bin of a histogram
    (`CountWeighted[1]`), summed over the files; null for that of the events read."""
    cross_section_error_pb: float = Field(default=0.0, ge=0)
    """Its error of one standard deviation [pb], which rates and purity contain; 0 if unknown, or
    for that of `simulate`."""

    @field_validator("sum_of_weights", mode="before")
    @classmethod
    def _check_sum(cls, value: object) -> object:
        """Accept a number above 0 as a float, a text of the form of a branch or bin, and None."""
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"[^.]+\..+|.+\[[1-9][0-9]*\]", value):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise ValueError(
            "it is a number above 0, a branch with its tree (Runs.genEventSumw), or a bin of a "
            "histogram, from 1 (CountWeighted[1])"
        )

    @model_validator(mode="after")
    def _has_labels(self) -> Self:
        """Check that either `label` or `label_by` gives classes, and that conditions are valid."""
        if (self.label is None) != bool(self.label_by):
            which_are_set = "no" if self.label is None else "both"
            raise ValueError(
                f"sample '{self.name}' has {which_are_set} label and label_by: give the class of all its "
                f"events as `label`, or conditions on a branch as `label_by`"
            )
        if self.label_by and not self.labels:
            raise ValueError(f"sample '{self.name}': label_by gives no event a class")
        LabelRule.of(self.label_by)
        return self

    @property
    def labels(self) -> list[int]:
        """The classes of its events."""
        labels = sample_labels(self.name, self.label, self.label_by).values()
        return [label for label in labels if label is not None]

    def by_label(self) -> list[Self]:
        """One sample for each class of its events, all with the same settings.

        Each keeps the cross-section and the sum of weights of the whole sample: they are not split.
        """
        return [
            self.model_copy(update={"name": name, "label": label})
            for name, label in sample_labels(self.name, self.label, self.label_by).items()
            if label is not None
        ]

    _weights_are_branches = field_validator("weights")(_check_weights)

    @field_validator("weight", mode="before")
    @classmethod
    def _check_weight(cls, value: object) -> object:
        """Accept a branch, `none` in any case of letters, and None; refuse products."""
        if value is None:
            return None
        if isinstance(value, str):
            _check_no_product(value)
            return NO_WEIGHT if value.lower() == NO_WEIGHT else value
        raise ValueError(
            "it is a branch, a number of a list (LHEWeight[3]), or `none`: every event has weight 1"
        )


class OnBadFile(StrEnum):
    """What to do with a file that cannot be read."""

    FAIL = "fail"
    """Stop, and list the bad files with their errors."""
    SKIP = "skip"
    """Continue without the file, and list it in the manifest and the report."""


class OnDuplicate(StrEnum):
    """What to do with an event that another file holds too."""

    FAIL = "fail"
    """Stop, and name both files."""
    DROP = "drop"
    """Keep the first one, and count the copies."""


class IngestSettings(SettingsSection):
    """How events are read, and which events and candidates are kept."""

    #: Keys that do not change the output of a file: they never make a stage stale.
    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset(
        {"entries_per_task", "on_bad_file", "max_bad_files", "settle_seconds", "until"}
    )

    layout: BranchLayout = BranchLayout.DELPHES
    """Whose names of tree, branches and weight the files have."""
    tree: str = ""
    """Name of the tree in the ROOT files; of several cycles the highest is read. Empty for that of
    the layout."""
    branch_map: BranchMap = Field(default={})
    """Branch names that differ from those of the layout: of a collection (`muons: Muon`) or a field
    (`muons.pt: Muon_pt`). Of arrays of a fixed size, `jets.count` is the branch with the number of
    candidates, `filled` or `all`."""
    min_btag: float | None = None
    """A jet has a b-tag (bit 1) if the number in its branch, a discriminant, is above this
    threshold; null if the branch holds bits, as in Delphes."""
    pass_through: list[str] = Field(default=[])
    """Further branches with one number per event, such as `Event.Number`, kept as columns of this
    name up to the predictions."""
    weights: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")], str] = Field(default={})
    """Other weights of the generator by name, such as `scale_up: WeightLHEF.Weight[7]`: a branch in
    the scale of the sample's `weight`, of a list the number in brackets (from 0); with `weight * `
    before it, a branch with a factor of that weight. They are the columns `weight_<name>` up to the
    predictions, and `evaluate` shows what the metrics are with each. Where a file lacks the branch,
    or the list of an event is empty, they are the sample's weight."""
    min_track_pt: float = Field(default=0.5, ge=0)
    """Tracks with a pT above this threshold are kept [GeV]."""
    min_photon_et: float = Field(default=1.0, ge=0)
    """Photons with an ET above this threshold are kept [GeV]."""
    min_neutral_hadron_et: float = Field(default=1.0, ge=0)
    """Neutral hadrons with an ET above this threshold are kept [GeV]."""
    min_lepton_pt: float = Field(default=23.0, ge=0)
    """Events with an electron or muon whose pT is above this threshold are kept [GeV]."""
    on_bad_file: OnBadFile = OnBadFile.FAIL
    """What to do with a file that cannot be read: `fail`, or `skip` it and list it in manifest and
    report."""
    max_bad_files: int = Field(default=10, ge=0)
    """Highest number of files that `on_bad_file: skip` may skip; with more, the run fails."""
    on_duplicate: OnDuplicate = OnDuplicate.FAIL
    """What to do with events whose content another file holds too, as after `hadd` or a skim:
    `fail`, or `drop` the copies. Copies would be in the training and the test split at once. An
    event in two classes always fails."""
    settle_seconds: float = Field(default=0.0, ge=0)
    """Age up to which an unreadable local file counts as still being written and is left for the
    next run [s]. The age is the time since its last change; 0 means never."""
    until: AwareDatetime | None = None
    """Time from which on modified local files are left for a later run, with time zone; null for no
    limit."""
    entries_per_task: int = Field(default=4000, ge=1, le=1_000_000)
    """Approximate number of entries per Spark task: larger files are cut into pieces, with one
    output file each."""

    @field_validator("pass_through")
    @classmethod
    def _check_pass_through(cls, columns: list[str]) -> list[str]:
        """Refuse names that begin as those of the columns of `ingest.weights` do."""
        for name in columns:
            if name.startswith(WEIGHT_PREFIX):
                raise ValueError(
                    f"'{name}': columns that begin with '{WEIGHT_PREFIX}' are those of "
                    f"ingest.weights"
                )
        return columns

    _weights_are_branches = field_validator("weights")(_check_weights)

    @property
    def names(self) -> LayoutNames:
        """The names of the layout."""
        return LAYOUTS[self.layout]

    @property
    def tree_name(self) -> str:
        """Name of the tree of samples that state none."""
        return self.tree or self.names.tree

    @property
    def pass_through_columns(self) -> dict[str, ColumnSource]:
        """The source of each pass-through column and further weight, by its key.

        The key of a pass-through column is its name behind `COLUMN_PREFIX`. A weight
        `scale_up` of the config is the column `weight_scale_up`, and so is its key.
        """
        columns = {f"{COLUMN_PREFIX}{name}": ColumnSource(name) for name in self.pass_through}
        for name, text in self.weights.items():
            columns[f"{WEIGHT_PREFIX}{name}"] = ColumnSource.of_weight(text)
        return columns

    def columns(
        self, weight: str, label_by: LabelBy, names: Container[str]
    ) -> dict[str, ColumnSource]:
        """The source of each column in a file, by its key.

        The columns are those that pass through, those of `label_by`, and the `weight`, unless it is
        empty. `names` are the branches of the file.
        """
        columns = self.pass_through_columns | LabelRule.of(label_by).sources
        if weight:
            columns["weight"] = ColumnSource.of_weight(weight)
        return {key: source.in_file(names) for key, source in columns.items()}

    def branches(self, columns: Mapping[str, ColumnSource] = {}) -> dict[str, str]:
        """The branch of each field of the events and each of the columns, by name or key.

        One of `ingest.weights` that is stated as `none` has no branch.
        """
        branches = self.names.branches(self.branch_map)
        for key, source in columns.items():
            if key == "weight" or source.branch != NO_WEIGHT:
                branches[key] = source.branch
        return branches

    def for_sample(
        self, tree: str, branch_map: Mapping[str, str], weights: Mapping[str, str] = {}
    ) -> Self:
        """The settings for the files of a sample, which may have its own tree, names and weights.

        Its names and weights come before those of all samples. An empty tree is that of
        `ingest.tree`, else of the layout.
        """
        # A collection that the sample maps replaces also the fields that all samples map.
        common_map = {
            name: branch
            for name, branch in self.branch_map.items()
            if name.partition(".")[0] not in branch_map
        }
        return self.model_copy(
            update={
                "tree": tree or self.tree_name,
                "branch_map": common_map | dict(branch_map),
                "weights": self.weights | dict(weights),
            }
        )
