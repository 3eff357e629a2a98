"""Files of QCD cut into slices of pT, as generators make them: each with a cross-section and a size of its own."""

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
#: Lower edges of the pT of the leading jet [GeV], and one of how many events each slice keeps to have too few.
EDGES: Final = (0.0, 50.0, 100.0)
THINNED: Final = (4, 4, 1)


def write_slices(folder: Path, paths: Sequence[Path], keep: Sequence[int]) -> list[dict[str, Any]]:
    """The slices as samples of label 0: files of one of `keep` of their events, with the cross-section of all."""
    branches = list(LAYOUTS[BranchLayout.DELPHES].branches({}).values())
    events = uproot.concatenate([f"{path}:Delphes" for path in paths], branches)
    hardest = ak.fill_none(ak.max(events["Jet.PT"], axis=1), 0.0).to_numpy()
    index, samples = np.searchsorted(EDGES, hardest, side="right") - 1, []
    for position, one_of in enumerate(keep):
        inside = np.flatnonzero(index == position)
        selected = events[inside[::one_of]]
        path, identity = (
            folder / f"slice-{position}.root",
            uuid.uuid5(uuid.NAMESPACE_OID, f"{position} of {keep}"),
        )
        with uproot.recreate(
            path, compression=None, uuid_function=lambda name=identity: name
        ) as file:
            columns = {name: selected[name] for name in branches}
            file.mktree(
                "Delphes", {name: column.type.content for name, column in columns.items()}
            ).extend(columns)
        cross_section = WHOLE * len(inside) / len(events)
        samples.append(
            {
                "name": f"qcd-{position}",
                "label": 0,
                "files": [str(path)],
                "cross_section_pb": cross_section,
            }
        )
    return samples
