"""Cutting files between baskets: every entry in exactly one piece, and the same events however a file is cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot
from delphes_files import jagged, source_of, write_delphes
from hypothesis import given
from hypothesis import strategies as st
from made_events import jet, lepton, made_event, track
from short_pieces import read_in_pieces

from ingestion import baskets
from ingestion.baskets import basket_boundaries, chunk_edges, piece_edges
from ingestion.files import FileInfo, inventory
from ingestion.reader import read_events, select_events
from ingestion.settings import IngestSettings
from ingestion.spark_job import ingest_range, split_entries

BASKETS = [7, 1, 12, 5, 5, 30, 2, 8]


class Cut(NamedTuple):
    """What `chunk_edges` is asked."""

    boundaries: list[int]
    start: int
    stop: int
    chunk: int


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    sizes = draw(st.lists(st.integers(1, 40) | st.integers(100, 2000), min_size=1, max_size=12))
    boundaries = [0]
    for size in sizes:
        boundaries.append(boundaries[-1] + size)
    start = draw(st.integers(0, boundaries[-1] - 1))
    stop = draw(st.integers(start + 1, boundaries[-1]))
    return Cut(boundaries, start, stop, draw(st.integers(1, 300)))


@pytest.mark.slow
@given(cut=cuts())
def test_pieces_cover_every_entry_exactly_once(cut: Cut) -> None:
    edges = chunk_edges(*cut)
    assert (edges[0], edges[-1]) == (cut.start, cut.stop)
    assert all(first < last for first, last in pairwise(edges))


@given(cut=cuts())
def test_cuts_are_between_baskets_or_inside_one_of_more_than_four_chunks(cut: Cut) -> None:
    for edge in chunk_edges(*cut)[1:-1]:
        if edge in cut.boundaries:
            continue
        ((first, last),) = [basket for basket in pairwise(cut.boundaries) if basket[0] < edge < basket[1]]
        assert min(last, cut.stop) - max(first, cut.start) > 4 * cut.chunk


@given(cut=cuts())
def test_a_piece_of_more_than_a_chunk_is_one_basket_and_none_is_longer_than_four(cut: Cut) -> None:
    for first, last in pairwise(chunk_edges(*cut)):
        assert last - first <= 4 * cut.chunk
        if last - first > cut.chunk:
            assert not [boundary for boundary in cut.boundaries if first < boundary < last]


@given(cut=cuts())
def test_pieces_are_no_smaller_than_they_must_be(cut: Cut) -> None:
    # But for the pieces of one large basket.
    whole = {cut.start, *cut.boundaries}
    for first, middle in pairwise(chunk_edges(*cut)):
        if {first, middle} <= whole and middle < cut.stop:
            end_of_next = min(boundary for boundary in [*cut.boundaries, cut.stop] if boundary > middle)
            assert end_of_next - first > cut.chunk


def test_empty_baskets_make_no_empty_pieces() -> None:
    edges = chunk_edges([0, 0, 4, 4, 4, 8, 8], 0, 8, 4)
    assert edges == [0, 4, 8]


def write_in_baskets(path: Path, sizes: list[int]) -> Path:
    """A file of events that all differ, one basket of every branch for each of the sizes."""
    events = [
        made_event(
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


def examined(path: Path, settings: IngestSettings) -> FileInfo:
    (info,) = inventory([source_of("qcd", 0, str(path))], settings).infos
    return info


def test_the_boundaries_are_those_of_the_file(path_of_many: Path) -> None:
    with uproot.open(path_of_many) as file:
        tree = file["Delphes"]
        expected = [0]
        for size in BASKETS:
            expected.append(expected[-1] + size)
        assert basket_boundaries([tree["EFlowTrack.PT"], tree["MissingET.MET"]]) == expected


@pytest.mark.parametrize("entries_per_task", [1, 3, 10, 25])
def test_files_are_cut_into_parts_where_baskets_end(path_of_many: Path, entries_per_task: int) -> None:
    info = examined(path_of_many, IngestSettings(entries_per_task=entries_per_task))
    with uproot.open(path_of_many) as file:
        boundaries = basket_boundaries([file["Delphes"]["MissingET.MET"]])
    assert info.edges == tuple(chunk_edges(boundaries, 0, sum(BASKETS), entries_per_task))
    assert len(info.edges) > 2


def events_of(info: FileInfo, settings: IngestSettings, *, start: int, stop: int) -> pa.Table:
    pieces = read_events(info, settings, start=start, stop=stop)
    return pa.concat_tables([select_events(raw, info, settings).table for raw in pieces]).combine_chunks()


@pytest.mark.parametrize("chunk", [1, 2, 6, 13, 1000])
@pytest.mark.parametrize(("start", "stop"), [(0, 70), (0, 7), (9, 44), (25, 26)])
@pytest.mark.slow
def test_reading_in_pieces_gives_the_same_events_as_reading_at_once(
    path_of_many: Path, monkeypatch: pytest.MonkeyPatch, start: int, stop: int, chunk: int
) -> None:
    settings = IngestSettings()
    info = examined(path_of_many, settings)
    whole = events_of(info, settings, start=0, stop=70)
    assert whole["met"].to_pylist() == [100.0 + entry for entry in range(70) if entry % 5]
    entries = [entry for entry in range(start, stop) if entry % 5]
    read_in_pieces(monkeypatch, chunk)
    pieces = events_of(info, settings, start=start, stop=stop)
    assert pieces["entry"].to_pylist() == entries
    rows = [row for row, entry in enumerate(whole["entry"].to_pylist()) if entry in entries]
    assert pieces.equals(whole.take(pa.array(rows, pa.int64())))


@pytest.mark.slow
def test_ten_times_the_multiplicity_is_read_in_smaller_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 150_000
    monkeypatch.setattr("ingestion.baskets._READ_BYTES", limit)
    longest = []
    for number in (30, 300):
        rows = [made_event(electrons=[lepton(40.0, 0, 0)], tracks=[track(1.0, 0.1, 0.1)] * number) for _ in range(80)]
        info = examined(write_delphes(tmp_path / f"{number}.root", rows), IngestSettings())
        pieces = list(read_events(info, IngestSettings(), start=0, stop=80))
        assert sum(piece.num_events for piece in pieces) == 80
        for piece in pieces:
            fields = [values for each in piece.collections.values() for values in each.fields.values()]
            # All lie in one basket, which is cut only if it is four times as large.
            assert sum(values.nbytes for values in fields) < 4 * limit
        longest.append(max(piece.num_events for piece in pieces))
    assert longest == [80, 40]


@pytest.mark.parametrize("kind", ["mktree", "mkrntuple"])
def test_a_few_heavy_events_after_light_ones_are_read_in_small_pieces(tmp_path: Path, kind: str) -> None:
    """They had the number of entries of the mean size: of a TTree 190 MB instead of 40, of an RNTuple 224."""
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        tree = getattr(file, kind)("t", {"x": jagged(np.arange(1), np.zeros(0, np.float32)).type.content})
        for length in (1, 1, 1, 1, 1, 1, 500, 500, 1, 5000):
            tree.extend({"x": jagged(np.arange(101) * length, np.arange(100 * length, dtype=np.float32))})
    with uproot.open({path: "t"}) as tree, pytest.MonkeyPatch.context() as patch:
        patch.setattr(baskets, "_READ_BYTES", 300_000)
        # Light baskets go together; a heavy one has 200 kB, and the last 2 MB.
        assert piece_edges([tree["x"]], 0, 1000) == [0, 700, 900, 950, 1000]
        assert piece_edges([tree["x"]], 650, 940) == [650, 700, 900, 940]


def test_clusters_from_before_a_field_was_added_ended_as_an_error_of_this_program(tmp_path: Path) -> None:
    """Their lists of pages end before its columns."""
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        tree = file.mkrntuple("t", {"x": jagged(np.arange(1), np.zeros(0, np.float32)).type.content})
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
        ranges = split_entries([examined(path_of_many, settings)])
        parts = [part for work in ranges for part in ingest_range(work, settings, out)]
        tables.append(pa.concat_tables([pq.read_table(out / part.name) for part in parts if part.name]))
        counted.append({step: sum(part.counts[step] for part in parts) for step in parts[0].counts})
    assert len(list((tmp_path / "4").iterdir())) > len(list((tmp_path / "1000").iterdir())) == 1
    assert tables[0].combine_chunks().equals(tables[1].combine_chunks())
    assert counted[0] == counted[1]
    assert (counted[0]["entries"], counted[0]["rejected_no_lepton"], counted[0]["events"]) == (70, 14, 56)
