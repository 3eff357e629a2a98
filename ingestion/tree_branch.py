"""One branch of an open tree: its type, and the numbers of its entries."""

from __future__ import annotations

from typing import Any, NamedTuple

import awkward as ak
from uproot.interpretation.identify import UnknownInterpretation
from uproot.interpretation.jagged import AsJagged
from uproot.interpretation.objects import CannotBeAwkward
from uproot.models.RNTuple import RField

from hep_core.input_errors import DamagedFileError, translate_read_errors
from ingestion.branches import BranchLocation
from ingestion.errors import WrongBranchTypeError
from ingestion.packed_reals import packed_reals, read_branch


class Branch(NamedTuple):
    """A branch of an open tree (or a field of an RNTuple), or one leaf of a branch with several."""

    file: str
    """Path of the file, for messages."""
    path: str
    """Full path of the branch in the tree, with the leaf."""
    branch: Any
    """The branch of uproot."""
    leaf: str = ""
    """Name of the leaf; empty for the whole branch."""

    @property
    def location(self) -> BranchLocation:
        """The branch, for messages."""
        return BranchLocation(f"{self.file}: branch '{self.path}'")

    def read(self, first: int, last: int) -> ak.Array:
        """The numbers of entries `first` to `last` (exclusive).

        Raises:
            WrongBranchTypeError: The numbers are in the branches below it, or it holds objects.
        """
        self._check_holds_numbers()
        array = self.select_leaf(read_branch(self.branch, first, last))
        self._check_has_no_members(array)
        return array

    def select_leaf(self, array: ak.Array) -> ak.Array:
        """The numbers of the leaf, from those of the whole branch."""
        return array[self.leaf] if self.leaf else array

    def empty_array(self) -> ak.Array:
        """An array without entries, which has the type of the branch.

        Raises:
            WrongBranchTypeError: The type cannot be read, the numbers are in the branches below, or
                it holds objects.
            DamagedFileError: A merge described the baskets wrongly, or the branch lacks entries.
        """
        if isinstance(self.branch, RField):
            with translate_read_errors(self.file, f"field '{self.path}'"):
                return self.read(0, 0)
        self._check_holds_numbers()
        self._check_entries()
        try:
            interpretation = packed_reals(self.branch) or self.branch.interpretation
            form = interpretation.awkward_form(self.branch.file)
        except (UnknownInterpretation, CannotBeAwkward) as cause:
            leaf_class = self.branch.member("fLeaves")[0].classname
            raise WrongBranchTypeError(
                f"{self.file}: branch '{self.path}' has a type that cannot be read "
                f"({leaf_class}, '{self.branch.title}'). Write it as Float_t or Int_t, for example "
                f"by Redefine and Snapshot of RDataFrame."
            ) from cause
        # Arrays of variable length need offsets; in a std::vector each list has a header instead.
        is_array = isinstance(interpretation, AsJagged) and not interpretation.header_bytes
        if is_array and self.branch.member("fEntryOffsetLen") == 0:
            raise DamagedFileError(
                f"{self.file}: branch '{self.path}' lacks the offsets of its lists: the first file "
                f"of the merge (hadd) had no entries. ROOT too reads wrong values. Merge again "
                f"without that file, or list the files themselves."
            )
        array = self.select_leaf(ak.Array(form.length_zero_array()))
        self._check_has_no_members(array)
        return array

    def _check_holds_numbers(self) -> None:
        """Refuse a branch with branches below it, such as `MissingET` of Delphes.

        Of a collection, ROOT stores in such a branch only how many objects each event has.
        """
        # Fields of an RNTuple show by their type that they hold records.
        if self.leaf or isinstance(self.branch, RField) or not len(self.branch.branches):
            return
        raise self._no_numbers_error()

    def _check_has_no_members(self, array: ak.Array) -> None:
        """Refuse a branch of leaves or objects, by the type of its array."""
        if array.fields:
            raise self._no_numbers_error()

    def _no_numbers_error(self) -> WrongBranchTypeError:
        """The error about a branch of leaves or objects where numbers are needed."""
        if members := self._members():
            choices = " or ".join(f"'{self.path}{member}'" for member in members)
            location = self.location._replace(remedy="Name one of them in its place in the config.")
            return location.error(f"holds several numbers: {choices}.")
        return WrongBranchTypeError(
            f"{self.location.text} holds objects ({self.branch.typename}), and only branches of "
            f"numbers are read. Write pt, eta and phi of the objects as branches, for example by "
            f"Define and Snapshot of RDataFrame."
        )

    def _members(self) -> list[str]:
        """The ends of the paths of what lies in a branch: branches, fields or several leaves."""
        if isinstance(self.branch, RField):
            return [f".{name}" for name in self.branch.keys()]  # noqa: SIM118 - no dict
        names = [branch.name for branch in self.branch.branches]
        leaves = self.branch.member("fLeaves")
        if not names and len(leaves) > 1:
            names = [leaf.member("fName") for leaf in leaves]
        return [f"/{name}" for name in names]

    def _check_entries(self) -> None:
        """Refuse a branch with another number of entries than its tree.

        Its numbers cannot be assigned to the events of the tree.
        """
        num_entries = int(self.branch.num_entries)
        num_in_tree = int(self.branch.tree.num_entries)
        if num_entries != num_in_tree:
            raise DamagedFileError(
                f"{self.file}: branch '{self.path}' has {num_entries} of the {num_in_tree} entries "
                f"of its tree: it was booked late, or not filled with each event, so nothing says "
                f"to which events its numbers belong. Write the file again with the branch booked "
                f"before the first event, or map another branch."
            )
