"""Cutting files between baskets: every entry in exactly one piece, and the same events however a
file is cut."""

from __future__ import annotations

from bisect import bisect_left
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
    edges = chunk_edges([0, 0, 4, 4, 4, 8, 8], 0, 8, 4)
    assert edges == [0, 4, 8]


def write_in_baskets(path: Path, sizes: list[int]) -> Path:
    """A file of events that all differ, one basket of every branch for each of the sizes."""
    events = [
        event_row(
            met=100.0 + entry,
            weight=0.5 * entry,
            # Every fifth event has no lepton, and is rejected.
            electrons=[lepton(30.0 + entry, 0.1, 0.2)] if entry % 5 else [],
            tracks=[track(1.0 + entry, 0.01 * n, 0.1 * n) for n in range(entry % 4)],
            jets=[jet(50.0, 0.5, 1.0, btag=entry % 3)],
        )
        for entry in range(sum(sizes))
    ]
    return write_delphes(path, events, baskets=sizes)


@pytest.fixture(scope="module")
def path_of_many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_in_baskets(tmp_path_factory.mktemp("baskets") / "many.root", BASKETS)


@pytest.mark.parametrize("entries_per_task", [1, 3, 10, 25])
def test_files_are_cut_into_parts_where_baskets_end(
    path_of_many: Path, entries_per_task: int
) -> None:
    (info,) = checked_files(
        path_of_many, settings=IngestSettings(entries_per_task=entries_per_task)
    )
    with uproot.open(path_of_many) as file:
        boundaries = basket_boundaries(
            [file["Delphes"]["EFlowTrack.PT"], file["Delphes"]["MissingET.MET"]]
        )
    assert boundaries == np.cumsum([0, *BASKETS]).tolist()
    assert info.edges == tuple(chunk_edges(boundaries, 0, sum(BASKETS), entries_per_task))
    assert len(info.edges) > 2


@pytest.mark.parametrize("kind_name", ["mktree", "mkrntuple"])
def test_a_few_heavy_events_after_light_ones_are_read_in_small_pieces(
    tmp_path: Path, kind_name: str
) -> None:
    """They had the number of entries of the mean size: of a TTree 190 MB instead of 40, of an RNTuple 224."""
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        tree = getattr(file, kind_name)(
            "t", {"x": jagged(np.arange(1), np.zeros(0, np.float32)).type.content}
        )
        for length in (1, 1, 1, 1, 1, 1, 500, 500, 1, 5000):
            tree.extend(
                {"x": jagged(np.arange(101) * length, np.arange(100 * length, dtype=np.float32))}
            )
    with uproot.open({path: "t"}) as tree, pytest.MonkeyPatch.context() as patch:
        patch.setattr(baskets, "_READ_BYTES", 300_000)
        # Light baskets go together; a heavy one has 200 kB, and the last 2 MB.
        assert piece_edges([tree["x"]], 0, 1000) == [0, 700, 900, 950, 1000]
        assert piece_edges([tree["x"]], 650, 940) == [650, 700, 900, 940]


def test_clusters_without_a_late_field_are_read(
    tmp_path: Path,
) -> None:
    """Their lists of pages end before its columns."""
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        tree = file.mkrntuple(
            "t", {"x": jagged(np.arange(1), np.zeros(0, np.float32)).type.content}
        )
        for _ in range(3):
            tree.extend({"x": jagged(np.arange(101) * 500, np.arange(50_000, dtype=np.float32))})
    with uproot.open({path: "t"}) as tree, pytest.MonkeyPatch.context() as patch:
        patch.setattr(baskets, "_READ_BYTES", 300_000)
        assert piece_edges([tree["x"]], 0, 300) == [0, 100, 200, 300]
        tree["x"].ntuple.page_link_list[0] = []
        assert piece_edges([tree["x"]], 0, 300) == [0, 200, 300]


@pytest.mark.slow
def test_parts_of_a_file_hold_the_same_events_as_one_part(
    path_of_many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_pieces(monkeypatch, 3)
    counted: list[dict[str, int]] = []
    tables = []
    for entries_per_task in (4, 1000):
        settings = IngestSettings(entries_per_task=entries_per_task)
        out = tmp_path / str(entries_per_task)
        out.mkdir()
        ranges = split_entries(checked_files(path_of_many, settings=settings))
        chunks = [chunk for work in ranges for chunk in ingest_range(work, settings, out)]
        tables.append(
            pa.concat_tables([pq.read_table(out / chunk.name) for chunk in chunks if chunk.name])
        )
        counted.append(
            {step: sum(chunk.counts[step] for chunk in chunks) for step in chunks[0].counts}
        )
    assert len(list((tmp_path / "4").iterdir())) > len(list((tmp_path / "1000").iterdir())) == 1
    assert tables[0].combine_chunks().equals(tables[1].combine_chunks())
    assert counted[0] == counted[1]
    assert (counted[0]["entries"], counted[0]["rejected_no_lepton"], counted[0]["events"]) == (
        70,
        14,
        56,
    )
