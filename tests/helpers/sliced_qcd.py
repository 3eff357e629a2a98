"""Files of QCD cut into slices of pT, as generators make them: each with a cross-section and a size
of its own."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import uproot

from ingestion.known_layouts import LAYOUTS, BranchLayout

#: Cross-section of the whole sample [pb], invented.
WHOLE: Final = 5000.0
#: Lower edges of the pT of the leading jet [GeV], and one of how many events each slice keeps to
#: have too few.
EDGES: Final = (0.0, 50.0, 100.0)
THINNED: Final = (4, 4, 1)


def write_slices(folder: Path, paths: Sequence[Path], keep: Sequence[int]) -> list[dict[str, Any]]:
    """Write one of `keep` of the events of each slice; returns the slices as samples of label 0."""
    branches = list(LAYOUTS[BranchLayout.DELPHES].branches({}).values())
    events = uproot.concatenate([f"{path}:Delphes" for path in paths], branches)
    hardest = ak.fill_none(ak.max(events["Jet.PT"], axis=1), 0.0).to_numpy()
    slice_of_event = np.searchsorted(EDGES, hardest, side="right") - 1
    samples = []
    for index, thinning in enumerate(keep):
        in_slice = np.flatnonzero(slice_of_event == index)
        path = folder / f"slice-{index}.root"
        identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{index} of {keep}")
        _write_events(path, events[in_slice[::thinning]], branches, identity)
        cross_section_pb = WHOLE * len(in_slice) / len(events)
        sample = {
            "name": f"qcd-{index}",
            "label": 0,
            "files": [str(path)],
            "cross_section_pb": cross_section_pb,
        }
        samples.append(sample)
    return samples


def _write_events(path: Path, events: ak.Array, branches: list[str], identity: uuid.UUID) -> None:
    """Write the branches of events into a ROOT file of a given identity."""
    columns = {name: events[name] for name in branches}
    types = {name: column.type.content for name, column in columns.items()}
    with uproot.recreate(path, compression=None, uuid_function=lambda: identity) as file:
        file.mktree("Delphes", types).extend(columns)
