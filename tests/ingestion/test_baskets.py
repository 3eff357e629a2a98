"""Cutting files between baskets.

Every entry is in one piece, and the events are the same however a file is cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot
from delphes_files import checked_files, jagged, read_in_pieces, write_delphes
from event_rows import event_row, jet, lepton, track
from hypothesis import given
from hypothesis import strategies as st

from ingestion import baskets
from ingestion.baskets import basket_boundaries, chunk_edges, piece_edges
from ingestion.range_output import ingest_range, split_entries
from ingestion.settings import IngestSettings

BASKETS = [7, 1, 12, 5, 5, 30, 2, 8]


class Cut(NamedTuple):
    """Arguments of `chunk_edges`."""

    boundaries: list[int]
    start: int
    stop: int
    chunk: int


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    sizes = draw(st.lists(st.integers(1, 40) | st.integers(100, 2000), min_size=1, max_size=12))
    num_entries = sum(sizes)
    start = draw(st.integers(0, num_entries - 1))
    stop = draw(st.integers(start + 1, num_entries))
    chunk = draw(st.integers(1, 300))
    return Cut(np.cumsum([0, *sizes]).tolist(), start, stop, chunk)


@given(cut=cuts())
def test_pieces_cover_every_entry_once_and_end_at_baskets_where_these_are_small(cut: Cut) -> None:
    edges = chunk_edges(*cut)

    assert (edges[0], edges[-1]) == (cut.start, cut.stop)
    borders = {cut.start, cut.stop, *cut.boundaries}
    for first, last in pairwise(edges):
        assert 0 < last - first <= 4 * cut.chunk
        has_border = any(first < boundary < last for boundary in cut.boundaries)
        assert last - first <= cut.chunk or not has_border
        # A piece is as large as it may be, except in a large basket.
        if {first, last} <= borders and last < cut.stop:
            next_border = min(border for border in borders if border > last)
            assert next_border - first > cut.chunk
    for edge in set(edges) - borders:
        position = bisect_left(cut.boundaries, edge)
        low, high = cut.boundaries[position - 1 : position + 1]
        assert min(high, cut.stop) - max(low, cut.start) > 4 * cut.chunk


def test_empty_baskets_make_no_empty_pieces() -> None:
    assert chunk_edges([0, 0, 4, 4, 4, 8, 8], 0, 8, 4) == [0, 4, 8]


def write_in_baskets(path: Path, sizes: list[int]) -> Path:
    """Write events that all differ, in baskets of these numbers of events; returns the path."""
    events = []
    for entry in range(sum(sizes)):
        event = event_row(
            met=100.0 + entry,
            weight=0.5 * entry,
            tracks=[track(1.0 + entry, 0.01 * n, 0.1 * n) for n in range(entry % 4)],
            jets=[jet(50.0, 0.5, 1.0, btag=entry % 3)],
        )
        # Every fifth event has no lepton, and is rejected.
        if entry % 5:
            event["electrons"] = [lepton(30.0 + entry, 0.1, 0.2)]
        events.append(event)
    return write_delphes(path, events, baskets=sizes)


@pytest.fixture(scope="module")
def many_baskets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the baskets `BASKETS`."""
    return write_in_baskets(tmp_path_factory.mktemp("baskets") / "many.root", BASKETS)


@pytest.mark.parametrize("entries_per_task", [1, 3, 10, 25])
def test_files_are_cut_into_parts_where_baskets_end(
    many_baskets: Path, entries_per_task: int
) -> None:
    settings = IngestSettings(entries_per_task=entries_per_task)
    with uproot.open({many_baskets: "Delphes"}) as tree:
        boundaries = basket_boundaries([tree["EFlowTrack.PT"], tree["MissingET.MET"]])

    (info,) = checked_files(many_baskets, settings=settings)

    assert boundaries == np.cumsum([0, *BASKETS]).tolist()
    assert info.edges == tuple(chunk_edges(boundaries, 0, sum(BASKETS), entries_per_task))
    assert len(info.edges) > 2


def write_lists(path: Path, *lengths: int, is_ntuple: bool = False) -> Path:
    """Write baskets of 100 entries, whose lists have these lengths; returns the path."""
    with uproot.recreate(path) as file:
        make_tree = file.mkrntuple if is_ntuple else file.mktree
        tree = make_tree("t", {"x": jagged(np.arange(1), np.zeros(0, np.float32)).type.content})
        for length in lengths:
            numbers = np.arange(100 * length, dtype=np.float32)
            tree.extend({"x": jagged(np.arange(101) * length, numbers)})
    return path


@pytest.mark.parametrize("is_ntuple", [False, True], ids=["TTree", "RNTuple"])
def test_a_few_heavy_events_after_light_ones_are_read_in_small_pieces(
    tmp_path: Path, is_ntuple: bool
) -> None:
    """The mean size of an entry says nothing about them."""
    lengths = [1, 1, 1, 1, 1, 1, 500, 500, 1, 5000]
    path = write_lists(tmp_path / "a.root", *lengths, is_ntuple=is_ntuple)

    with uproot.open({path: "t"}) as tree, pytest.MonkeyPatch.context() as patch:
        patch.setattr(baskets, "_READ_BYTES", 300_000)
        # Light baskets go together; a heavy one has 200 kB, and the last 2 MB.
        assert piece_edges([tree["x"]], 0, 1000) == [0, 700, 900, 950, 1000]
        assert piece_edges([tree["x"]], 650, 940) == [650, 700, 900, 940]


def test_clusters_without_a_late_field_are_read(tmp_path: Path) -> None:
    """Their lists of pages end before its columns."""
    path = write_lists(tmp_path / "a.root", 500, 500, 500, is_ntuple=True)

    with uproot.open({path: "t"}) as tree, pytest.MonkeyPatch.context() as patch:
        patch.setattr(baskets, "_READ_BYTES", 300_000)
        assert piece_edges([tree["x"]], 0, 300) == [0, 100, 200, 300]
        tree["x"].ntuple.page_link_list[0] = []
        assert piece_edges([tree["x"]], 0, 300) == [0, 200, 300]


@pytest.mark.slow
def test_parts_of_a_file_hold_the_same_events_as_one_part(
    many_baskets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_pieces(monkeypatch, 3)

    def ingest_in_parts(entries_per_task: int) -> tuple[pa.Table, Counter[str], int]:
        """Events, counts and number of parts."""
        settings = IngestSettings(entries_per_task=entries_per_task)
        out = tmp_path / str(entries_per_task)
        out.mkdir()
        tables = []
        counts: Counter[str] = Counter()
        for entries in split_entries(checked_files(many_baskets, settings=settings)):
            for events_part in ingest_range(entries, settings, out):
                counts.update(events_part.counts)
                if events_part.name:
                    tables.append(pq.read_table(out / events_part.name))
        return pa.concat_tables(tables).combine_chunks(), counts, len(tables)

    table, counts, num_parts = ingest_in_parts(4)
    expected_table, expected_counts, num_parts_at_once = ingest_in_parts(1000)

    assert num_parts > num_parts_at_once == 1
    assert table.equals(expected_table)
    assert counts == expected_counts
    assert (counts["entries"], counts["rejected_no_lepton"], counts["events"]) == (70, 14, 56)
