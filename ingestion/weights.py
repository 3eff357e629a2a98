"""Weights of samples: branches of weights, sums over all generated events, signs of a skim."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import awkward as ak
import numpy as np
from numpy.typing import NDArray

from hep_core.input_errors import (
    DamagedFileError,
    InputFileError,
    nearest_names,
    shortened_list,
    translate_read_errors,
)
from ingestion.branches import (
    BranchLocation,
    column_numbers,
    event_numbers,
    is_variation,
    variation_numbers,
)
from ingestion.errors import MissingBranchError, WrongBranchTypeError
from ingestion.expressions import ColumnSource
from ingestion.layout import BranchNames
from ingestion.packed_reals import read_branch
from ingestion.root_format import TREES
from ingestion.settings import NO_WEIGHT
from ingestion.tree_branch import Branch

Floats = NDArray[np.float64]

#: Names of weights or cross-sections, but not of counters (`nWeight`), sizes of lists, or members
#: of ROOT's objects (`.fBits`).
_LIKE_A_WEIGHT: Final = re.compile(
    r"(?i)(?!(?-i:n[A-Z])).*(weight|wgt|xsec|cross_?section)(?!.*(_size|\.f\w+)$)"
)
#: Most common names of the weight itself.
_A_WEIGHT: Final = re.compile(r"(?i)(gen|mc|evt|event)?[._]?weight")
#: Names of sums of weights, as opposed to numbers of events.
_OF_WEIGHTS: Final = re.compile(r"(?i)weight|sum_?w")
#: Names of histograms, in any folder of the file, that count the generated events.
_LIKE_A_COUNTER: Final = re.compile(
    r"(?i)(^|.*/)[^/]*(count|cut_?flow|sum_?w|gen_?weight|n_?events|sum_?of_?weights)"
)
#: Usual branches of the number of an event.
_NUMBERS_OF_EVENTS: Final = (
    "Event.Number",
    "event",
    "eventNumber",
    "EventNumber",
    "Event_Number",
    "event_number",
)
#: Highest number of entries whose event numbers are read.
_NUMBERS_READ: Final = 1_000_000
#: Number of entries that are read for the length of their lists, if that of the first is empty,
#: before all are.
_FIRST_ENTRIES: Final = 1000
#: Share of the event numbers before a gap above which a file looks skimmed; some generators skip
#: single events.
_GAPS: Final = 0.05


def like_weights(branches: Iterable[str]) -> tuple[str, ...]:
    """Branches that are named like weights or cross-sections, the most common names first."""
    matches = [name for name in branches if _LIKE_A_WEIGHT.match(name)]
    matches.sort(key=lambda name: (not _A_WEIGHT.fullmatch(name), len(name), name))
    return tuple(matches)


def weights_to_offer(names: BranchNames, entries: int) -> tuple[str, ...]:
    """The weights that the config may state, of branches that are named like weights."""
    texts = [weight_text(names, branch, entries) for branch in like_weights(names)]
    return tuple(text for text in texts if text)


def weight_text(names: BranchNames, branch: str, entries: int) -> str:
    """How the config names a branch as a weight, its first number if it holds lists.

    The result is empty if the branch cannot be a weight: it is a collection or holds text, or the
    lengths of its lists differ in the first thousand entries.
    """
    for text in (branch, f"{branch}[0]"):
        # The checks of a weight that the config states decide, and their errors say no more here.
        with suppress(InputFileError), translate_read_errors(names.file, f"branch '{branch}'"):
            array = names[branch].empty_array()
            # A branch of plain numbers shows by its type that it has one for each event.
            if array.ndim > 1:
                array = names[branch].read(0, min(_FIRST_ENTRIES, entries))
            source = ColumnSource.of_weight(text).in_file(names)
            column_numbers(array, "weight", source, path=names.file)
            if source.position is not None:
                length = len(array[0])
                variation_numbers(array, "weight", source, length, path=names.file)
            return text
    return ""


def generated_sum(file: Any, key: str, path: str) -> float:
    """Sum of the weights of all generated events, from another tree or a histogram of the file.

    `file` is an open file. `key` is a branch with its tree (`Runs.genEventSumw`), whose entries are
    added up, or a bin of a histogram (`CountWeighted[1]`), counted from 1.

    Raises:
        MissingBranchError: The file lacks the branch or bin.
        WrongBranchTypeError: It is not finite, or no number.
    """
    classes = file.classnames(cycle=False)
    # A key that ends in [N] is a bin if a one-dimensional histogram has this name.
    bin_match = re.fullmatch(r"(.+)\[(\d+)\]", key)
    numbers: Floats | None = None
    if bin_match and classes.get(bin_match[1], "").startswith("TH1"):
        histogram, bin_number = bin_match[1], int(bin_match[2])
        bins = np.asarray(file[histogram].values(), np.float64)
        available = [f"{histogram}[{number}]" for number in range(1, len(bins) + 1)]
        if key in available:
            numbers = bins[bin_number - 1 : bin_number]
    elif tree := _tree_in_key(key, classes):
        available = [f"{tree}.{branch}" for branch in file[tree].keys()]  # noqa: SIM118 - no dict
        if key in available:
            branch = key.removeprefix(f"{tree}.")
            location = BranchLocation(
                f"{path}: branch '{key}'", "State another one as sum_of_weights of the sample."
            )
            source = Branch(path, key, file[tree][branch])
            array = source.read(0, int(file[tree].num_entries))
            numbers = event_numbers(array, location, "float64", 0)
    else:
        available = sorted(classes)
    if numbers is None:
        raise MissingBranchError(
            f"{path} lacks '{key}', the sum_of_weights of the sample. It holds: "
            f"{shortened_list(available)}.{nearest_names(key, available)} Correct the key, or take "
            f"the file out of the sample's files."
        )
    if not np.isfinite(numbers).all():
        raise WrongBranchTypeError(
            f"{path}: '{key}', the sum_of_weights of the sample, is not finite."
        )
    return float(numbers.sum())


def _tree_in_key(key: str, names: Container[str]) -> str:
    """The start of a key, up to a dot, that is a name in the file; empty without one.

    Names may have dots themselves, so each dot is tried, from the left.
    """
    for dot in re.finditer(r"\.", key):
        if key[: dot.start()] in names:
            return key[: dot.start()]
    return ""


def list_lengths(
    names: BranchNames, columns: Mapping[str, ColumnSource], entries: int
) -> dict[str, int]:
    """Length of the lists in branches of weights, by column; 0 if all lists are empty.

    Columns without a branch are left out. The first number of the list of `weight` is that of the
    generator itself, whatever follows.

    Raises:
        WrongBranchTypeError: A branch has no such number, or holds none.
    """
    lengths = {}
    for name, column in columns.items():
        # Of the weight itself, only a later position of a list depends on the length.
        is_in_list = name == "weight" and bool(column.position)
        if (is_variation(name) or is_in_list) and column.branch in names:
            lengths[name] = _list_length(names[column.branch], name, column, entries)
    return lengths


def _list_length(branch: Branch, name: str, column: ColumnSource, entries: int) -> int:
    """Length of the first list that is not empty; 1 for a branch of numbers, 0 without numbers.

    It reads the first entry, then the first thousand, then all, until a list is not empty.
    """
    for stop in (1, _FIRST_ENTRIES, entries):
        array = branch.read(0, min(stop, entries))
        lengths = np.ones(len(array), np.int64)
        if array.ndim > 1:
            lengths = np.asarray(ak.num(array))
        filled_entries = np.flatnonzero(lengths)
        if len(filled_entries):
            entry = int(filled_entries[0])
            # This call raises if the list does not have the number of the config.
            first_list = array[entry : entry + 1]
            column_numbers(first_list, name, column, path=branch.file, first=entry)
            return int(lengths[entry])
    return 0


def check_weight_scale(sum_of_weights: str, weight: str, path: str) -> None:
    """Refuse a sum of weights of the generator where each event of a file counts 1.

    The name of the branch or histogram in `sum_of_weights` says whether it is a sum of weights or a
    number of events, whatever the name of its tree or folder. `weight` is the branch of the weight;
    empty or `none` if each event counts 1.
    """
    if weight in {"", NO_WEIGHT} and _OF_WEIGHTS.search(_name_of_counter(sum_of_weights)):
        raise WrongBranchTypeError(
            f"{path}: '{sum_of_weights}', the sum_of_weights of the sample, adds up weights of the "
            f"generator, but every event has weight 1. State their branch as `weight` of the "
            f"sample, or a number of events as sum_of_weights (Runs.genEventCount)."
        )


def _name_of_counter(key: str) -> str:
    """The name of the branch without its tree, or of the histogram without its folder and bin.

    Examples:
        >>> _name_of_counter("sumWeights.totalEvents"), _name_of_counter("counts/h_genWeight[1]")
        ('totalEvents', 'h_genWeight')
    """
    if bin_match := re.fullmatch(r"(.+)\[\d+\]", key):
        return bin_match[1].rpartition("/")[2]
    tree, _, branch = key.partition(".")
    return branch or tree


def sign_of_a_skim(file: Any, tree: Any, entries: int, path: str) -> str | None:
    """Search a file for a sign that it holds only a part of the generated events (a skim).

    Counters in the tree Runs are tried first, then histograms, then gaps between event numbers.

    Returns:
        The clause; empty if the file shows that it holds all generated events; None if it shows
        neither.
    """
    # These objects are not needed otherwise, so damage in them is no error.
    with suppress(DamagedFileError), translate_read_errors(path, "its counters of events"):
        sign = _sign_in_runs(file, entries)
        if sign is None:
            sign = _sign_in_histograms(file, entries)
        if sign is None:
            sign = _sign_in_event_numbers(tree)
        return sign
    return None


def _sign_in_runs(file: Any, entries: int) -> str | None:
    """The sign in the tree Runs of NanoAOD, which counts the generated events.

    The result is that of `sign_of_a_skim`; None without such a counter.
    """
    if file.classnames(cycle=False).get("Runs") not in TREES:
        return None
    runs = file["Runs"]
    for branch in runs.keys(filter_name="genEventCount*"):
        generated = int(np.sum(read_branch(runs[branch])))
        if generated > entries:
            return f"Runs.{branch} is {generated}, its tree has {entries} entries"
        return ""
    return None


def _sign_in_histograms(file: Any, entries: int) -> str | None:
    """The sign in histograms that count events: a bin above the number of entries.

    The result is that of `sign_of_a_skim`: empty if a largest bin equals the number of entries.
    """
    counts = []
    for name, class_name in file.classnames(cycle=False).items():
        is_histogram = class_name.startswith("TH1")
        if is_histogram and _LIKE_A_COUNTER.match(name):
            bins = file[name].values()
            count = float(np.max(bins, initial=0.0))
            # Bins of float32 round large numbers.
            highest_count = entries * (1 + 1e-6)
            if count > highest_count:
                return f"the histogram '{name}' holds {count:g}, its tree has {entries} entries"
            counts.append(count)
    return "" if entries in counts else None


def _sign_in_event_numbers(tree: Any) -> str | None:
    """The sign in gaps: more than 5 % of neighbouring event numbers differ by more than 1.

    The result is that of `sign_of_a_skim`; None if no branch has different numbers.
    """
    branches = set(tree.keys(full_paths=False))
    for name in _NUMBERS_OF_EVENTS:
        if name not in branches:
            continue
        array = read_branch(tree[name], 0, _NUMBERS_READ)
        try:
            numbers = np.unique(event_numbers(array, BranchLocation(name), None, 0))
        except WrongBranchTypeError:
            continue
        # Some writers leave all numbers 0.
        if len(numbers) < 2:
            continue
        gaps = float(np.mean(np.diff(numbers) > 1))
        if gaps > _GAPS:
            return f"the numbers '{name}' of its events have gaps: {100 * gaps:.0f} %"
        return ""
    return None
