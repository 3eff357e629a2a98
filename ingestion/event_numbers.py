"""Reads run, luminosity block and event numbers, by the usual names of their branches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import awkward as ak
import numpy as np

from hep_core.input_errors import InputFileError
from ingestion.branches import event_numbers
from ingestion.layout import BranchNames
from ingestion.same_events import UInt64s, mix_bits
from ingestion.tree_branch import Branch

#: Usual names, in any case of letters and with any separator.
_USUAL_NAMES: Final = {
    "channel": ("mcChannelNumber", "EventInfoAuxDyn.mcChannelNumber"),
    "run": ("run", "runNumber", "run_number", "EventInfoAuxDyn.runNumber"),
    "block": ("luminosityBlock", "lumi", "lumiBlock", "lumi_block", "EventInfoAuxDyn.lumiBlock"),
    "event": (
        "event",
        "eventNumber",
        "event_number",
        "Event.Number",
        "EventInfoAuxDyn.eventNumber",
    ),
}
#: Prefix of the names of their columns.
PREFIX: Final = "_number_"


def number_sources(names: BranchNames) -> dict[str, Branch]:
    """The branches of run, block and event numbers, by column; empty without event numbers.

    For each kind of number, the first usual name that is a branch of integers counts.
    """
    sources = {}
    for purpose, usual_names in _USUAL_NAMES.items():
        for name in usual_names:
            # No number of an event is a branch that cannot be read, a name of several branches, or
            # a collection, such as Delphes' `Event`.
            with suppress(InputFileError):
                if name in names and _is_integer(names[name].empty_array()):
                    sources[f"{PREFIX}{purpose}"] = names[name]
                    break
    return sources if f"{PREFIX}event" in sources else {}


def _is_integer(array: ak.Array) -> bool:
    """Whether an array holds integers, one for each event or in lists."""
    layout = array.layout
    numbers = layout.content if layout.is_list else layout
    return bool(numbers.is_numpy) and np.dtype(numbers.dtype).kind in "iu"


def number_keys(
    arrays: Mapping[str, ak.Array], sources: Mapping[str, Branch], first: int
) -> UInt64s | None:
    """(num_events,) a hash of the numbers of each event; None without branches of numbers.

    All keys are 0, which stands for no numbers, if a branch does not have one number for each
    event.

    Args:
        arrays: Contents of all branches by column; those of numbers begin with `PREFIX`.
        sources: Branches of the columns, for messages.
        first: Entry of the first event in the file.
    """
    columns = [name for name in arrays if name.startswith(PREFIX)]
    if not columns:
        return None
    keys = np.zeros(len(arrays[columns[0]]), np.uint64)
    try:
        for name in columns:
            numbers = event_numbers(arrays[name], sources[name].location, None, first)
            keys = mix_bits(keys + numbers.astype(np.uint64))
    except InputFileError:
        return np.zeros_like(keys)
    # A hash that happens to be 0 becomes 1, since 0 stands for no numbers.
    return np.maximum(keys, np.uint64(1))
