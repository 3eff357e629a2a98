"""Packed reals are read as ROOT reads them; the file holds what ROOT 6.40 read
(tests/data/README.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import uproot

from hep_core.input_errors import DamagedFileError
from ingestion.errors import WrongBranchTypeError
from ingestion.layout import BranchNames, field_sources
from ingestion.packed_reals import Packing, packing_in

PACKED: Final = Path(__file__).resolve().parents[1] / "data" / "packed_reals_of_root.root"


@pytest.fixture(scope="module")
def names() -> Iterator[BranchNames]:
    with uproot.open({PACKED: None}) as file:
        yield BranchNames(file["Delphes"], "packed.root")


def read_by_root() -> dict[str, list[list[float]]]:
    with uproot.open({PACKED: None}) as file:
        numbers: dict[str, list[list[float]]] = json.loads(file["read_by_root"].member("fTitle"))
    return numbers


def lists(array: Any) -> list[list[float]]:
    """Numbers of each event as a list."""
    return [np.ravel(np.asarray(numbers, np.float64)).tolist() for numbers in array.tolist()]


def test_every_packed_branch_holds_the_numbers_that_root_reads(names: BranchNames) -> None:
    expected = read_by_root()
    assert {path: lists(names[path].read(0, 7)) for path in expected} == expected
    # Leaves and members: scalars, lists, arrays, pointers, vectors; with range, bits, both or none.
    assert len(expected) > 70


@pytest.mark.parametrize(
    "path", ["list2", "fixed9", "list14", "split.many", "split.half_list", "Part.phi", "hits.iso"]
)
def test_a_range_of_entries_across_baskets_is_read_right(names: BranchNames, path: str) -> None:
    assert lists(names[path].read(2, 6)) == read_by_root()[path][2:6]


@pytest.mark.parametrize(
    ("title", "packing"),
    [
        ("Jet_PT[nJet]/d", Packing()),
        ("Jet_PT[nJet]", Packing()),
        ("pt/d[0,4096,12]", Packing(0.0, 1.0)),
        ("pt[4]/d[0,4096,12]", Packing(0.0, 1.0)),
        ("pt/d[0,1]", Packing(0.0, 2.0**32 - 1)),
        ("pt/d[0,1,99]", Packing(0.0, 2.0**32 - 1)),
        ("[ -1e1 , 1.5e1 , 2 ] in GeV", Packing(-10.0, 4 / 25)),
        ("phi/f[-pi,pi,2]", Packing(-np.pi, 4 / (2 * np.pi))),
        ("phi/f[0,twopi,2]", Packing(0.0, 4 / (2 * np.pi))),
        ("pt/f[0,0,10]", Packing(num_bits=10)),
        ("pt/d[0,0,20]", Packing()),
        # ROOT reads the first two brackets alone.
        ("pt[2][3]/d[0,1,8]", Packing()),
    ],
)
def test_a_range_is_found_where_root_finds_it(title: str, packing: Packing) -> None:
    assert packing_in(title) == packing


@pytest.mark.parametrize("branch", ["lv", "lvs", "slv.", "whits", "p4w."])
def test_a_branch_of_objects_says_that_only_numbers_are_read(
    names: BranchNames, branch: str
) -> None:
    with pytest.raises(
        WrongBranchTypeError, match=r"holds objects \(.*\), and only branches of numbers .*Define"
    ):
        field_sources(names, {"electrons.pt": branch}, {})


@pytest.mark.parametrize("branch", ["whole.", "Unsplit"])
def test_an_unsplit_class_says_that_its_type_cannot_be_read(
    names: BranchNames, branch: str
) -> None:
    with pytest.raises(
        WrongBranchTypeError, match=rf"branch '{branch}' has a type that cannot be read"
    ):
        field_sources(names, {"electrons.pt": branch}, {})


def test_an_object_of_several_branches_names_them(names: BranchNames) -> None:
    with pytest.raises(WrongBranchTypeError, match=r"numbers: 'p4s/p4s.fCoordinates.fPt' or"):
        field_sources(names, {"electrons.pt": "p4s"}, {})


def test_a_branch_that_is_booked_late_is_named_with_its_number_of_entries(
    names: BranchNames,
) -> None:
    with pytest.raises(
        DamagedFileError, match="branch 'late' has 4 of the 7 entries of its tree"
    ) as caught:
        field_sources(names, {"met": "late"}, {})
    assert "Copy it again" not in str(caught.value)


def test_a_member_without_a_description_of_its_range_is_refused(
    names: BranchNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uproot.behaviors.TBranch.TBranch.streamer", None)
    with pytest.raises(
        WrongBranchTypeError, match=r"branch 'hits/hits.pt' has a type that cannot be read"
    ):
        field_sources(names, {"electrons.pt": "hits.pt"}, {})
