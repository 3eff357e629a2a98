"""The same event in two files: after hadd and skims the file has another UUID, and copies would
cross splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from delphes_files import source_of, write_delphes
from event_rows import Row, event_row, jet, lepton, tower, track
from spark_in_process import InProcessSpark

from ingestion.errors import ConflictingFilesError
from ingestion.files import inventory
from ingestion.settings import IngestSettings, OnDuplicate, SampleSettings
from ingestion.spark_job import EarlierParts, IngestResult, ingest
from ingestion.tally import sum_counts, sums_by_sample

SAMPLES = [
    SampleSettings(name=name, label=label, files=["-"])
    for name, label in {"a": 0, "b": 0, "other": 1}.items()
]


def event(index: int) -> Row:
    """Every third has no lepton; weights differ."""
    leptons = [lepton(40.0 + index, 0.5, 0.1)] if index % 3 else []
    return event_row(electrons=leptons, tracks=[track(2.0 + index, 0.1, 0.2)], weight=1.0 + index)


def run(
    out: Path, *files: tuple[str, Path], earlier: EarlierParts | None = None, drop: bool = True
) -> IngestResult:
    settings = IngestSettings(
        on_duplicate=OnDuplicate.DROP if drop else OnDuplicate.FAIL, entries_per_task=4
    )
    labels = {sample.name: sample.label for sample in SAMPLES}
    infos = inventory(
        [source_of(sample, labels[sample], str(path)) for sample, path in files], settings
    ).infos
    out.mkdir(parents=True)
    in_process_spark: Any = InProcessSpark()
    samples = [sample for sample in SAMPLES if sample.name in dict(files) or not sample.label]
    return ingest(
        in_process_spark,
        infos,
        samples,
        settings,
        out,
        done=in_process_spark,
        num_tasks=int,
        earlier=earlier,
    )


def written(path: Path, numbers: Sequence[int]) -> Path:
    """A file of several ranges of entries, of four events each."""
    baskets = [len(numbers[first : first + 4]) for first in range(0, len(numbers), 4)]
    return write_delphes(path, [event(index) for index in numbers], baskets=baskets)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return written(tmp_path / "whole.root", range(12))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return written(tmp_path / "other.root", range(50, 60))


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """As hadd does: events of the first two files and of a new one."""
    return written(tmp_path / "merged.root", [*range(50, 60), *range(5, 12), *range(70, 75)])


@pytest.mark.slow
def test_copies_in_another_file_are_an_error_that_names_both(
    whole: Path, other: Path, merged: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConflictingFilesError, match="twice") as raised:
        run(tmp_path / "out", ("a", whole), ("b", other), ("b", merged), drop=False)
    message = str(raised.value)
    assert message.startswith("17 events are there twice: entry 0 of sample 'b': ")
    assert f"{merged} equals entry 0 of sample 'b': {other}" in message
    assert "on_duplicate: drop" in message


@pytest.mark.parametrize("names", [("a", "other"), ("other", "a")])
def test_an_event_in_two_classes_is_refused(
    whole: Path, merged: Path, tmp_path: Path, names: tuple[str, str]
) -> None:
    message = r"equals entry 5 of .*the order of the samples would choose one"
    with pytest.raises(ConflictingFilesError, match=message):
        run(tmp_path / "out", (names[0], whole), (names[1], merged))


def test_dropped_copies_leave_every_event_and_every_weight_once(
    whole: Path, other: Path, merged: Path, tmp_path: Path
) -> None:
    events = tmp_path / "out" / "events"

    parts = run(events, ("a", whole), ("b", other), ("b", merged)).parts

    counts = sums_by_sample(parts)["samples"]["b"]
    assert (counts["entries"], counts["rejected_copy"], counts["events"]) == (32, 17, 7 + 4)
    sums = sum_counts(parts).weights
    different = [*range(12), *range(50, 60), *range(70, 75)]
    expected_weight = sum(1.0 + index for index in different)
    assert sums["entries"][0] - sums["rejected_copy"][0] == expected_weight
    # Parts without events have no file.
    files = sorted(events.iterdir())
    assert [path.name for path in files] == sorted(part.name for part in parts if part.name)
    pts = []
    for path in files:
        pts += lepton_pts(path)
    assert sorted(pts) == [40.0 + index for index in different if index % 3]


def full_event(index: int, *, slim: bool) -> Row:
    """An event with candidates below the thresholds and low jets, which a skim leaves out."""
    event = event_row(
        electrons=[lepton(40.0 + index, 0.5, 0.1)],
        tracks=[track(2.0 + index, 0.1, 0.2)],
        photons=[tower(3.0, 0.1, 0.2)],
        neutral_hadrons=[tower(3.0, 0.1, 0.2)],
        jets=[jet(50.0, 0.1, 0.2)],
    )
    if not slim:
        event["electrons"].append(lepton(12.0, 0.9, 0.1))
        event["tracks"].append(track(0.4, 0.3, 0.2))
        event["photons"].append(tower(0.9, 0.3, 0.2))
        event["neutral_hadrons"].insert(0, tower(1.0, 0.3, 0.2))
        event["jets"].append(jet(15.0, 0.1, 0.2))
    return event


def test_copies_in_a_slimmed_skim_are_found(tmp_path: Path) -> None:
    whole = write_delphes(
        tmp_path / "whole.root", [full_event(index, slim=False) for index in range(6)]
    )
    skim = write_delphes(
        tmp_path / "skim.root", [full_event(index, slim=True) for index in range(2, 8)]
    )
    actual = run(tmp_path / "out" / "events", ("a", whole), ("b", skim))
    assert sum(chunk.counts["rejected_copy"] for chunk in actual.parts) == 4


def test_without_particles_jets_tell_events_apart(tmp_path: Path) -> None:
    """Leptons alone, in the reduced precision of NanoAOD, do not; soft candidates are not there either."""
    rows = [
        event_row(
            electrons=[lepton(40.0, 0.5, 0.1)],
            tracks=[track(0.4, 0.0, 0.0)],
            jets=[jet(50.0 + n, 0.1, 0.2)],
        )
        for n in (0, 1, 2, 0)
    ]
    path = write_delphes(tmp_path / "x.root", rows)
    other = write_delphes(tmp_path / "y.root", [event(31)])
    actual = run(tmp_path / "out" / "events", ("a", path), ("b", other))
    assert sum(chunk.counts["rejected_copy"] for chunk in actual.parts) == 1


def test_an_event_twice_in_one_file_is_a_copy_and_events_without_particles_are_not(
    tmp_path: Path,
) -> None:
    rows = [*(event(index) for index in range(1, 6)), event(1), *[event_row()] * 5]
    path = write_delphes(tmp_path / "x.root", rows)
    other = write_delphes(tmp_path / "y.root", [event(30 + index) for index in range(3)])
    with pytest.raises(
        ConflictingFilesError, match=r"1 event is there twice: entry 5 of .* equals entry 0 of"
    ):
        run(tmp_path / "out", ("a", path), ("b", other), drop=False)


def test_reused_parts_are_compared_too_and_copies_come_back_when_the_original_goes(
    whole: Path, other: Path, merged: Path, tmp_path: Path
) -> None:
    first = run(tmp_path / "1" / "events", ("a", whole), ("b", other))
    second = run(
        tmp_path / "2" / "events",
        ("a", whole),
        ("b", other),
        ("b", merged),
        earlier=parts_of(first, tmp_path / "1"),
    )
    assert second.num_read == 1
    assert sum(chunk.counts["rejected_copy"] for chunk in second.parts) == 17
    third = run(
        tmp_path / "3" / "events",
        ("a", whole),
        ("b", merged),
        earlier=parts_of(second, tmp_path / "2"),
    )
    assert sum(chunk.counts["rejected_copy"] for chunk in third.parts) == 7
    last = run(
        tmp_path / "5" / "events",
        ("a", other),
        ("b", merged),
        earlier=parts_of(third, tmp_path / "3"),
    )
    assert sum(chunk.counts["rejected_copy"] for chunk in last.parts) == 10
    # A reused file whose events are copies now is read again, and counts.
    files = (("a", whole), ("b", merged), ("b", other))
    assert (
        run(tmp_path / "4" / "events", *files, earlier=parts_of(first, tmp_path / "1")).num_read
        == 2
    )


def parts_of(result: IngestResult, folder: Path) -> EarlierParts:
    by_file: dict[str, list[Any]] = {}
    for chunk in result.parts:
        by_file.setdefault(chunk.file_uuid, []).append(chunk)
    return EarlierParts(folder / "events", by_file)


def lepton_pts(path: Path) -> list[float]:
    return [
        each["pt"] for leptons in pq.read_table(path)["electrons"].to_pylist() for each in leptons
    ]
