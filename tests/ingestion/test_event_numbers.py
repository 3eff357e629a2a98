"""Copies of events whose content was made again are known by run and event numbers, where these are
an identity."""

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
from ingestion.files import inventory
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
    for position, (label, events, numbers) in enumerate(files):
        path = tmp_path / f"{position}.root"
        write_delphes(path, events, more=numbers, baskets=[10] * (len(events) // 10))
        sources.append(source_of(f"s{position}", label, str(path)))
    others = write_delphes(tmp_path / "others.root", rows(99))
    sources.append(source_of("others", 0, str(others)))
    out = tmp_path / "out" / "events"
    out.mkdir(parents=True)
    spark: Any = InProcessSpark()

    infos = inventory(sources, settings).infos
    parts = ingest(spark, infos, [], settings, out, done=spark, num_tasks=int).parts

    return sum(part.counts["rejected_copy"] for part in parts)


def with_other_met(event: Row) -> Row:
    return {**event, "met": event["met"] * 1.01}


def with_other_momenta(event: Row) -> Row:
    """As by other scales of electrons, muons and jets."""
    scaled = {
        name: [{**each, "pt": each["pt"] * 1.02} for each in event[name]]
        for name in ("electrons", "muons", "jets")
    }
    return {**with_other_met(event), **scaled}


def in_reduced_precision(event: Row) -> Row:
    leptons = [
        {**each, "eta": float(np.float16(each["eta"])), "phi": float(np.float16(each["phi"]))}
        for each in event["electrons"]
    ]
    return {**event, "electrons": leptons}


def with_positive_azimuths(event: Row) -> Row:
    leptons = [{**each, "phi": each["phi"] % (2 * np.pi)} for each in event["electrons"]]
    return {**event, "electrons": leptons}


@pytest.mark.parametrize(
    "change", [with_other_met, with_other_momenta, in_reduced_precision, with_positive_azimuths]
)
def test_an_event_that_was_made_again_is_a_copy(
    tmp_path: Path, change: Callable[[Row], Row]
) -> None:
    events = rows(1)
    later = [change(event) for event in events[10:]]
    later_numbers = {name: values[10:] for name, values in RUN_NUMBERS.items()}
    assert (
        num_copies(tmp_path, (0, events, RUN_NUMBERS), (0, later, later_numbers)) == NUM_EVENTS - 10
    )


@pytest.mark.parametrize("name", ["Event.Number", "eventNumber"])
def test_numbers_of_events_alone_show_copies(tmp_path: Path, name: str) -> None:
    numbers = {name: np.arange(NUM_EVENTS)}
    repeated = [with_other_met(event) for event in rows(1)]
    assert num_copies(tmp_path, (0, rows(1), numbers), (0, repeated, numbers)) == NUM_EVENTS


def test_without_numbers_content_tells_events_apart(tmp_path: Path) -> None:
    repeated = [with_other_met(event) for event in rows(1)]
    assert num_copies(tmp_path, (0, rows(1), {}), (0, repeated, {})) == 0


def test_copies_in_another_class_are_refused(tmp_path: Path) -> None:
    repeated = [with_other_met(event) for event in rows(1)]
    with pytest.raises(ConflictingFilesError, match="these are in two classes"):
        num_copies(tmp_path, (0, rows(1), RUN_NUMBERS), (1, repeated, RUN_NUMBERS))


def test_samples_that_count_their_events_alike_hold_no_copies(tmp_path: Path) -> None:
    assert (
        num_copies(
            tmp_path,
            (0, rows(1), RUN_NUMBERS),
            (1, rows(2), RUN_NUMBERS),
            (0, rows(3), RUN_NUMBERS),
        )
        == 0
    )


def test_a_few_equal_directions_of_many_shared_numbers_are_chance(tmp_path: Path) -> None:
    remaining = rows(2)
    remaining[3]["electrons"] = rows(1)[3]["electrons"]
    assert num_copies(tmp_path, (0, rows(1), RUN_NUMBERS), (0, remaining, RUN_NUMBERS)) == 0


def test_equal_numbers_of_all_events_are_no_identity(tmp_path: Path) -> None:
    zeros = {name: np.zeros(NUM_EVENTS, np.int64) for name in RUN_NUMBERS}
    repeated = [with_other_met(event) for event in rows(1)]
    assert num_copies(tmp_path, (0, rows(1), zeros), (0, repeated, zeros)) == 0


@pytest.mark.parametrize("second", ["run", "luminosityBlock", "event"])
def test_each_of_the_numbers_tells_events_apart(tmp_path: Path, second: str) -> None:
    repeated = [with_other_met(event) for event in rows(1)]
    changed = {**RUN_NUMBERS, second: RUN_NUMBERS[second] + np.uint64(1000)}
    assert num_copies(tmp_path, (0, rows(1), RUN_NUMBERS), (0, repeated, changed)) == 0


def test_an_event_that_one_file_holds_twice_is_a_copy(tmp_path: Path) -> None:
    events = rows(1)
    doubled = [*events[:20], *(with_other_met(event) for event in events[:20])]
    numbers = {
        name: np.concatenate([values[:20], values[:20]]) for name, values in RUN_NUMBERS.items()
    }
    assert num_copies(tmp_path, (0, doubled, numbers)) == 20


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
    repeated = [with_other_met(event) for event in rows(1)]
    assert num_copies(tmp_path, (0, rows(1), numbers), (0, repeated, numbers)) == 0
