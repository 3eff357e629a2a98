"""Opens one ROOT file and checks that it holds everything that is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np

from hep_core.input_errors import nearest_names, translate_read_errors
from ingestion.baskets import basket_boundaries, chunk_edges
from ingestion.branches import column_numbers, convert_exactly, is_variation, list_numbers
from ingestion.conflicts import content_identity, tree_identity
from ingestion.errors import MissingBranchError, MissingTreeError, UnclosedFileError
from ingestion.expressions import COLUMN_PREFIX, ColumnSource
from ingestion.file_info import FileInfo
from ingestion.layout import BranchNames, field_sources, is_fixed
from ingestion.root_format import TREES, check_header, open_root
from ingestion.schema import COLLECTIONS, PARTICLE_COLLECTIONS
from ingestion.settings import NO_WEIGHT, IngestSettings
from ingestion.sources import SourceFile
from ingestion.suggestions import key_of_field, lines_to_paste
from ingestion.tree_branch import Branch
from ingestion.weights import (
    check_weight_scale,
    generated_sum,
    list_lengths,
    sign_of_a_skim,
    weights_to_offer,
)

#: Number of entries whose b-tags are read to see whether they are bits.
_FIRST_ENTRIES: Final = 1000


def inspect_file(
    source: SourceFile, settings: IngestSettings, *, size: int, modified: str
) -> FileInfo:
    """Open one ROOT file and check that it holds everything needed.

    `size` [bytes] and `modified` are those of the file, from its storage. A file without entries
    passes whatever its branches are.

    Raises:
        InputFileError: It is no ROOT file, truncated, damaged or out of reach, or its tree or a
            branch is missing.
    """
    is_unclosed = check_header(source.path, size)
    sample = source.sample
    file_settings = settings.for_sample(sample.tree, sample.branch_map, sample.weights)
    with translate_read_errors(source.path, "its directory"), open_root(source.path) as file:
        if is_unclosed and not file.classnames(cycle=False):
            raise UnclosedFileError(
                f"{source.path} was never closed: the job that wrote its {size} bytes ended before "
                f"it saved a tree. Run the job again, or take the file out of the sample's files."
            )
        tree = _open_tree(file, file_settings.tree, source.path)
        entries = int(tree.num_entries)
        # ROOT's reproducible output has a UUID of zeros, which identifies no file.
        uuid = str(file.file.uuid) if file.file.uuid.int else content_identity(source.path)
        # Another sample may read another tree of the same file.
        if sample.tree not in {"", settings.tree_name}:
            uuid = tree_identity(uuid, sample.tree)
        generated = {}
        if source.sum_branch:
            generated[source.sum_branch] = generated_sum(file, source.sum_branch, source.path)
        info = FileInfo(
            sample=sample.name,
            label=sample.label,
            path=source.path,
            uuid=uuid,
            entries=entries,
            size=size,
            modified=modified,
            missing_optional=(),
            edges=(0,),
            weight=sample.weight or settings.names.scalars["weight"],
            generated=generated,
            skim=sign_of_a_skim(file, tree, entries, source.path),
            is_unclosed=is_unclosed,
            tree=sample.tree,
            branch_map=sample.branch_map,
            label_by=sample.label_by,
            weights=sample.weights,
        )
        if not entries:
            # A Snapshot of RDataFrame that no event passes may have no branches.
            return info
        return _check_branches(info, BranchNames(tree, source.path), source, file_settings)


def _open_tree(file: Any, name: str, path: str) -> Any:
    """The TTree or RNTuple of a name in an open file."""
    classes = file.classnames(cycle=False)
    if classes.get(name) not in TREES:
        raise MissingTreeError.at(path, name, classes)
    return file[name]


def _check_branches(
    info: FileInfo, names: BranchNames, source: SourceFile, settings: IngestSettings
) -> FileInfo:
    """Check the branches of a file, and add what they show to its description.

    It adds the missing fields, the entries at which the file is cut into pieces, the types of
    pass-through columns, and what the branches show about weights.

    Raises:
        InputFileError: A needed branch is missing or has the wrong type.
    """
    weight = source.sample.weight
    # A weight that the file need not have, and lacks, counts as `none`.
    stated_weight = ColumnSource.of_weight(info.weight).in_file(names)
    if not source.needs_weight and stated_weight.branch not in names:
        weight = NO_WEIGHT
    missing = _missing_optional(source, weight, settings, names)
    has_weight = "weight" not in missing
    # A sample that states no weight has that of the layout, if the file has its branch.
    if weight is None:
        weight = info.weight if has_weight else ""
    check_weight_scale(source.sum_branch or "", weight, source.path)

    # The branches that the file has are checked with their types.
    branches = settings.names.branches(settings.branch_map)
    branches = {field: branch for field, branch in branches.items() if field not in missing}
    columns = settings.columns(weight if has_weight else "", source.sample.label_by, names)
    if has_weight:
        branches["weight"] = columns["weight"].branch
    sources = field_sources(names, branches, settings.branch_map)
    if settings.min_btag is None and "jets.count" not in settings.branch_map:
        _check_btags_are_bits(sources["jets.btag"], info.entries)

    boundaries = basket_boundaries(field_source.branch for field_source in sources.values())
    edges = chunk_edges(boundaries, 0, info.entries, settings.entries_per_task)
    return info._replace(
        missing_optional=missing,
        edges=tuple(edges),
        pass_through=_pass_through_types(columns, missing, names, settings),
        weight=weight,
        like_weights=() if weight else weights_to_offer(names, info.entries),
        list_lengths=list_lengths(names, columns, info.entries),
        absent_weights={
            name: nearest_names(columns[name].branch, list(names))
            for name in missing
            if is_variation(name)
        },
    )


def _missing_optional(
    source: SourceFile, weight: str | None, settings: IngestSettings, names: BranchNames
) -> tuple[str, ...]:
    """The missing fields that the file may lack.

    These are some weights and particles (`_optional_fields`), and the weights of `ingest.weights`.

    Raises:
        MissingBranchError: Other branches are missing too.
    """
    columns = settings.columns(weight or "", source.sample.label_by, names)
    branches = settings.branches(columns)
    missing = {field: branch for field, branch in branches.items() if branch not in names}
    optional = _optional_fields(branches, missing, weight, source, settings)
    needed = {field: branch for field, branch in missing.items() if field not in optional}
    # Files of other samples may have these; a check of all files together decides.
    variations = {field for field in needed if is_variation(field)}
    lacks_needed_field = needed.keys() != variations
    if lacks_needed_field:
        branch_by_key = {}
        for field, branch in needed.items():
            key = key_of_field(field, settings)
            branch_by_key[key] = branch
        to_paste = lines_to_paste(needed, settings.names, names)
        raise MissingBranchError.at(source.path, settings.tree, branch_by_key, names, to_paste)
    fields = optional | variations
    return tuple(sorted(fields))


def _optional_fields(
    fields: Collection[str],
    missing: Collection[str],
    weight: str | None,
    source: SourceFile,
    settings: IngestSettings,
) -> set[str]:
    """The missing weight and particles, where a file may lack them.

    `fields` are all fields, `missing` those without a branch. A file may lack the weight if its
    sample states no branch of it. It may lack the particles if the config needs none, and all of
    their fields are missing.
    """
    optional = set()
    if weight in {None, NO_WEIGHT} and "weight" in missing:
        optional.add("weight")
    particles = {field for field in fields if field.startswith(PARTICLE_COLLECTIONS)}
    if not source.needs_particles and particles <= set(missing):
        # A branch that the user maps must exist.
        optional |= particles - settings.branch_map.keys()
    return optional


def _check_btags_are_bits(btag: Branch, entries: int) -> None:
    """Refuse b-tags that are not whole numbers (bits) in the first thousand entries.

    Such a branch holds a discriminant, for which the config must set a threshold, `min_btag`.
    """
    location = btag.location.for_field("jets.btag")
    empty_array = btag.empty_array()
    _, no_tags = list_numbers(empty_array, location, None)
    holds_integers = no_tags.dtype.kind != "f"
    # Integers are bits. Arrays of a fixed size are not checked: their empty slots hold any number.
    if holds_integers or is_fixed(empty_array):
        return

    num_entries = min(entries, _FIRST_ENTRIES)
    first_array = btag.read(0, num_entries)
    _, tags = list_numbers(first_array, location, None)
    finite_tags = tags[np.isfinite(tags)]
    field = COLLECTIONS["jets"]["btag"]
    convert_exactly(finite_tags, field.dtype, location)


def _pass_through_types(
    columns: Mapping[str, ColumnSource],
    missing: Collection[str],
    names: BranchNames,
    settings: IngestSettings,
) -> dict[str, str]:
    """Check the first number of each column; returns the types of the pass-through columns.

    Weights are float64; a pass-through column of integers or booleans is int64, any other float64.
    `columns` also has the weight and the branches of `label_by`, which are only checked.
    """
    types = {key.removeprefix(COLUMN_PREFIX): "float64" for key in settings.pass_through_columns}
    for key, column in columns.items():
        if is_variation(key) or key in missing:
            continue
        first_entry = names[column.branch].read(0, 1)
        first_number = column_numbers(first_entry, key, column, path=names.file)
        if key.startswith(COLUMN_PREFIX) and first_number.dtype.kind != "f":
            types[column.branch] = "int64"
    return types
