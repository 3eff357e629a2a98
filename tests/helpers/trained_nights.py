"""Nights whose trainings are made by hand, for tests of the model registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import torch
from command_line import SAMPLES, small_config
from networks import small_network, small_spec
from published_by_hand import TRAINING_SUMMARY, publish, publish_features
from rich.console import Console
from torch import nn
from training_runs import make_spec

from features.dataset import FeatureDataset
from features.matrices import hlf_array
from models.saved_model import save_model
from pipeline.commands.promote import promote
from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore
from pipeline.runs.version import PromotedModel


class TrainedNights:
    """A run folder whose stages are published by hand; a test says how long a network trains."""

    def __init__(self, folder: Path) -> None:
        config = load_config(str(small_config(folder, SAMPLES)))
        self.run_folder = RunFolder(config, Console(quiet=True))
        self.run_dir = config.run_dir
        self.training = ""
        """The name of the newest version of `train`."""
        self.config = config.model_dump(mode="json")
        publish(self.run_dir, "ingest", counters={}, config=self.config)
        self.dataset = self.make_features()

    def make_features(self) -> FeatureDataset:
        """Publish the same features once more; later trainings read them."""
        rows = {"train": [40], "val": [8], "test": [300]}
        self.dataset = publish_features(
            self.run_dir, rows=rows, config=self.config, separation=0.2, max_particles=2
        )
        return self.dataset

    def train(
        self,
        steps: int,
        *,
        seed: int = 1,
        networks: Sequence[str] = ("hlf",),
        plugin_code: dict[str, str] | None = None,
    ) -> None:
        """Publish a training of a number of steps of Adam on all test events."""
        store = StageStore(self.run_dir, "train")
        folder = store.next_folder(f"{steps:08d}")
        store.create(folder)
        (folder / "hlf").mkdir()
        make_spec(self.dataset, folder / "hlf").save(folder / "hlf" / "run.json")
        network = fitted_network(self.dataset, steps, seed)
        spec = small_spec("hlf")._replace(plugin_code=plugin_code or {})
        save_model(network, spec, folder / "hlf" / "model")
        summaries = dict.fromkeys(networks, TRAINING_SUMMARY)
        counters = {"networks": summaries, "further": {}}
        self.training = publish(self.run_dir, "train", folder, counters=counters).name

    def promote(self, *, force: bool = False) -> tuple[bool, str]:
        """Offer the newest training; returns whether it is promoted, and the reason."""
        (outcome,) = promote(self.run_folder, force=force)
        return outcome.promoted, outcome.reason

    def train_and_promote(self, *steps: int) -> None:
        """Make trainings of these numbers of steps, and offer each for promotion."""
        for num_steps in steps:
            self.train(num_steps)
            self.promote()

    def training_in_use(self) -> str | None:
        """The training that the model in use comes from."""
        current = self.registry.current()
        return None if current is None else current.manifest.train

    def model_in_use(self) -> PromotedModel:
        current = self.registry.current()
        assert current is not None
        return current

    @property
    def registry(self) -> Registry:
        return Registry(self.run_dir, "hlf")


def fitted_network(dataset: FeatureDataset, steps: int, seed: int) -> nn.Module:
    """A network that has seen the test events, so that more steps make it better on them."""
    network = small_network("hlf", seed=seed, dtype=torch.float32)
    table = pq.read_table(dataset.files("test")[0])
    hlf = torch.tensor(hlf_array(table))
    labels = torch.tensor(table["label"].to_numpy())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(hlf), labels)
        loss.backward()
        optimizer.step()
    return network
