"""Parquet that this pipeline wrote is read as it was written, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hep_core.checked_parquet import CheckedParquetFile, open_parquet, read_parquet
from hep_core.integrity import DamagedOutputError, footer_digest

NUM_EVENTS = 120


def events_table(scale: float = 1.0) -> pa.Table:
    """Numbers, text, lists and lists of records; some lists are empty."""
    random = np.random.default_rng(seed=3)
    lengths = random.integers(0, 20, NUM_EVENTS)
    particles = [
        [{"pt": float(pt) * scale, "charge": int(pt > 0)} for pt in random.normal(size=n)]
        for n in lengths
    ]
    energies = [random.normal(size=n).astype(np.float32) * np.float32(scale) for n in lengths]
    return pa.table(
        {
            "entry": np.arange(NUM_EVENTS),
            "sample": ["qcd", "ttbar", "wjets"] * (NUM_EVENTS // 3),
            "energy": pa.array(energies, pa.list_(pa.float32())),
            "particles": pa.array(
                particles, pa.list_(pa.struct([("pt", pa.float32()), ("charge", pa.int8())]))
            ),
        }
    )


def write_events(path: Path, table: pa.Table) -> bytes:
    pq.write_table(table, path, compression="zstd", data_page_size=600, write_page_checksum=True)
    return path.read_bytes()


def is_noticed(path: Path, footer: str) -> bool:
    """Whether the footer or a read shows the damage."""
    if footer_digest(path) != footer:
        return True
    try:
        read_parquet(path)
    except DamagedOutputError:
        return True
    return False


def test_each_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path, table = tmp_path / "events.parquet", events_table()
    events, footer = write_events(path, table), footer_digest(path)
    random = np.random.default_rng(seed=4)
    silent = []
    for position in random.choice(len(events), 600, replace=False).tolist():
        damaged = bytearray(events)
        damaged[position] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        if not (is_noticed(path, footer) or read_parquet(path).equals(table)):
            silent.append(position)
    assert silent == []


@pytest.mark.parametrize("name", ["energy", "particles"])
def test_a_list_that_a_page_header_cuts_is_noticed(tmp_path: Path, name: str) -> None:
    path, table = tmp_path / "events.parquet", events_table()
    events, footer = write_events(path, table), footer_digest(path)
    metadata = pq.read_metadata(path)
    leaves = range(metadata.num_columns)
    column = next(
        chunk
        for leaf in leaves
        if (chunk := metadata.row_group(0).column(leaf)).path_in_schema.startswith(name)
    )
    start = column.data_page_offset
    cuts = []
    for position in range(start, start + 40):
        for bit in range(8):
            damaged = bytearray(events)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            with suppress(Exception), pq.ParquetFile(path, page_checksum_verification=True) as file:
                if not file.read().equals(table):
                    cuts.append((position, bit))
    assert cuts, "pyarrow alone finds all of them: the check of lists is not needed"
    for position, bit in cuts:
        damaged = bytearray(events)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        assert is_noticed(path, footer)


WAYS: dict[str, Callable[[CheckedParquetFile], Any]] = {
    "row group": lambda file: file.read_row_group(0),
    "batches": lambda file: list(file.iter_batches(50)),
    "table": lambda file: file.read(),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_read_checks_the_pages(tmp_path: Path, way: str) -> None:
    path = tmp_path / "events.parquet"
    file_bytes = bytearray(write_events(path, events_table()))
    file_bytes[len(file_bytes) // 3] ^= 1
    path.write_bytes(file_bytes)

    def read() -> None:
        with open_parquet(path) as file:
            WAYS[way](file)

    with pytest.raises(DamagedOutputError, match=r"events\.parquet is not what was written"):
        read()


def test_good_files_read_the_same_in_each_way(tmp_path: Path) -> None:
    path, table = tmp_path / "events.parquet", events_table()
    pq.write_table(table, path, row_group_size=50, write_page_checksum=True)
    with open_parquet(path) as file:
        groups = [file.read_row_group(group) for group in range(file.num_row_groups)]
        batches = list(file.iter_batches(33))
    assert pa.concat_tables(groups).equals(table)
    assert pa.Table.from_batches(batches).equals(table)
    assert read_parquet(path, ["energy"]).equals(table.select(["energy"]))


def test_an_error_of_the_reader_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    write_events(path, events_table())

    def fail() -> None:
        with open_parquet(path) as file:
            file.read()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "gone.parquet")


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 64 failed")])
def test_a_lack_of_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = tmp_path / "events.parquet"
    write_events(path, events_table())

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(CheckedParquetFile, "read_row_group", fail)
    monkeypatch.setattr(CheckedParquetFile, "read", fail)
    with pytest.raises(type(error)):
        read_parquet(path)


@pytest.mark.parametrize("damage", ["cut", "empty", "of other values", "not Parquet"])
def test_the_footer_of_another_file_is_another(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "events.parquet"
    events = write_events(path, events_table())
    footer = footer_digest(path)
    remaining = {"cut": events[:-100], "empty": b"", "not Parquet": b"\0" * len(events)}
    if damage in remaining:
        path.write_bytes(remaining[damage])
    else:
        write_events(path, events_table(scale=2.5))
    assert footer_digest(path) != footer
    path.write_bytes(events)
    assert footer_digest(path) == footer
