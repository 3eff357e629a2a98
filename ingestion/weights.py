"""Weights of events beyond their own branch: names like weights, sums over all generated events, signs of a skim."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import awkward as ak
import numpy as np
from numpy.typing import NDArray

from hep_core.input_errors import (
    DamagedFileError,
    nearest_names,
    shortened_list,
    translate_read_errors,
)
from ingestion.branches import BranchLocation, column_numbers, event_numbers, is_variation
from ingestion.errors import MissingBranchError, WrongBranchTypeError
from ingestion.expressions import ColumnSource
from ingestion.layout import BranchNames
from ingestion.packed_reals import read_branch
from ingestion.root_format import TREES
from ingestion.settings import NO_WEIGHT

Floats = NDArray[np.float64]

_LIKE_A_WEIGHT: Final = re.compile(
    r"(?i)(?!(?-i:n[A-Z])).*(weight|wgt|xsec|cross_?section)(?!.*(_size|\.f\w+)$)"
)
_A_WEIGHT: Final = re.compile(r"(?i)(gen|mc|evt|event)?[._]?weight")
_OF_WEIGHTS: Final = re.compile(r"(?i)weight|sum_?w")
_LIKE_A_COUNTER: Final = re.compile(
    r"(?i)(^|.*/)[^/]*(count|cut_?flow|sum_?w|gen_?weight|n_?events|sum_?of_?weights)"
)
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
#: Number of entries that are read for the length of their lists, if that of the first is empty, before all are.
_FIRST_ENTRIES: Final = 1000
#: Share of the event numbers before a gap above which a file looks skimmed; some generators skip single events.
_GAPS: Final = 0.05


def like_weights(branches: Iterable[str]) -> tuple[str, ...]:
    """Branches whose names say that they may hold weights or cross-sections, the most common names first."""
    named = filter(_LIKE_A_WEIGHT.match, branches)
    return tuple(sorted(named, key=lambda name: (not _A_WEIGHT.fullmatch(name), len(name), name)))


def generated_sum(file: Any, words: str, path: str) -> float:
    """Sum of the weights of all generated events of an open file: of a branch of another tree, or a histogram's bin.

    `words` is `Runs.genEventSumw`, or `CountWeighted[1]`: bins count from 1.
    """
    kinds = file.classnames(cycle=False)
    histogram = re.fullmatch(r"(.+)\[(\d+)\]", words)
    numbers: Floats | None = None
    if histogram and kinds.get(histogram[1], "").startswith("TH1"):
        bins = np.asarray(file[histogram[1]].values(flow=True), np.float64)
        held = [f"{histogram[1]}[{place}]" for place in range(1, len(bins) - 1)]
        numbers = bins[int(histogram[2]) :][:1] if words in held else None
    else:
        splits = [(words[: at.start()], words[at.end() :]) for at in re.finditer(r"\.", words)]
        tree, branch = next(((tree, branch) for tree, branch in splits if tree in kinds), ("", ""))
        held = [f"{tree}.{name}" for name in file[tree].keys()] if tree else sorted(kinds)  # noqa: SIM118 - no dict
        if f"{tree}.{branch}" in held:
            place = BranchLocation(
                f"{path}: branch '{words}'", "State another one as sum_of_weights of the sample."
            )
            numbers = event_numbers(read_branch(file[tree][branch]), place, "float64", 0)
    if numbers is None:
        raise MissingBranchError(
            f"{path} lacks '{words}', the sum_of_weights of the sample. It holds: {shortened_list(held)}."
            f"{nearest_names(words, held)} Correct the key, or take the file out of the sample's files."
        )
    if not np.isfinite(numbers).all():
        raise WrongBranchTypeError(
            f"{path}: '{words}', the sum_of_weights of the sample, is not finite."
        )
    return float(numbers.sum())


def list_lengths(
    names: BranchNames, columns: Mapping[str, ColumnSource], entries: int
) -> dict[str, int]:
    """How many numbers an event has in the branches of weights that are there, by column; 0 if all lists are empty.

    The first number of the list of `weight` is that of the generator itself, whatever follows.

    Raises:
        WrongBranchTypeError: A branch has no such number, or holds none.
    """
    lengths = {}
    for name, column in columns.items():
        is_chosen = is_variation(name) or (name == "weight" and column.number)
        if not is_chosen or column.branch not in names:
            continue
        lengths[name] = 0
        for stop in (1, _FIRST_ENTRIES, entries):
            array = names[column.branch].read(0, min(stop, entries))
            is_there = (
                np.asarray(ak.num(array)) > 0 if array.ndim > 1 else np.ones(len(array), np.bool_)
            )
            if is_there.any():
                first = int(np.argmax(is_there))
                column_numbers(array[first : first + 1], name, column, path=names.file, first=first)
                lengths[name] = int(ak.num(array)[first]) if array.ndim > 1 else 1
                break
    return lengths


def check_weight_scale(words: str, weight: str, path: str) -> None:
    """Refuse a `sum_of_weights` that adds up other weights than the 1 of each event of a file without `weight`."""
    if weight in {"", NO_WEIGHT} and _OF_WEIGHTS.search(words):
        raise WrongBranchTypeError(
            f"{path}: '{words}', the sum_of_weights of the sample, adds up weights of the generator, but every event "
            f"has weight 1. State their branch as `weight` of the sample, or a number of events as sum_of_weights "
            f"(Runs.genEventCount)."
        )


def sign_of_a_skim(file: Any, tree: Any, entries: int, path: str) -> str | None:
    """What in a file says that it holds only a part of the generated events.

    Returns:
        Words; empty if what the file has speaks for all generated events; None if it has nothing that tells.
    """
    # What is not needed may be damaged.
    with suppress(DamagedFileError), translate_read_errors(path, "its counters of events"):
        return _sign_of_a_skim(file, tree, entries)
    return None


def _sign_of_a_skim(file: Any, tree: Any, entries: int) -> str | None:
    counters: dict[str, float] = {}
    for name, kind in file.classnames(cycle=False).items():
        if name == "Runs" and kind in TREES:
            for branch in file[name].keys(filter_name="genEventCount*"):
                generated = int(np.sum(read_branch(file[name][branch])))
                return (
                    f"{name}.{branch} is {generated}, its tree has {entries} entries"
                    if generated > entries
                    else ""
                )
        if kind.startswith("TH1") and _LIKE_A_COUNTER.match(name):
            counters[name] = float(np.max(file[name].values(), initial=0.0))
    for name, count in counters.items():
        if count > entries * (1 + 1e-6):
            return f"the histogram '{name}' holds {count:g}, its tree has {entries} entries"
    return "" if entries in counters.values() else _gaps(tree)


def _gaps(tree: Any) -> str | None:
    branches = set(tree.keys(full_paths=False))
    for name in _NUMBERS_OF_EVENTS:
        if name in branches:
            array = read_branch(tree[name], 0, _NUMBERS_READ)
            try:
                numbers = np.unique(event_numbers(array, BranchLocation(name), None, 0))
            except WrongBranchTypeError:
                continue
            # Some writers leave the numbers 0.
            if len(numbers) > 1:
                share = float(np.mean(np.diff(numbers) > 1))
                return (
                    f"the numbers '{name}' of its events have gaps: {100 * share:.0f} %"
                    if share > _GAPS
                    else ""
                )
    return None
