"""Finds the types of branches that are copied to the scores, also for files without entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hep_core.input_errors import nearest_names, translate_read_errors
from hep_core.storage import retry_remote
from ingestion.branches import column_numbers
from ingestion.errors import MissingBranchError
from ingestion.expressions import COLUMN_PREFIX, ColumnSource
from ingestion.file_info import FileInfo
from ingestion.layout import BranchNames
from ingestion.root_format import open_root
from ingestion.settings import IngestSettings

#: Type of a branch that no file has: nothing shows it where no file has entries.
_UNKNOWN_TYPE: Final = "float64"


def types_of_kept_branches(
    infos: Sequence[FileInfo], settings: IngestSettings, keep: Sequence[str]
) -> dict[str, str]:
    """Return the type of each branch that is copied, int64 or float64, by name.

    All files have the types of the first one with entries. Without such a file, the types are those
    in the trees. A Snapshot of RDataFrame that no event passes may have no branches; then the type
    is float64.

    Args:
        infos: Checked files.
        settings: How they are read.
        keep: Names of the branches.

    Raises:
        MissingBranchError: No file has entries, and the trees with branches lack one of these.
        WrongBranchTypeError: A branch does not hold numbers.
    """
    for info in infos:
        if info.entries:
            return {name: info.pass_through[name] for name in keep}
    # Without branches to copy, no file is opened.
    if not keep:
        return {}
    types: dict[str, str] = {}
    for info in infos:
        types_in_tree = retry_remote(_types_in_tree, info.path, settings.tree_name, keep)
        # Every file is checked, but the first one with branches decides.
        types = types or types_in_tree
    return types or dict.fromkeys(keep, _UNKNOWN_TYPE)


def _types_in_tree(path: str, tree_name: str, keep: Sequence[str]) -> dict[str, str]:
    """Return the types of branches in a tree without entries, by name; empty without branches."""
    types = {}
    with translate_read_errors(path, "its branches"), open_root(path) as file:
        branches = BranchNames(file[tree_name], path)
        if not len(branches):
            return {}
        for name in keep:
            if name not in branches:
                available = sorted(set(branches))
                raise MissingBranchError(
                    f"{path}: tree '{tree_name}' has no branch "
                    f"'{name}'.{nearest_names(name, available)} Name another one."
                )
            source = ColumnSource(name)
            empty_array = branches[name].empty_array()
            numbers = column_numbers(empty_array, f"{COLUMN_PREFIX}{name}", source, path=path)
            types[name] = "float64" if numbers.dtype.kind == "f" else "int64"
    return types
