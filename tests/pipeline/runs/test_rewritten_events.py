"""Events of a training in files that were written again are known by their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analyses import NAMES, Analysis
from delphes_files import write_delphes
from event_rows import Row, event_row, lepton
from prediction_trees import uuid_of
from stages_in_process import without_spark

from features.dataset import FeatureDataset
from features.schema import identities
from pipeline.commands.new_events import new_events
from pipeline.runs.seen_events import count_seen

NUM_EVENTS = 40
#: The samples count their events alike, as simulations do.
NUMBERS: dict[str, Any] = {
    "runNumber": np.full(NUM_EVENTS, 1, np.uint32),
    "eventNumber": np.arange(1, NUM_EVENTS + 1, dtype=np.uint64),
}


def rows(seed: int) -> list[Row]:
    """Events with an electron of random direction."""
    directions = np.random.default_rng(seed).uniform([-2.4, -3.1], [2.4, 3.1], (NUM_EVENTS, 2))
    events = []
    for index, (eta, phi) in enumerate(directions):
        events.append(event_row(electrons=[lepton(40.0, eta, phi)], met=30.0 + index + 100 * seed))
    return events


def written_again(events: list[Row]) -> list[Row]:
    """The events with a missing energy of another calibration, so that their content differs."""
    return [event | {"met": 1.01 * event["met"]} for event in events]


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """A run over three files of numbered events."""
    analysis = Analysis(tmp_path_factory.mktemp("run"))
    analysis.data.mkdir()
    for seed, name in enumerate(NAMES):
        write_delphes(analysis.data / f"{name}.root", rows(seed), more=NUMBERS)
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch, tmp_path_factory.mktemp("scratch"))
        analysis.run()
    return analysis


def count_seen_in_new_file(
    analysis: Analysis, folder: Path, events: list[Row], numbers: dict[str, Any]
) -> tuple[int | None, int]:
    """How many events of a new file of `ttbar` the training has seen, and how many it has."""
    path = write_delphes(folder / "new.root", events, more=numbers)
    dataset = FeatureDataset.load(analysis.folder_of("features"))
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch, folder)
        run_folder = analysis.runner().run_folder
        evaluated = new_events(run_folder, [f"ttbar={path}"], folder)
    seen_identities = identities([*dataset.files("train"), *dataset.files("val")])
    (ttbar_file,) = analysis.data.glob("ttbar.root")
    uuid = uuid_of(ttbar_file)
    num_trained = sum(identity.startswith(uuid) for identity in seen_identities.to_pylist())
    return count_seen(dataset, identities(evaluated.files), evaluated.keys), num_trained


def test_training_events_with_changed_content_are_known_by_their_numbers(
    analysis: Analysis, tmp_path: Path
) -> None:
    events = written_again(rows(1))

    num_seen, num_trained = count_seen_in_new_file(analysis, tmp_path, events, NUMBERS)

    assert num_seen == num_trained > 10


def test_new_events_of_the_same_numbers_are_not_those_of_the_training(
    analysis: Analysis, tmp_path: Path
) -> None:
    num_seen, _ = count_seen_in_new_file(analysis, tmp_path, rows(7), NUMBERS)

    assert num_seen == 0


def test_changed_events_without_numbers_are_not_known(analysis: Analysis, tmp_path: Path) -> None:
    num_seen, _ = count_seen_in_new_file(analysis, tmp_path, written_again(rows(1)), {})

    assert num_seen == 0
