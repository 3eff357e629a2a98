"""An own feature, network, method, topology and figure; `analysis.yaml` uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import awkward as ak
import numpy as np
from pydantic import Field, PositiveInt

from features.functions import high_level_feature
from features.high_level import SelectedEvents
from models.evaluation.own_figures import figure
from models.evaluation.scored_events import ScoredEvents
from models.networks.network_settings import NetworkSettings, network
from training.algorithms.base import ComputeGradient
from training.algorithms.gossip import GossipAlgorithm, GossipSettings
from training.algorithms.method import Traits, algorithm
from training.topology import topology


@high_level_feature(
    unit="1",
    meaning="MET significance: MET / sqrt(HT + 1 GeV)",
    bins=(30, 0, 30),
    log_above=5,
    label=r"$E_T^{miss} / \sqrt{H_T}$",
)
def met_significance(events: SelectedEvents) -> Any:
    """From flat arrays, one number per event; sums over jets go by `sum_over_jets`."""
    return events.met / np.sqrt(events.sum_over_jets(events.jets.pt) + 1)


@high_level_feature(
    unit="1", meaning="centrality of the tracks: sum of pT / sum of p", bins=(20, 0, 1)
)
def track_centrality(events: SelectedEvents) -> Any:
    """From awkward records, as they are in the events Parquet."""
    tracks = events.records().tracks
    return ak.sum(tracks.pt, axis=1) / (ak.sum(tracks.pt * np.cosh(tracks.eta), axis=1) + 1e-3)


@high_level_feature(unit="1", meaning="primary vertices", bins=(20, 0, 100), needs=["Vertex_size"])
def num_vertices(events: SelectedEvents) -> Any:
    """From a branch that the config names in `ingest.pass_through`."""
    return events.records()["Vertex_size"]


@network("residual")
class ResidualSettings(NetworkSettings):
    """A perceptron on the high-level features with a skip connection around each layer."""

    inputs: ClassVar[tuple[str, ...]] = ("hlf",)

    width: PositiveInt = 32
    """Width of all layers."""
    depth: PositiveInt = 2
    """Number of layers with a skip connection."""

    def build(self, scalers: Mapping[str, Any], num_classes: int) -> Any:
        """The network; torch is imported only where one is built."""
        from torch import Tensor, nn

        from models.networks.classifier import Classifier
        from models.networks.scaling_layer import Standardize

        class Residual(Classifier):
            def __init__(self, settings: ResidualSettings) -> None:
                super().__init__(settings, scalers, num_classes)
                scaler = scalers["hlf"]
                self.first = nn.Sequential(
                    Standardize(scaler), nn.Linear(len(scaler.mean), settings.width)
                )
                self.layers = nn.ModuleList(
                    nn.Linear(settings.width, settings.width) for _ in range(settings.depth)
                )
                self.last = nn.Linear(settings.width, num_classes)

            def forward(self, hlf: Tensor) -> Tensor:
                state = self.first(hlf)
                for layer in self.layers:
                    state = state + layer(state.relu())
                logits: Tensor = self.last(state.relu())
                return logits

        return Residual(self)


class LazyGossipSettings(GossipSettings):
    """Settings of `LazyGossip`."""

    name: Literal["lazy-gossip"]
    patience: int = Field(default=2, ge=1)
    """Steps of a worker from one average to its next."""


@algorithm(
    "lazy-gossip",
    LazyGossipSettings,
    Traits(title="Lazy gossip", synchronous=False, equal_steps=False, pairs=True),
)
class LazyGossip(GossipAlgorithm):
    """AD-PSGD that averages with a random neighbour in some of its steps only."""

    def __init__(self, settings: LazyGossipSettings, worker: Any) -> None:
        super().__init__(settings, worker)
        self._patience, self._steps = settings.patience, 0

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Read the shared vector, perhaps begin an average, and add the change of an own step."""
        version = await self.read()
        partner = self.partners.next()
        self._steps += 1
        if partner is not None and self._steps % self._patience == 0:
            await self.shared.begin_average_with(partner)
        await self.own_step(compute_gradient, num_samples, version=version)


@topology("star")
def star(rank: int, world_size: int) -> Iterable[int]:
    """Rank 0 is the neighbour of all others."""
    return range(world_size) if rank == 0 else [0]


@figure("Events by the probability of their true class.")
def certainty(events: ScoredEvents, classes: list[str]) -> Any:
    """A histogram for each class."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6, 4))
    axes = drawn.subplots()
    for number, name in enumerate(classes):
        chosen = events.labels == number
        axes.hist(
            events.probabilities[chosen, number], bins=20, range=(0, 1), histtype="step", label=name
        )
    axes.set_xlabel("probability of the true class")
    axes.set_ylabel("events")
    axes.legend(frameon=False)
    return drawn
