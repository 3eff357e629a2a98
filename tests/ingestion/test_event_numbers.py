"""Copies of events that were reconstructed again are known by their run and event numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delphes_files import source_of, write_delphes
from event_rows import Row, distinct, event_row, jet, lepton
from spark_in_process import InProcessSpark

from ingestion.errors import ConflictingFilesError
from ingestion.event_numbers import number_sources
from ingestion.files import SourceFile, inventory
from ingestion.layout import BranchNames
from ingestion.root_format import open_root
from ingestion.same_events import STORED, same_events
from ingestion.settings import IngestSettings, OnDuplicate
from ingestion.spark_job import ingest

NUM_EVENTS = 40
RUN_NUMBERS: dict[str, Any] = {
    "run": np.full(NUM_EVENTS, 355_000, np.uint32),
    "luminosityBlock": np.arange(NUM_EVENTS, dtype=np.uint32) // 10,
    "event": np.arange(NUM_EVENTS, dtype=np.uint64) + 2**63,
}


def rows(seed: int) -> list[Row]:
    """Events whose leptons have random directions."""
    angles = np.random.default_rng(seed).uniform([-2.4, -3.1], [2.4, 3.1], (NUM_EVENTS, 2))
    events = []
    for index, (eta, phi) in enumerate(angles):
        electrons = [lepton(40.0, eta, phi), lepton(25.0, 0.1, 0.2)]
        events.append(event_row(electrons=electrons, jets=[jet(50.0, 0.3, 0.4)], met=30.0 + index))
    return distinct(events)


def num_copies(tmp_path: Path, *files: tuple[int, list[Row], dict[str, Any]]) -> int:
    """Number of copies among files; a file has its class, events and numbers."""
    settings = IngestSettings(on_duplicate=OnDuplicate.DROP, entries_per_task=10)
    sources = []
    for index, (label, events, numbers) in enumerate(files):
        path = tmp_path / f"{index}.root"
        write_delphes(path, events, more=numbers, baskets=[10] * (len(events) // 10))
        sources.append(source_of(f"s{index}", label, str(path)))
    unrelated = write_delphes(tmp_path / "unrelated.root", rows(99))
    sources.append(source_of("unrelated", 0, str(unrelated)))
    out = tmp_path / "out" / "events"
    out.mkdir(parents=True)
    spark: Any = InProcessSpark()

    infos = inventory(sources, settings).infos
    result = ingest(spark, infos, [], settings, out, done=spark, num_tasks=int)

    return sum(events_part.counts["rejected_copy"] for events_part in result.parts)


def with_other_met(event: Row) -> Row:
    return {**event, "met": event["met"] * 1.01}


def with_other_momenta(event: Row) -> Row:
    """The event with other scales of electrons, muons and jets."""
    scaled = with_other_met(event)
    for name in ("electrons", "muons", "jets"):
        scaled[name] = [row | {"pt": row["pt"] * 1.02} for row in event[name]]
    return scaled


def in_reduced_precision(event: Row) -> Row:
    electrons = []
    for row in event["electrons"]:
        reduced = {name: float(np.float16(row[name])) for name in ("eta", "phi")}
        electrons.append(row | reduced)
    return event | {"electrons": electrons}


def with_positive_azimuths(event: Row) -> Row:
    electrons = [row | {"phi": row["phi"] % (2 * np.pi)} for row in event["electrons"]]
    return event | {"electrons": electrons}


@pytest.mark.parametrize(
    "change", [with_other_met, with_other_momenta, in_reduced_precision, with_positive_azimuths]
)
def test_an_event_that_was_made_again_is_a_copy(
    tmp_path: Path, change: Callable[[Row], Row]
) -> None:
    events = rows(1)
    repeated = [change(event) for event in events[10:]]
    repeated_numbers = {name: values[10:] for name, values in RUN_NUMBERS.items()}

    copies = num_copies(tmp_path, (0, events, RUN_NUMBERS), (0, repeated, repeated_numbers))

    assert copies == NUM_EVENTS - 10


def copies_of_repeated_events(
    tmp_path: Path, numbers: dict[str, Any], repeated_numbers: dict[str, Any] | None = None
) -> int:
    """Number of copies in a file whose events are those of another with a changed MET."""
    repeated = [with_other_met(event) for event in rows(1)]
    if repeated_numbers is None:
        repeated_numbers = numbers
    return num_copies(tmp_path, (0, rows(1), numbers), (0, repeated, repeated_numbers))


@pytest.mark.parametrize("name", ["Event.Number", "eventNumber"])
def test_numbers_of_events_alone_show_copies(tmp_path: Path, name: str) -> None:
    assert copies_of_repeated_events(tmp_path, {name: np.arange(NUM_EVENTS)}) == NUM_EVENTS


def test_without_numbers_content_tells_events_apart(tmp_path: Path) -> None:
    assert copies_of_repeated_events(tmp_path, {}) == 0


def test_copies_in_another_class_are_refused(tmp_path: Path) -> None:
    repeated = [with_other_met(event) for event in rows(1)]

    with pytest.raises(ConflictingFilesError, match="these are in two classes"):
        num_copies(tmp_path, (0, rows(1), RUN_NUMBERS), (1, repeated, RUN_NUMBERS))


def test_samples_that_count_their_events_alike_hold_no_copies(tmp_path: Path) -> None:
    files = [(label, rows(seed), RUN_NUMBERS) for label, seed in [(0, 1), (1, 2), (0, 3)]]

    assert num_copies(tmp_path, *files) == 0


def test_a_few_equal_directions_of_many_shared_numbers_are_chance(tmp_path: Path) -> None:
    first, second = rows(1), rows(2)
    second[3]["electrons"] = first[3]["electrons"]

    assert num_copies(tmp_path, (0, first, RUN_NUMBERS), (0, second, RUN_NUMBERS)) == 0


def test_equal_numbers_of_all_events_are_no_identity(tmp_path: Path) -> None:
    zeros = np.zeros(NUM_EVENTS, np.int64)

    assert copies_of_repeated_events(tmp_path, dict.fromkeys(RUN_NUMBERS, zeros)) == 0


@pytest.mark.parametrize("name", ["run", "luminosityBlock", "event"])
def test_each_of_the_numbers_tells_events_apart(tmp_path: Path, name: str) -> None:
    changed = {**RUN_NUMBERS, name: RUN_NUMBERS[name] + np.uint64(1000)}

    assert copies_of_repeated_events(tmp_path, RUN_NUMBERS, changed) == 0


def test_an_event_that_one_file_holds_twice_is_a_copy(tmp_path: Path) -> None:
    events = rows(1)[:20]
    repeated = [with_other_met(event) for event in events]
    numbers = {name: np.tile(values[:20], 2) for name, values in RUN_NUMBERS.items()}

    assert num_copies(tmp_path, (0, events + repeated, numbers)) == 20


def test_equal_directions_in_a_file_of_two_series_of_numbers_are_chance(tmp_path: Path) -> None:
    events = rows(1)[:20] + rows(2)[:20]
    events[23]["electrons"] = events[3]["electrons"]
    numbers = {"Event.Number": np.tile(np.arange(20), 2)}

    assert num_copies(tmp_path, (0, events, numbers)) == 0


def test_events_of_other_directions_are_copies_if_most_events_of_the_file_are() -> None:
    events = np.zeros(20, STORED)
    events["numbers"] = np.tile(np.arange(1, 11), 2)
    events["eta"] = np.tile(np.arange(10), 2)
    events["eta"][15:] += np.array([0, 0, 0, 0.5, np.nan])

    pairs = same_events(np.repeat([0, 1], 10), events)

    order = np.argsort(pairs.first)
    assert pairs.first[order].tolist() == list(range(10))
    assert pairs.second[order].tolist() == list(range(10, 20))


@pytest.mark.parametrize(
    "numbers",
    [
        {"event": np.linspace(0, 1, NUM_EVENTS)},
        {"event": np.zeros((NUM_EVENTS, 3), np.int64)},
        {"run": np.full(NUM_EVENTS, 1)},
    ],
)
def test_other_branches_of_these_names_are_left_alone(
    tmp_path: Path, numbers: dict[str, Any]
) -> None:
    assert copies_of_repeated_events(tmp_path, numbers) == 0


def test_the_numbers_of_a_delphes_file_are_those_of_its_events(ttbar_source: SourceFile) -> None:
    with open_root(ttbar_source.path) as file:
        sources = number_sources(BranchNames(file["Delphes"], ttbar_source.path))
        (branch,) = sources.values()

        assert branch.path == "Event/Event.Number"
        assert branch.read(0, 3).tolist() == [[0], [1], [2]]
