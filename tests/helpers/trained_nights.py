"""Nights whose trainings are made by hand, for tests of the model registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from command_line import SAMPLES, small_config
from networks import small_network, small_spec
from published_by_hand import TRAINING_SUMMARY, publish, publish_features
from rich.console import Console
from training_runs import make_spec

from features.dataset import FeatureDataset
from features.matrices import hlf_array
from models.saved_model import save_model
from pipeline.commands.promote import promote
from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore


class TrainedNights:
    """A run folder whose stages are published by hand: what is trained is up to the test."""

    def __init__(self, folder: Path) -> None:
        self.run_folder = RunFolder(
            load_config(str(small_config(folder, SAMPLES))), Console(quiet=True)
        )
        self.run_dir = self.run_folder.config.run_dir
        self.made: dict[str, str] = {}
        self.config = self.run_folder.config.model_dump(mode="json")
        self.publish("ingest", {})
        rows = {"train": [40], "val": [8], "test": [300]}
        self.dataset = publish_features(
            self.run_dir, rows=rows, config=self.config, separation=0.2, max_particles=2
        )

    def publish(self, stage: str, counters: dict[str, Any]) -> None:
        self.made[stage] = publish(self.run_dir, stage, counters=counters, config=self.config).name

    def train(self, steps: int, *, seed: int = 1, networks: Sequence[str] = ("hlf",)) -> None:
        """A training of a number of steps of Adam on all training events."""
        store = StageStore(self.run_dir, "train")
        folder = store.next_folder(f"{steps:08d}")
        store.create(folder)
        (folder / "hlf").mkdir()
        make_spec(self.dataset, folder / "hlf").save(folder / "hlf" / "run.json")
        save_model(fitted(self.dataset, steps, seed), small_spec("hlf"), folder / "hlf" / "model")
        counters: dict[str, Any] = {
            "networks": dict.fromkeys(networks, TRAINING_SUMMARY),
            "further": {},
        }
        self.made["train"] = publish(self.run_dir, "train", folder, counters=counters).name

    def promote(self, *, force: bool = False) -> tuple[bool, str]:
        (verdict,) = promote(self.run_folder, force=force)
        return verdict.promoted, verdict.reason

    def promoted(self, *steps: int) -> None:
        """Trainings of these numbers of steps, each offered for promotion."""
        for num_steps in steps:
            self.train(num_steps)
            self.promote()

    def in_use(self) -> str | None:
        """The training that the model in use comes from."""
        current = self.registry.current()
        return None if current is None else current.manifest.train

    @property
    def registry(self) -> Registry:
        return Registry(self.run_dir, "hlf")


def fitted(dataset: FeatureDataset, steps: int, seed: int) -> Any:
    model = small_network("hlf", seed=seed, dtype=torch.float32)
    table = pq.read_table(dataset.files("test")[0])
    # On the test events on purpose: tests of the registry need that more steps are better.
    hlf = torch.tensor(hlf_array(table))
    labels = torch.tensor(table["label"].to_numpy())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(hlf), labels)
        loss.backward()
        optimizer.step()
    return model
