"""The same event in two files.

After hadd and skims the file has another UUID, and copies would cross splits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import awkward as ak
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
    """An event; every third has no lepton, and weights differ."""
    leptons = [lepton(40.0 + index, 0.5, 0.1)] if index % 3 else []
    return event_row(electrons=leptons, tracks=[track(2.0 + index, 0.1, 0.2)], weight=1.0 + index)


def run(
    out: Path, *files: tuple[str, Path], earlier: EarlierParts | None = None, drop: bool = True
) -> IngestResult:
    """Ingest files of samples into a folder."""
    on_duplicate = OnDuplicate.DROP if drop else OnDuplicate.FAIL
    settings = IngestSettings(on_duplicate=on_duplicate, entries_per_task=4)
    labels = {sample.name: sample.label for sample in SAMPLES}
    sources = [source_of(sample, labels[sample], str(path)) for sample, path in files]
    samples = [sample for sample in SAMPLES if sample.name in dict(files) or not sample.label]
    out.mkdir(parents=True)
    spark: Any = InProcessSpark()
    return ingest(
        spark,
        inventory(sources, settings).infos,
        samples,
        settings,
        out,
        done=spark,
        num_tasks=int,
        earlier=earlier,
    )


def count_copies(result: IngestResult) -> int:
    return sum(events_part.counts["rejected_copy"] for events_part in result.parts)


def write_events(path: Path, indices: Sequence[int]) -> Path:
    """Write a file of several ranges of entries, of up to four events; returns its path."""
    baskets = [len(indices[start : start + 4]) for start in range(0, len(indices), 4)]
    return write_delphes(path, [event(index) for index in indices], baskets=baskets)


@pytest.fixture
def first_file(tmp_path: Path) -> Path:
    return write_events(tmp_path / "first.root", range(12))


@pytest.fixture
def second_file(tmp_path: Path) -> Path:
    return write_events(tmp_path / "second.root", range(50, 60))


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """Events of the first two files and of a new one, as hadd merges them."""
    indices = [*range(50, 60), *range(5, 12), *range(70, 75)]
    return write_events(tmp_path / "merged.root", indices)


@pytest.mark.slow
def test_copies_in_another_file_are_an_error_that_names_both(
    first_file: Path, second_file: Path, merged: Path, tmp_path: Path
) -> None:
    files = [("a", first_file), ("b", second_file), ("b", merged)]

    with pytest.raises(ConflictingFilesError, match="twice") as caught:
        run(tmp_path / "out", *files, drop=False)

    message = str(caught.value)
    assert message.startswith("17 events are there twice: entry 0 of sample 'b': ")
    assert f"{merged} equals entry 0 of sample 'b': {second_file}" in message
    assert "on_duplicate: drop" in message


@pytest.mark.parametrize(("first", "second"), [("a", "other"), ("other", "a")])
def test_an_event_in_two_classes_is_refused(
    first_file: Path, merged: Path, tmp_path: Path, first: str, second: str
) -> None:
    message = r"equals entry 5 of .*the order of the samples would choose one"

    with pytest.raises(ConflictingFilesError, match=message):
        run(tmp_path / "out", (first, first_file), (second, merged))


def test_dropped_copies_leave_every_event_and_every_weight_once(
    first_file: Path, second_file: Path, merged: Path, tmp_path: Path
) -> None:
    events = tmp_path / "out" / "events"
    distinct_indices = [*range(12), *range(50, 60), *range(70, 75)]

    result = run(events, ("a", first_file), ("b", second_file), ("b", merged))

    counts = sums_by_sample(result.parts)["samples"]["b"]
    assert (counts["entries"], counts["rejected_copy"], counts["events"]) == (32, 17, 7 + 4)
    weights = sum_counts(result.parts).weights
    remaining_weight = weights["entries"][0] - weights["rejected_copy"][0]
    assert remaining_weight == sum(1.0 + index for index in distinct_indices)
    # Parts without events have no file.
    files = sorted(events.iterdir())
    part_names = {events_part.name for events_part in result.parts}
    assert {path.name for path in files} == part_names - {""}
    electrons = ak.from_parquet(events)["electrons"]
    expected_pts = [40.0 + index for index in distinct_indices if index % 3]
    assert sorted(ak.flatten(electrons["pt"]).tolist()) == expected_pts


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
    full_events = [full_event(index, slim=False) for index in range(6)]
    slim_events = [full_event(index, slim=True) for index in range(2, 8)]
    full = write_delphes(tmp_path / "full.root", full_events)
    skim = write_delphes(tmp_path / "skim.root", slim_events)

    result = run(tmp_path / "out" / "events", ("a", full), ("b", skim))

    assert count_copies(result) == 4


def test_without_particles_jets_tell_events_apart(tmp_path: Path) -> None:
    """Leptons alone, in the reduced precision of NanoAOD, do not."""
    electron, soft_track = lepton(40.0, 0.5, 0.1), track(0.4, 0.0, 0.0)
    rows = []
    for jet_pt in (50.0, 51.0, 52.0, 50.0):
        leading_jet = jet(jet_pt, 0.1, 0.2)
        rows.append(event_row(electrons=[electron], tracks=[soft_track], jets=[leading_jet]))
    path = write_delphes(tmp_path / "x.root", rows)
    second_path = write_delphes(tmp_path / "y.root", [event(31)])

    result = run(tmp_path / "out" / "events", ("a", path), ("b", second_path))

    assert count_copies(result) == 1


def test_an_event_twice_in_one_file_is_a_copy_and_events_without_particles_are_not(
    tmp_path: Path,
) -> None:
    without_particles = [event_row()] * 5
    rows = [event(index) for index in (1, 2, 3, 4, 5, 1)] + without_particles
    path = write_delphes(tmp_path / "x.root", rows)
    second_path = write_events(tmp_path / "y.root", range(30, 33))

    with pytest.raises(
        ConflictingFilesError, match=r"1 event is there twice: entry 5 of .* equals entry 0 of"
    ):
        run(tmp_path / "out", ("a", path), ("b", second_path), drop=False)


def parts_of(result: IngestResult, folder: Path) -> EarlierParts:
    parts_by_file = defaultdict(list)
    for events_part in result.parts:
        parts_by_file[events_part.file_uuid].append(events_part)
    return EarlierParts(folder, parts_by_file)


def test_reused_parts_are_compared_too_and_copies_come_back_when_the_original_goes(
    first_file: Path, second_file: Path, merged: Path, tmp_path: Path
) -> None:
    first = run(tmp_path / "1" / "events", ("a", first_file), ("b", second_file))
    parts_of_first = parts_of(first, tmp_path / "1" / "events")

    files = [("a", first_file), ("b", second_file), ("b", merged)]
    second = run(tmp_path / "2" / "events", *files, earlier=parts_of_first)
    assert second.num_read == 1
    assert count_copies(second) == 17

    parts_of_second = parts_of(second, tmp_path / "2" / "events")
    third = run(
        tmp_path / "3" / "events", ("a", first_file), ("b", merged), earlier=parts_of_second
    )
    assert count_copies(third) == 7

    parts_of_third = parts_of(third, tmp_path / "3" / "events")
    fourth = run(
        tmp_path / "4" / "events", ("a", second_file), ("b", merged), earlier=parts_of_third
    )
    assert count_copies(fourth) == 10


def test_a_reused_file_whose_events_are_copies_now_is_read_again(
    first_file: Path, second_file: Path, merged: Path, tmp_path: Path
) -> None:
    first = run(tmp_path / "1" / "events", ("a", first_file), ("b", second_file))

    files = [("a", first_file), ("b", merged), ("b", second_file)]
    second = run(
        tmp_path / "2" / "events", *files, earlier=parts_of(first, tmp_path / "1" / "events")
    )

    assert second.num_read == 2
