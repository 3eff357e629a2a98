"""Trainings of `train.workers: auto` on machines that hold other numbers of workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import SAMPLES, in_use, small_config
from power_cuts import FilesWithPowerCut, PowerCutError
from published_by_hand import publish, publish_features
from stages_in_process import run_stages
from training_runs import records, summary

from pipeline.config import load_config

pytestmark = pytest.mark.distributed

FEW_EPOCHS = {"epochs": 3, "batch_size": 8, "reader": "arrow"}
UP_TO_DATE = "train: up to date"


class Nodes:
    """Nodes that see the same config and run folder, whose features are published by hand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._folder = folder
        self.run_dir = folder / "run"
        values = load_config(str(self.write_config())).model_dump(mode="json")
        publish(self.run_dir, "ingest", counters={}, config=values)
        rows = {"train": [40, 40], "val": [16], "test": [16]}
        publish_features(self.run_dir, rows=rows, config=values, max_particles=2)

    def write_config(self, **train: object) -> Path:
        """Write the config, with `workers: auto` unless they are given."""
        return small_config(self._folder, SAMPLES, train={**FEW_EPOCHS, "workers": "auto", **train})

    def train(self, *, workers_held: int, **train: object) -> str:
        """Train on a node that holds a number of workers; returns what is printed."""
        self._monkeypatch.setattr(
            "training.allocation.workers_in_allocation", lambda *_: workers_held
        )
        return run_stages(self.write_config(**train), "train")

    @property
    def training(self) -> Path:
        """The folder of the network in use."""
        return in_use(self.run_dir, "train").folder / "hlf"


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(tmp_path, monkeypatch)


def test_a_finished_training_of_auto_stays_valid_on_a_node_of_another_size(nodes: Nodes) -> None:
    nodes.train(workers_held=1)

    output = nodes.train(workers_held=2)

    assert UP_TO_DATE in output
    # The version states the number that trained it.
    assert summary(nodes.training)["workers"] == 1
    run = json.loads((nodes.training / "run.json").read_text(encoding="utf-8"))
    assert run["train"]["workers"] == 1
    assert in_use(nodes.run_dir, "train").manifest.config["train"]["workers"] == 1


def test_an_interrupted_training_of_auto_continues_on_a_node_of_another_size(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("training.launching.rank.DiskFiles", FilesWithPowerCut)
        with pytest.raises(PowerCutError):
            nodes.train(workers_held=1)

    output = nodes.train(workers_held=2)

    assert "hlf: training continues from the checkpoint of an interrupted run" in output
    workers_of_epochs = [record["workers"] for record in records(nodes.training)[0]]
    assert workers_of_epochs == [1, 2, 2]
    assert summary(nodes.training)["workers"] == 2
    assert UP_TO_DATE in nodes.train(workers_held=1)


def test_an_interrupted_training_whose_workers_own_events_says_that_it_begins_again(
    nodes: Nodes,
) -> None:
    skewed = {"epochs": 1, "skew": {"dirichlet": 1.0}}
    nodes.train(workers_held=2, **skewed)
    # As a kill before the end leaves it: checkpoints, but no manifest.
    (nodes.training.parent / "manifest.json").unlink()
    (nodes.run_dir / "train" / "current.json").unlink()

    output = nodes.train(workers_held=3, **skewed)

    assert "training continues" not in output
    assert (
        "hlf: training begins again: of the interrupted run each worker owns events (train.skew), "
        "and there were 2 workers instead of 3"
    ) in output
    workers_of_epochs = [record["workers"] for record in records(nodes.training)[0]]
    assert workers_of_epochs == [3]


def test_another_number_of_workers_in_the_config_trains_again(nodes: Nodes) -> None:
    nodes.train(workers_held=2, workers=1)

    output = nodes.train(workers_held=2, workers=2)

    assert "config train.workers changed (1 -> 2)" in output
    assert summary(nodes.training)["workers"] == 2
