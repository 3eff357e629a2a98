"""A file that turns out bad, or changes, during the read leaves nothing in the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from delphes_files import source_of, write_delphes
from event_rows import distinct, event_row, lepton
from spark_in_process import InProcessSpark

from ingestion import spark_job as job
from ingestion.files import Inventory, expand, inventory
from ingestion.range_output import EntryRange, EventsPart, ingest_range
from ingestion.settings import IngestSettings, OnBadFile, SampleSettings
from ingestion.spark_job import IngestResult, ingest

SKIP = IngestSettings(on_bad_file=OnBadFile.SKIP, entries_per_task=1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("good", "other"):
        write_delphes(
            folder / f"{name}.root", distinct([event_row(electrons=[lepton(40.0, 0, 0)])] * 12)
        )
    return folder


def found(data: Path, **expected: Any) -> Inventory:
    return inventory(
        [source_of("qcd", 0, str(path)) for path in sorted(data.glob("*.root"))], SKIP, **expected
    )


def read(inventory: Inventory, out: Path) -> IngestResult:
    out.mkdir()
    samples = [SampleSettings(name="qcd", label=0, files=["-"])]
    in_process_spark: Any = InProcessSpark()
    return ingest(
        in_process_spark, inventory.infos, samples, SKIP, out, done=in_process_spark, num_tasks=int
    )


def test_a_file_that_changes_while_it_is_read_is_not_believed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed_behind_us(work: EntryRange, settings: IngestSettings, out_dir: Path) -> EventsPart:
        chunk = ingest_range(work, settings, out_dir)
        os.utime(work.info.path, (1, 1))
        return chunk

    found_before = found(data)
    monkeypatch.setattr(job, "ingest_range", changed_behind_us)
    result = read(found_before, tmp_path / "out")
    # Without a digest and with the old time, the next run sees that it is another.
    assert [info.digest for info in result.infos] == ["", ""]
    assert [info.modified for info in result.infos] == [
        info.modified for info in found_before.infos
    ]


def test_a_file_repaired_without_a_trace_in_size_or_time_is_read_again(data: Path) -> None:
    wrong = found(data)
    bad = job.BadFile(
        "qcd", wrong.infos[0].path, "UnreadableFileError", "no permission", *wrong.infos[0][5:7]
    )
    assert found(data, known={bad.path: bad}).bad == []
    damaged = bad._replace(reason="DamagedFileError", found_while_reading=True)
    assert found(data, known={bad.path: damaged}).bad == [damaged]


def test_a_pattern_on_a_server_is_listed_even_if_it_cannot_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Server:
        def info(self, _: str) -> dict[str, Any]:
            raise OSError("File stat request failed")

        def glob(self, _: str) -> list[str]:
            return ["/a.root", "/b.root"]

        def isdir(self, _: str) -> bool:
            return False

        def unstrip_protocol(self, name: str) -> str:
            return f"root://server/{name}"

    monkeypatch.setattr("hep_core.storage.url_to_fs", lambda _: (Server(), "/*.root"))
    sample = SampleSettings(name="qcd", label=0, files=["root://server//*.root"])
    assert [file.path for file in expand([sample])] == [
        "root://server//a.root",
        "root://server//b.root",
    ]
