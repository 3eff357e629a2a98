"""Files of three samples, and runs of the stages `ingest` and `features` over them."""

from __future__ import annotations

from pathlib import Path

from analyses import NAMES, Analysis
from delphes_files import write_delphes
from event_rows import Row, event_row, lepton, track

#: What distinguishes the first event of each sample.
FIRST = {name: 100 * index for index, name in enumerate(NAMES)}


def events(first: int, count: int = 40) -> list[Row]:
    """Events that all differ; every fourth has no lepton."""
    rows = []
    for index in range(count):
        tracks = [track(2.0 + first + index, 1.0, -1.0)]
        row = event_row(met=20.0 + first + index, tracks=tracks)
        if index % 4:
            row["electrons"] = [lepton(30.0 + index, 0.1, 0.2)]
        rows.append(row)
    return rows


class Night(Analysis):
    """An analysis with one file of each sample."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data.mkdir()
        for name, first in FIRST.items():
            write_delphes(self.data / f"{name}_0.root", events(first))

    def events(self) -> int:
        """Number of events in the files in use."""
        return sum(counts["events"] for counts in self.counters("ingest")["samples"].values())
