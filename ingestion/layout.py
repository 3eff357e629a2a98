"""Finds branches, and leaves of branches, by name; and the counters of arrays of a fixed size."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import awkward as ak
from uproot.models.RNTuple import RField

from hep_core.input_errors import nearest_names
from ingestion.branches import event_numbers, is_weight, list_numbers
from ingestion.errors import MissingBranchError, WrongBranchTypeError
from ingestion.schema import COLLECTIONS
from ingestion.tree_branch import Branch

#: Values of `ingest.branch_map` for the count of a collection that are no branches: candidates are
#: the slots that are not padding (`filled`), or all slots (`all`).
FILLED: Final = "filled"
ALL: Final = "all"

_SEPARATORS: Final = re.compile(r"[./_]+")
#: Names of counters in small letters, without separators, for the stem of the branches they count.
_COUNTERS: Final = (
    "n{}",
    "num{}",
    "numberof{}",
    "{}n",
    "{}num",
    "{}size",
    "{}count",
    "{}multiplicity",
)


class BranchNames(Mapping[str, Branch]):
    """The branches of an open tree by name, and the leaves of branches with several.

    A name is tried first as the full path. Then it may be the path, or the last part of the path,
    with any of `.`, `/` and `_` as separators; then the same in any case of letters. RDataFrame's
    Snapshot writes `Jet_PT` for `Jet.PT`, and objects have paths such as `electron/PT`.

    Iteration gives one name for each branch, but a lookup accepts all of its names.
    """

    def __init__(self, tree: Any, file: str) -> None:
        """Index the branches of an open tree by all their names; `file` is its path, for messages.

        Several branches may share a name, which `__getitem__` then refuses.
        """
        self.file = file
        self._by_path: dict[str, list[Branch]] = {}
        self._by_plain_name: dict[str, list[Branch]] = {}
        self._in_any_case: dict[str, list[Branch]] = {}
        for branch in _branches(tree, file):
            _add_branch(self._by_path, {branch.path}, branch)
            plain_path = _plain(branch.path)
            plain_last_part = _plain(_short(branch.path))
            plain_names = {plain_path, plain_last_part}
            _add_branch(self._by_plain_name, plain_names, branch)
            small_names = {name.casefold() for name in plain_names}
            _add_branch(self._in_any_case, small_names, branch)

    def __getitem__(self, name: str) -> Branch:
        """The branch of a name.

        Raises:
            KeyError: There is none.
            MissingBranchError: There are several.
        """
        plain_name = _plain(name)
        matches = (
            self._by_path.get(name)
            or self._by_plain_name.get(plain_name)
            or self._in_any_case.get(plain_name.casefold())
        )
        if not matches:
            raise KeyError(name)
        if len(matches) > 1:
            paths = ", ".join(f"'{branch.path}'" for branch in matches)
            raise MissingBranchError(
                f"{self.file}: '{name}' is the name of {len(matches)} branches: {paths}.",
                "Give the full path of one in the config; equal paths cannot be told apart.",
            )
        return matches[0]

    def __iter__(self) -> Iterator[str]:
        """A name of each branch: its last part if it is unique; else, and for a leaf, the path."""
        for path, branches in self._by_path.items():
            is_unique = len(self._by_plain_name[_plain(_short(path))]) == 1
            yield _short(path) if is_unique and not branches[0].leaf else path

    def __len__(self) -> int:
        """Number of paths."""
        return len(self._by_path)


def _add_branch(index: dict[str, list[Branch]], names: Iterable[str], branch: Branch) -> None:
    """Add a branch to an index of branches under some names."""
    for name in names:
        branches = index.setdefault(name, [])
        branches.append(branch)


def _branches(tree: Any, file: str) -> Iterator[Branch]:
    """All branches of a tree, also those inside others, and the leaves of branches with several."""
    for path, branch in tree.iteritems(recursive=True, full_paths=True):
        yield Branch(file, path, branch)
        if isinstance(branch, RField):
            continue
        leaves = branch.member("fLeaves")
        if len(leaves) > 1:
            for leaf in leaves:
                name = leaf.member("fName")
                yield Branch(file, f"{path}/{name}", branch, name)


def _short(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def _plain(name: str) -> str:
    """A name with `_` for each separator."""
    return _SEPARATORS.sub("_", name).strip("_")


def field_sources(
    names: BranchNames, branches: Mapping[str, str], branch_map: Mapping[str, str]
) -> dict[str, Branch]:
    """Find the branch of each field, and the counter of each collection that needs one.

    Fields are those of candidates (`muons.pt`) and events (`met`), and further columns; a counter
    has the key `jets.count`. Types are checked on arrays without entries, so that no basket is
    read.

    Args:
        names: The branches of the tree.
        branches: Name of the branch of each field.
        branch_map: `ingest.branch_map`, which may name counters.

    Raises:
        InputFileError: A branch has a type that its field cannot have, or nothing counts the slots
            of arrays.
    """
    sources = {field: names[branch] for field, branch in branches.items()}
    arrays = {field: source.empty_array() for field, source in sources.items()}
    # Fields of candidates need lists of numbers, the missing energy one number per event.
    for field, array in arrays.items():
        location = sources[field].location
        if field.partition(".")[0] in COLLECTIONS:
            list_numbers(array, location, None)
        elif field in ("met", "met_phi"):
            event_numbers(array, location, None, 0)
    _check_distinct_momenta(sources)
    # Arrays of a fixed size need a counter, which is read like a field.
    for collection in COLLECTIONS:
        fields = [field for field in arrays if field.startswith(f"{collection}.")]
        counter = _counter(
            names,
            [sources[field] for field in fields],
            [arrays[field] for field in fields],
            key=f"{collection}.count",
            branch_map=branch_map,
        )
        if counter is not None:
            event_numbers(counter.empty_array(), counter.location, None, 0)
            sources[f"{collection}.count"] = counter
    return sources


def _counter(
    names: BranchNames,
    sources: Sequence[Branch],
    arrays: Sequence[ak.Array],
    *,
    key: str,
    branch_map: Mapping[str, str],
) -> Branch | None:
    """The branch with the number of candidates of a collection; None if it needs none.

    A collection needs one if the config names it under `key` (`jets.count`), or if all its fields
    are arrays of a fixed size. Then it is the branch with a usual name (`nJet`). None is needed for
    lists, and where the config says `filled` or `all`.

    `sources` are the branches of the collection, `arrays` their types as empty arrays.
    """
    counter = branch_map.get(key)
    if counter is None and arrays and all(is_fixed(array) for array in arrays):
        num_slots = arrays[0].type.content.size
        counter = _usual_counter(names, sources, key, num_slots)
    if counter in {None, FILLED, ALL}:
        return None
    if counter not in names:
        raise MissingBranchError(
            f"{names.file}: there is no branch '{counter}' (for {key})."
            f"{nearest_names(counter, list(names))}",
            "Correct it in ingest.branch_map.",
        )
    return names[counter]


def _check_distinct_momenta(sources: Mapping[str, Branch]) -> None:
    """Refuse one branch for two components of momenta, such as electrons for the muons too.

    A branch of a momentum cannot be a weight either. Several weights may share a branch, since they
    may be numbers of one list.
    """
    field_of_path: dict[str, str] = {}
    for field, source in sources.items():
        if not _is_momentum(field):
            continue
        first_field = field_of_path.setdefault(source.path, field)
        if first_field != field:
            raise _same_branch_error(source, first_field, field)
    for field, source in sources.items():
        if is_weight(field) and source.path in field_of_path:
            raise _same_branch_error(source, field_of_path[source.path], field)


def _is_momentum(field: str) -> bool:
    """Whether a field is a component of a momentum: missing energy, pT, ET, eta or phi."""
    return field in {"met", "met_phi"} or field.partition(".")[2] in {"pt", "et", "eta", "phi"}


def _same_branch_error(source: Branch, first_field: str, field: str) -> WrongBranchTypeError:
    """The error about one branch for two fields."""
    return WrongBranchTypeError(
        f"{source.file}: '{first_field}' and '{field}' would both be read from '{source.path}'.",
        "Map a branch of its own for each in ingest.branch_map.",
    )


def is_fixed(array: ak.Array) -> bool:
    """Whether each entry is an array of one size, whatever its slots hold."""
    return isinstance(array.type.content, ak.types.RegularType)


def _usual_counter(names: BranchNames, sources: Sequence[Branch], key: str, num_slots: int) -> str:
    """The one branch with a usual name of a counter, such as `nJet` or `Jet_size` of `Jet_PT`.

    The stem is the common start of the names of the branches (`jet`). Usual names are made of it,
    in singular and plural.

    Raises:
        MissingBranchError: No branch has such a name, or several have.
    """
    paths = [_lower(source.path) for source in sources]
    last_parts = [_lower(_short(source.path)) for source in sources]
    usual_names = set()
    # Counters may repeat the folder of the branches in their name, or not.
    for stem in {_common_stem(paths), _common_stem(last_parts)} - {""}:
        for pattern in _COUNTERS:
            usual_names |= {pattern.format(stem), pattern.format(f"{stem}s")}
    counters = []
    # Usual names have no separators, so those of the branches are compared without them.
    for name in names:
        whole_name = _lower(name).replace("_", "")
        last_part = _lower(_short(name)).replace("_", "")
        if whole_name in usual_names or last_part in usual_names:
            counters.append(name)
    if len(counters) == 1:
        return counters[0]
    problem = "no branch of a usual name (such as nJet) counts"
    if counters:
        problem = f"{' and '.join(counters)} may both count"
    raise MissingBranchError(
        f"{names.file}: '{sources[0].path}' and the branches beside it are arrays of {num_slots} "
        f"slots in every event, and {problem} those that hold a candidate.",
        f"In ingest.branch_map set `{key}` to the branch that does; to `{FILLED}` if others are "
        f"padded (pT 0, negative or NaN, or pT, eta and phi one number); to `{ALL}` if all count.",
    )


def _common_stem(names: Sequence[str]) -> str:
    """The common start of names: `jet` of `jets_pt`, `jets_eta` and so on."""
    return os.path.commonprefix(names).removesuffix("_").removesuffix("s")  # noqa: RUF071


def _lower(path: str) -> str:
    """A path in small letters, with `_` for each separator."""
    return _plain(path).casefold()
