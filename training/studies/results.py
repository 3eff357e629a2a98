"""What a comparison found, as it stands in `comparison.json`: everything that tables, figures and page are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from training.loop.summary import read_records
from training.settings import AlgorithmName, TrainSettings
from training.studies.plan import PlannedRun
from training.studies.runs import read_counts
from training.studies.variants import Variant

VERSION: Final = 1
Floats = NDArray[np.float64]

#: What is kept of every epoch: of the averaged model, and of the time of the ranks.
_OF_RANK_0: Final = ("val_accuracy", "val_loss", "train_loss", "consensus_distance", "seconds")


class Counts(NamedTuple):
    """What the best model of a run does on the test split."""

    num_events: int
    correct: int
    confusion: list[list[int]]
    """Events by true class (row) and predicted class."""
    weighted_accuracy: float
    """By event weights."""
    weighted_error: float
    only_this: int
    """Events that it gets right and the reference of the same seed does not."""
    only_reference: int
    """The other way round."""

    @property
    def accuracy(self) -> float:
        """Share of events that are sorted into their class."""
        return self.correct / self.num_events


class RunResult(NamedTuple):
    """One run."""

    model: str
    variant: str
    seed: int
    made_with: str
    """Version of the code."""
    counts: Counts
    curves: dict[str, list[float]]
    """By epoch; see `_OF_RANK_0`, and `communicate`: seconds, the mean over the ranks."""
    summary: dict[str, Any]
    """Of `summary.json`, with sums over the ranks."""

    @classmethod
    def of(cls, run: PlannedRun) -> Self:
        """The result of a run that is done and counted."""
        ranks = read_records(run.spec.out_dir)
        told = json.loads((run.spec.out_dir / "summary.json").read_text(encoding="utf-8"))
        curves = {name: [float(record[name]) for record in ranks[0]] for name in _OF_RANK_0}
        curves["communicate"] = [
            float(np.mean([communicating(record, run.spec.train) for record in epoch]))
            for epoch in zip(*ranks, strict=True)
        ]
        per_rank = told["per_rank"]
        kept = ("epochs", "steps", "samples", "samples_left_out", "num_parameters", "best_epoch", "seconds")
        summary = {name: told[name] for name in (*kept, "learning_rate_in_effect", "consensus_distance")}
        summary |= {
            name: sum(rank[name] for rank in per_rank) for name in ("bytes_sent", "averages_begun", "averages_skipped")
        }
        summary["worker_val_accuracy"] = [rank["worker_val_accuracy"] for rank in per_rank]
        rounded = {name: [float(f"{value:.6g}") for value in values] for name, values in curves.items()}
        return cls(run.model, run.variant.key, run.seed, run.made_with, Counts(**read_counts(run)), rounded, summary)

    def to_json(self) -> dict[str, Any]:
        """For `comparison.json`."""
        return {**self._asdict(), "counts": self.counts._asdict()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From `comparison.json`."""
        return cls(**{**content, "counts": Counts(**content["counts"])})


class Timing(NamedTuple):
    """Times of a network: measured on this machine, and simulated."""

    cluster: dict[str, Any]
    """The calibrated `training.simulation.cluster.ClusterSettings`, with this machine's own network."""
    measured: list[dict[str, Any]]
    """Of each timing run `method`, `workers`, `batch_size`, `seconds_per_batch`, `samples_per_second`."""
    epochs: dict[str, dict[str, list[float]]]
    """Of each variant `seconds` and `communicate` of every epoch on a simulated cluster, a machine for each worker."""
    scaling: list[dict[str, Any]]
    """Of each `network` lists, an entry a run: `method`, `workers`, `seconds_per_batch`, `samples_per_second`."""


class Comparison(NamedTuple):
    """Everything that was found."""

    name: str
    digest: str
    """Of the plan."""
    made: dict[str, Any]
    """Command, machine, versions."""
    settings: dict[str, Any]
    """The sections `compare`, `train` and `model`."""
    data: dict[str, Any]
    """The features: version, classes, events by class of each split."""
    runs: list[RunResult]
    timing: dict[str, Timing]

    @property
    def models(self) -> list[str]:
        """The networks, in the order of the settings."""
        return list(self.settings["compare"]["models"])

    @property
    def workers(self) -> int:
        """Of every run."""
        return int(self.settings["compare"]["workers"])

    def of(self, model: str, variant: Variant) -> list[RunResult]:
        """The runs of a variant, by seed."""
        found = [run for run in self.runs if (run.model, run.variant) == (model, variant.key)]
        return sorted(found, key=lambda run: run.seed)

    def curves(self, model: str, variant: Variant, name: str) -> Floats:
        """A quantity of each run and epoch, (num_seeds, num_epochs)."""
        return np.array([run.curves[name] for run in self.of(model, variant)])

    def variants(self, model: str) -> list[Variant]:
        """Those that a network was trained with, in the order of the plan."""
        return [Variant.of(key) for key in dict.fromkeys(run.variant for run in self.runs if run.model == model)]

    def to_json(self) -> dict[str, Any]:
        """For `comparison.json`."""
        return {
            "version": VERSION,
            **self._asdict(),
            "runs": [run.to_json() for run in self.runs],
            "timing": {name: timing._asdict() for name, timing in self.timing.items()},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """From `comparison.json`."""
        fields = {name: content[name] for name in cls._fields}
        fields["runs"] = [RunResult.from_json(run) for run in content["runs"]]
        fields["timing"] = {name: Timing(**timing) for name, timing in content["timing"].items()}
        return cls(**fields)


def load(path: Path, digest: str) -> Comparison | None:
    """What was found before, if it is of the same plan."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["version"], content["digest"]) != (VERSION, digest):
            return None
        return Comparison.from_json(content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def collect(runs: Sequence[PlannedRun]) -> list[RunResult]:
    """The results of runs that are done and counted."""
    return [RunResult.of(run) for run in runs]


def communicating(record: Mapping[str, Any], settings: TrainSettings) -> float:
    """Seconds of an epoch; averages that a thread makes beside the computation count too, as in the thesis."""
    seconds = float(record["seconds_by_kind"].get("communicate", 0.0))
    beside = settings.algorithm is AlgorithmName.AD_PSGD and settings.overlap == "thread"
    return seconds + float(record["exchange_seconds"]) if beside else seconds
