"""Finds and checks the input files: globs, ROOT headers, identities (UUIDs), trees, branches, numbers of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from hep_core.input_errors import InputFileError, nearest_names, translate_read_errors
from hep_core.storage import retry_remote, size_and_time
from ingestion.baskets import basket_boundaries, chunk_edges
from ingestion.branches import (
    INTEGERS_FIX,
    column_numbers,
    convert_exactly,
    is_variation,
    list_numbers,
)
from ingestion.conflicts import (
    WaitingFile,
    assign_unique_ids,
    check_conflicts,
    check_number_of_bad_files,
    check_waiting_samples,
    content_identity,
    is_recent,
    local_time,
    tree_identity,
)
from ingestion.errors import (
    BadFilesError,
    MissingBranchError,
    MissingTreeError,
    UnclosedFileError,
    group_messages,
)
from ingestion.expressions import ColumnSource, LabelBy, LabelRule, sample_labels
from ingestion.layout import Branch, BranchNames, field_sources, is_fixed
from ingestion.root_format import TREES, check_header, open_root
from ingestion.schema import COLLECTIONS, PARTICLE_COLLECTIONS, SCALARS
from ingestion.settings import NO_WEIGHT, IngestSettings, OnBadFile, SampleSettings
from ingestion.sources import SourceFile, expand
from ingestion.suggestions import key_of_field, lines_to_paste
from ingestion.weights import (
    check_weight_scale,
    generated_sum,
    like_weights,
    list_lengths,
    sign_of_a_skim,
)

_INSPECTORS: Final = 8
#: Number of entries whose b-tags are read to see whether they are bits.
_FIRST_ENTRIES: Final = 1000
#: What a sample states of names, which its files keep.
_NAMES: Final = ("tree", "branch_map", "label_by", "weights")


class FileInfo(NamedTuple):
    """A checked ROOT file. Its identity is the UUID, never the path."""

    sample: str
    label: int | None
    path: str
    uuid: str
    entries: int
    size: int
    modified: str
    missing_optional: Sequence[str]
    edges: Sequence[int]
    """Entries at which the file is cut into pieces, one events part each: between baskets, from 0 to `entries`."""
    pass_through: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    """Type of each pass-through column (`IngestSettings.pass_through_columns`): int64 or float64."""
    digest: str = ""
    """Digest of the content of a local file; empty until the file is read."""
    revision: str = ""
    """Time of the last change in place; empty if the file never changed."""
    weight: str = SCALARS["weight"].branch
    """The branch of the weights, or a number of it; `none` if the sample states so, empty if the file has none."""
    like_weights: Sequence[str] = ()
    """Branches that are named like weights, if `weight` is empty."""
    generated: dict[str, float] = {}  # noqa: RUF012 - nobody changes it
    """Sum of weights of all generated events, by the words that the sample has for it."""
    skim: str | None = ""
    """What says that the file holds a part of the generated events; empty: that it holds all; None: nothing."""
    is_unclosed: bool = False
    """Whether the job that wrote the file ended before it closed it: the entries are those of its last save."""
    tree: str = ""
    branch_map: Mapping[str, str] = {}
    """Tree and branches that the sample states."""
    label_by: LabelBy = {}  # noqa: RUF012 - nobody changes it
    weights: Mapping[str, str] = {}
    """The other weights that the sample states."""
    list_lengths: Mapping[str, int] = {}
    """How many numbers an event has in the branch of one of `ingest.weights`, by column; 0 if all lists are empty."""
    absent_weights: Mapping[str, str] = {}
    """Words about the nearest branches to those of `ingest.weights` that the file lacks, by column."""

    @property
    def samples(self) -> dict[str, int | None]:
        """What its events are called, with their class."""
        return sample_labels(self.sample, self.label, self.label_by)

    @property
    def lacks_particles(self) -> bool:
        """Whether the file has no tracks, photons and neutral hadrons."""
        return any(field.startswith(PARTICLE_COLLECTIONS) for field in self.missing_optional)

    @property
    def place(self) -> str:
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
    modified: str = ""
    found_while_reading: bool = False
    """Whether only reading the content shows the damage; the checks of `inventory` pass."""


#: The result of an earlier check.
Known = FileInfo | BadFile


class Inventory(NamedTuple):
    """The files that can be read, those that are skipped, and those that wait for a later run."""

    infos: list[FileInfo]
    bad: list[BadFile]
    waiting: list[WaitingFile] = []  # noqa: RUF012 - nobody changes it


def find_input_files(
    samples: Iterable[SampleSettings],
    settings: IngestSettings,
    say: Callable[[str], None],
    *,
    strict: bool = False,
    known: Mapping[str, Known] | None = None,
    on_file: Callable[[int, int], None] | None = None,
    needs_particles: bool = True,
    needs_weights: bool = True,
) -> Inventory:
    """Find and check the files of all samples; `say` gets a line about each that waits, and each glob without files.

    If `strict`, every glob must match. Without `needs_weights`, files may lack the weights of their sample. The other
    arguments and errors are those of `expand` and `inventory`; FilesToComeError also if all files of a sample wait.
    """
    sources = expand(samples, on_unmatched=None if strict else lambda words: say(f"note: {words}"))
    sources = [
        each._replace(needs_weight=needs_weights, needs_particles=needs_particles)
        for each in sources
    ]
    found = inventory(sources, settings, known=known, on_file=on_file)
    for words in group_messages(
        (each.path, f"{each.path}: {each.reason}") for each in found.waiting
    ):
        say(f"left for another run: {words}")
    check_waiting_samples(
        found.waiting, {info.sample for info in found.infos}, [bad.sample for bad in found.bad]
    )
    return found


def inventory(
    sources: Sequence[SourceFile],
    settings: IngestSettings,
    *,
    known: Mapping[str, Known] | None = None,
    on_file: Callable[[int, int], None] | None = None,
) -> Inventory:
    """Check every file: ROOT header, tree, needed branches, number of entries, no file twice.

    `known` are results of an earlier call by path: a file with the same size and modification time is not opened again,
    unless it failed these checks (a fix may change neither). `on_file` is called with (files done, files in all).

    Raises:
        InputFileError: One file is bad; several, or more than may be skipped, raise BadFilesError.
        ConflictingFilesError: A file is there twice, or some lack weights (of their class) or particles of others.
    """
    before = known or {}
    results = []
    with ThreadPoolExecutor(_INSPECTORS) as pool:
        checked = pool.map(
            lambda source: _check(source, settings, before.get(source.path)), sources
        )
        for done, result in enumerate(checked, start=1):
            results.append(result)
            if on_file:
                on_file(done, len(sources))
    pairs = zip(sources, results, strict=True)
    BadFilesError.raise_any(
        [(each.path, result) for each, result in pairs if isinstance(result, InputFileError)]
    )
    found = Inventory(
        assign_unique_ids([result for result in results if isinstance(result, FileInfo)], before),
        [result for result in results if isinstance(result, BadFile)],
        [result for result in results if isinstance(result, WaitingFile)],
    )
    check_number_of_bad_files(found.bad, settings)
    check_conflicts(found.infos)
    return found


def _check(
    source: SourceFile, settings: IngestSettings, before: Known | None
) -> Known | WaitingFile | InputFileError:
    """Check one file; an error of the file is a result."""
    size, modified = -1, ""
    try:
        size, modified = stamp = retry_remote(size_and_time, source.path)
        return _look(source, settings, before, stamp)
    except InputFileError as problem:
        if is_recent(modified, settings.settle_seconds):
            reason = (
                f"it may still be being written (bad if it is so {settings.settle_seconds:g} s, ingest.settle_seconds, "
                f"after its last change): {problem}"
            )
            return WaitingFile(source.sample.name, source.path, reason)
        if settings.on_bad_file is OnBadFile.FAIL or not problem.may_be_skipped:
            return problem
        return BadFile(
            source.sample.name, source.path, type(problem).__name__, str(problem), size, modified
        )


def _look(
    source: SourceFile, settings: IngestSettings, before: Known | None, stamp: tuple[int, str]
) -> Known | WaitingFile:
    """Check one file of this size and time; reuse the earlier result if the file is unchanged."""
    size, modified = stamp
    if settings.until is not None and local_time(modified) >= settings.until.timestamp():
        reason = f"it was modified at or after ingest.until, {settings.until}; a run with a later one takes it"
        return WaitingFile(source.sample.name, source.path, reason)
    # Without a modification time from the server, changes cannot be seen.
    if before is not None and modified and (before.size, before.modified) == stamp:
        if isinstance(before, FileInfo) and _is_read_alike(before, source, settings):
            return before._replace(sample=source.sample.name, label=source.sample.label)
        if (
            isinstance(before, BadFile)
            and settings.on_bad_file is OnBadFile.SKIP
            and before.found_while_reading
        ):
            return before._replace(sample=source.sample.name)
    info = retry_remote(inspect_file, source, settings, size=size, modified=modified)
    if settings.settle_seconds and retry_remote(size_and_time, source.path) != stamp:
        return WaitingFile(source.sample.name, source.path, "it changed while it was checked")
    if info.is_unclosed and is_recent(modified, settings.settle_seconds):
        return WaitingFile(
            source.sample.name, source.path, "it may still be being written: it is not closed"
        )
    return info


def _is_read_alike(before: FileInfo, source: SourceFile, settings: IngestSettings) -> bool:
    """Whether a file was read by the names, and checked for the weights, that its sample states."""
    weights = {before.weight or None}
    if before.weight == settings.names.scalars["weight"]:
        weights.add(None)
    sample = source.sample
    same_names = all(getattr(before, key) == getattr(sample, key) for key in _NAMES)
    return (
        same_names and sample.weight in weights and source.sum_branch in {None, *before.generated}
    )


def inspect_file(
    source: SourceFile, settings: IngestSettings, *, size: int, modified: str
) -> FileInfo:
    """Open one ROOT file and check that it holds everything needed.

    Raises:
        InputFileError: It is no ROOT file, truncated, damaged or out of reach, or its tree or a branch is missing.
    """
    is_unclosed = check_header(source.path, size)
    sample, usual_weight = source.sample, settings.names.scalars["weight"]
    weight = sample.weight
    other_tree = sample.tree if sample.tree != settings.tree_name else ""
    settings = settings.for_sample(sample.tree, sample.branch_map, sample.weights)
    with translate_read_errors(source.path, "its directory"), open_root(source.path) as file:
        kinds = file.classnames(cycle=False)
        if is_unclosed and not kinds:
            raise UnclosedFileError(
                f"{source.path} was never closed: the job that wrote its {size} bytes ended before it saved a tree. "
                f"Run the job again, or take the file out of the sample's files."
            )
        if kinds.get(settings.tree) not in TREES:
            raise MissingTreeError.at(source.path, settings.tree, kinds)
        tree: Any = file[settings.tree]
        own: dict[str, Any] = {key: getattr(sample, key) for key in _NAMES}
        own["is_unclosed"] = is_unclosed
        # Of zeros, ROOT's reproducible output: the content is the identity.
        uuid = str(file.file.uuid) if file.file.uuid.int else content_identity(source.path)
        uuid, entries = (
            tree_identity(uuid, other_tree) if other_tree else uuid,
            int(tree.num_entries),
        )
        if named := source.sum_branch:
            own["generated"] = {named: generated_sum(file, named, source.path)}
        own["skim"] = sign_of_a_skim(file, tree, entries, source.path)
        stamp = (sample.name, sample.label, source.path, uuid, entries, size, modified)
        if not entries:
            # What it lacks is not missed: a Snapshot that nothing passes may have no branches.
            return FileInfo(*stamp, (), (0,), weight=weight or usual_weight, **own)
        names = BranchNames(tree, source.path)
        if (
            not source.needs_weight
            and ColumnSource.of_weight(weight or usual_weight).branch not in names
        ):
            weight = NO_WEIGHT
        missing = _refuse_missing(source, weight, settings, names)
        has_weight = "weight" not in missing
        weight = weight or (usual_weight if has_weight else "")
        check_weight_scale(source.sum_branch or "", weight, source.path)
        fields = {
            name: each
            for name, each in settings.names.branches(settings.branch_map).items()
            if name not in missing
        }
        if has_weight:
            fields["weight"] = ColumnSource.of_weight(weight).branch
        sources = field_sources(names, fields, settings.branch_map)
        if settings.min_btag is None and "jets.count" not in settings.branch_map:
            _refuse_discriminant(sources["jets.btag"], entries)
        wanted = settings.pass_through_columns | LabelRule.of(sample.label_by).sources
        wanted |= {"weight": ColumnSource.of_weight(weight)} if has_weight else {}
        own["list_lengths"] = list_lengths(names, wanted, entries)
        own["absent_weights"] = {
            name: nearest_names(wanted[name].branch, list(names))
            for name in missing
            if is_variation(name)
        }
        numbers = {
            name: column_numbers(names[column.branch].read(0, 1), name, column, path=source.path)
            for name, column in wanted.items()
            if not is_variation(name) and name not in missing
        }
        integers = {name for name in settings.pass_through if numbers[name].dtype.kind != "f"}
        pass_through = {
            name: "int64" if name in integers else "float64"
            for name in settings.pass_through_columns
        }
        boundaries = basket_boundaries(each.branch for each in sources.values())
    edges = tuple(chunk_edges(boundaries, 0, entries, settings.entries_per_task))
    like = () if weight else like_weights(names)
    return FileInfo(*stamp, missing, edges, pass_through, weight=weight, like_weights=like, **own)


def _refuse_missing(
    source: SourceFile, weight: str | None, settings: IngestSettings, branches: BranchNames
) -> tuple[str, ...]:
    """The fields that the branches of a file may lack, and do; other missing branches are an error."""
    wanted = settings.branches(weight or "", source.sample.label_by)
    missing = {field: branch for field, branch in wanted.items() if branch not in branches}
    particles = {field for field in wanted if field.startswith(PARTICLE_COLLECTIONS)}
    # A branch that the user maps must exist.
    optional = {"weight"} & missing.keys() if weight in {None, NO_WEIGHT} else set()
    if not source.needs_particles and particles <= missing.keys():
        optional |= particles - set(settings.branch_map)
    variations = {field for field in missing if is_variation(field)}
    if missing.keys() - optional - variations:
        needed = {field: branch for field, branch in missing.items() if field not in optional}
        absent = {key_of_field(field, settings): branch for field, branch in needed.items()}
        to_paste = lines_to_paste(needed, settings.names, branches)
        raise MissingBranchError.at(source.path, settings.tree, absent, branches, to_paste)
    # Other samples may have these.
    return tuple(sorted(optional | variations))


def _refuse_discriminant(btag: Branch, entries: int) -> None:
    """Refuse b-tags that are no bits, as far as the first entries show; only a threshold makes them bits."""
    place = btag.place._replace(fix=INTEGERS_FIX)
    _, of_type = list_numbers(btag.kind(), place, None)
    # Slots of arrays without a candidate hold anything.
    if of_type.dtype.kind != "f" or is_fixed(btag.kind()):
        return
    _, tags = list_numbers(btag.read(0, min(entries, _FIRST_ENTRIES)), place, None)
    convert_exactly(tags[np.isfinite(tags)], COLLECTIONS["jets"]["btag"].dtype, place)
