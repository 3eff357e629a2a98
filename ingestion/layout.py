"""The names that a branch, or a leaf of it, answers to; and how many slots of an array hold a candidate."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import awkward as ak
from uproot.interpretation.identify import UnknownInterpretation
from uproot.interpretation.jagged import AsJagged
from uproot.interpretation.objects import CannotBeAwkward
from uproot.models.RNTuple import RField

from hep_core.input_errors import DamagedFileError, nearest_names, translate_read_errors
from ingestion.branches import BranchLocation, event_numbers, is_weight, list_numbers
from ingestion.errors import MissingBranchError, WrongBranchTypeError
from ingestion.packed_reals import packed_reals, read_branch
from ingestion.schema import COLLECTIONS

#: Values of `ingest.branch_map` for the count of a collection that are no branches: the slots with a candidate in
#: them, and all slots.
FILLED: Final = "filled"
ALL: Final = "all"

_SEPARATORS: Final = re.compile(r"[./_]+")
#: Names of counters in small letters, without separators, by those of what they count.
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


class Branch(NamedTuple):
    """A branch of an open tree (or a field of an RNTuple), or one leaf of a branch that is a list of leaves."""

    file: str
    path: str
    branch: Any
    leaf: str = ""

    @property
    def place(self) -> BranchLocation:
        """As messages say it."""
        return BranchLocation(f"{self.file}: branch '{self.path}'")

    def read(self, first: int, last: int) -> ak.Array:
        """The content of entries `first` to `last` (exclusive)."""
        return self.of(read_branch(self.branch, first, last))

    def of(self, array: ak.Array) -> ak.Array:
        """Its own part of the content of the branch."""
        return array[self.leaf] if self.leaf else array

    def kind(self) -> ak.Array:
        """An array without entries, which has the type of the content.

        Raises:
            WrongBranchTypeError: The type cannot be read.
            DamagedFileError: A merge described the baskets wrongly, or the branch lacks entries.
        """
        if isinstance(self.branch, RField):
            with translate_read_errors(self.file, f"field '{self.path}'"):
                return self.read(0, 0)
        self._refuse_missing_entries()
        try:
            interpretation = packed_reals(self.branch) or self.branch.interpretation
            found = ak.Array(interpretation.awkward_form(self.branch.file).length_zero_array())
        except (UnknownInterpretation, CannotBeAwkward) as cause:
            raise WrongBranchTypeError(
                f"{self.file}: branch '{self.path}' has a type that cannot be read "
                f"({self.branch.member('fLeaves')[0].classname}, '{self.branch.title}'). Write it as Float_t or Int_t, "
                f"for example by Redefine and Snapshot of RDataFrame."
            ) from cause
        # In a branch of std::vector each list has a header instead of an offset.
        is_array = isinstance(interpretation, AsJagged) and not interpretation.header_bytes
        if is_array and self.branch.member("fEntryOffsetLen") == 0:
            raise DamagedFileError(
                f"{self.file}: branch '{self.path}' lacks the offsets of its lists: the first file of the merge (hadd) "
                "had no entries. ROOT too reads wrong values. Merge again without that file, or list the files "
                "themselves."
            )
        return self.of(found)

    def _refuse_missing_entries(self) -> None:
        num_entries, num_in_tree = int(self.branch.num_entries), int(self.branch.tree.num_entries)
        if num_entries != num_in_tree:
            raise DamagedFileError(
                f"{self.file}: branch '{self.path}' has {num_entries} of the {num_in_tree} entries of its tree: it was "
                f"booked late, or not filled with each event, so nothing says to which events its numbers belong. "
                f"Write the file again with the branch booked before the first event, or map another branch."
            )


class BranchNames(Mapping[str, Branch]):
    """The sources in an open tree by name: the full path, else path or last part of it with any of `.`, `/` and `_`.

    If no branch has the name in these letters, small and capital ones are the same.

    RDataFrame's Snapshot writes `Jet_PT` for `Jet.PT`, and objects have paths such as `electron/PT`.
    """

    def __init__(self, tree: Any, file: str) -> None:
        """Index the branches of a tree of a file."""
        self.file = file
        self._by_path: dict[str, list[Branch]] = {}
        self._by_plain_name: dict[str, list[Branch]] = {}
        self._in_any_case: dict[str, list[Branch]] = {}
        for source in _sources(tree, file):
            self._by_path.setdefault(source.path, []).append(source)
            for name in {_plain(source.path), _plain(_short(source.path))}:
                self._by_plain_name.setdefault(name, []).append(source)
            for name in {_plain(source.path).casefold(), _plain(_short(source.path)).casefold()}:
                self._in_any_case.setdefault(name, []).append(source)

    def __getitem__(self, name: str) -> Branch:
        """The source of a name.

        Raises:
            KeyError: There is none.
            MissingBranchError: There are several.
        """
        plain = _plain(name)
        found = (
            self._by_path.get(name)
            or self._by_plain_name.get(plain)
            or self._in_any_case.get(plain.casefold(), [])
        )
        if len(found) > 1:
            paths = ", ".join(f"'{source.path}'" for source in found)
            raise MissingBranchError(
                f"{self.file}: '{name}' is the name of {len(found)} branches: {paths}. Give the full path of one in "
                f"the config; branches of the same path cannot be told apart."
            )
        if not found:
            raise KeyError(name)
        return found[0]

    def numbers_below(self, source: Branch) -> list[str]:
        """The paths of the leaves, or branches of numbers, that a source consists of."""
        return [path for path in self._by_path if path.startswith(f"{source.path}/")]

    def __iter__(self) -> Iterator[str]:
        """The shortest name of each branch that belongs to no other; the path of a leaf."""
        for path, (source, *_) in self._by_path.items():
            is_unique = len(self._by_plain_name[_plain(_short(path))]) == 1
            yield _short(path) if is_unique and not source.leaf else path

    def __len__(self) -> int:
        """Number of paths."""
        return len(self._by_path)


def _sources(tree: Any, file: str) -> Iterator[Branch]:
    for path, branch in tree.iteritems(recursive=True, full_paths=True):
        yield Branch(file, path, branch)
        leaves = [] if isinstance(branch, RField) else branch.member("fLeaves")
        if len(leaves) > 1:
            names = (leaf.member("fName") for leaf in leaves)
            yield from (Branch(file, f"{path}/{name}", branch, name) for name in names)


def _short(path: str) -> str:
    return path.rpartition("/")[2]


def _plain(name: str) -> str:
    return _SEPARATORS.sub("_", name).strip("_")


def field_sources(
    names: BranchNames, wanted: Mapping[str, str], branch_map: Mapping[str, str]
) -> dict[str, Branch]:
    """Where each field is read from, and the counter of each collection (`jets.count`) that needs one.

    Raises:
        InputFileError: A branch has a type that its field cannot have, or nothing counts the slots of arrays.
    """
    found = {field: names[branch] for field, branch in wanted.items()}
    kinds = {field: source.kind() for field, source in found.items()}
    for field, kind in kinds.items():
        place = found[field].place
        if kind.fields:
            raise _several_numbers(found[field], names)
        if field.partition(".")[0] in COLLECTIONS:
            list_numbers(kind, place, None)
        elif field in ("met", "met_phi"):
            event_numbers(kind, place, None, 0)
    _refuse_same_momenta(found)
    for collection in COLLECTIONS:
        own = {field: kind for field, kind in kinds.items() if field.startswith(f"{collection}.")}
        key = f"{collection}.count"
        fixed = [kind for kind in own.values() if is_fixed(kind)]
        counter = branch_map.get(key)
        if fixed and len(fixed) == len(own) and counter is None:
            counter = _usual_counter(
                names, [found[field] for field in own], key, fixed[0].type.content.size
            )
        if counter not in {None, FILLED, ALL}:
            if counter not in names:
                near = nearest_names(counter, list(names))
                raise MissingBranchError(
                    f"{names.file}: there is no branch '{counter}' (ingest.branch_map, {key}).{near}"
                )
            found[key] = names[counter]
    return found


def _several_numbers(source: Branch, names: BranchNames) -> WrongBranchTypeError:
    """The error about a branch of leaves or objects where numbers are needed."""
    if paths := names.numbers_below(source):
        listed = " or ".join(f"'{path}'" for path in paths)
        return WrongBranchTypeError(
            f"{source.place.words} holds several numbers: map {listed} in ingest.branch_map."
        )
    return WrongBranchTypeError(
        f"{source.place.words} holds objects ({source.branch.typename}), and only branches of numbers are read. "
        f"Write pt, eta and phi of the objects as branches, for example by Define and Snapshot of RDataFrame."
    )


def _refuse_same_momenta(found: Mapping[str, Branch]) -> None:
    """Refuse one branch for two components of momenta, such as electrons for the muons too, or for one and a weight."""
    seen: dict[str, str] = {}
    # Weights last: several may be in one list.
    for field in sorted(found, key=is_weight):
        source = found[field]
        is_momentum = field in ("met", "met_phi") or field.partition(".")[2] in (
            "pt",
            "et",
            "eta",
            "phi",
        )
        if is_momentum or is_weight(field):
            first = (
                seen.get(source.path, field)
                if is_weight(field)
                else seen.setdefault(source.path, field)
            )
            if first != field:
                raise WrongBranchTypeError(
                    f"{source.file}: '{first}' and '{field}' would both be read from branch '{source.path}'. Map a "
                    f"branch of its own for each in ingest.branch_map."
                )


def is_fixed(array: ak.Array) -> bool:
    """Whether each entry is an array of one size, whatever it holds."""
    return isinstance(array.type.content, ak.types.RegularType)


def _usual_counter(names: BranchNames, sources: Sequence[Branch], key: str, size: int) -> str:
    """The one branch with a usual name of a counter, of arrays that begin alike: `nJet` or `Jet_size` of `Jet_PT`."""
    forms = zip(*(_squeezed(source.path) for source in sources), strict=True)
    # Of `Jet_PT`, `Jet_Eta` and so on this is `Jet`.
    stems = {os.path.commonprefix(each).removesuffix("_").removesuffix("s") for each in forms} - {  # noqa: RUF071
        ""
    }
    usual = {
        pattern.format(stem + plural)
        for pattern in _COUNTERS
        for stem in stems
        for plural in ("", "s")
    }
    found = [name for name in names if usual & {form.replace("_", "") for form in _squeezed(name)}]
    if len(found) == 1:
        return found[0]
    several = (
        f"{' and '.join(found)} may both count"
        if found
        else "no branch of a usual name (such as nJet) counts"
    )
    raise MissingBranchError(
        f"{names.file}: '{sources[0].path}' and the branches beside it are arrays of {size} slots in every event, and "
        f"{several} those that hold a candidate. In ingest.branch_map set `{key}` to the branch that does; to "
        f"`{FILLED}` if the others are padded (pT is 0, negative or NaN, or pT, eta and phi are one number); to "
        f"`{ALL}` if all hold one."
    )


def _squeezed(path: str) -> tuple[str, str]:
    """A path, and its last part, in small letters and without the kinds of separators."""
    return _plain(path.casefold()), _plain(_short(path).casefold())
