"""Results of a comparison, as stored in `comparison.json`: the input of tables, figures and page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from training.loop.records import read_records
from training.settings import TrainSettings
from training.studies.plan import PlannedRun
from training.studies.runs import Counts, read_counts
from training.studies.variants import Variant

VERSION: Final = 3
Floats = NDArray[np.float64]

#: Records kept of every epoch: of the averaged model, and of the time of the ranks.
_OF_RANK_0: Final = ("val_accuracy", "val_loss", "train_loss", "consensus_distance", "seconds")


class RunResult(NamedTuple):
    """Results of one run."""

    model: str
    variant: str
    seed: int
    learning_rate: float
    """Learning rate of one worker."""
    made_with: str
    """Version of the code of the run."""
    counts: Counts
    curves: dict[str, list[float]]
    """Quantities by epoch: those of `_OF_RANK_0`, and `communicate`, the mean over the ranks [s]."""
    summary: dict[str, Any]
    """Part of `summary.json`, with sums over the ranks."""

    @classmethod
    def of(cls, run: PlannedRun) -> Self:
        """The result of a finished and counted run."""
        ranks = read_records(run.spec.out_dir)
        whole = json.loads((run.spec.out_dir / "summary.json").read_text(encoding="utf-8"))
        curves = {name: [float(record[name]) for record in ranks[0]] for name in _OF_RANK_0}
        curves["communicate"] = [
            float(np.mean([communicating(record, run.spec.train) for record in epoch]))
            for epoch in zip(*ranks, strict=True)
        ]
        per_rank = whole["per_rank"]
        kept = ("epochs", "steps", "samples", "samples_left_out", "num_parameters", "best_epoch", "seconds")
        summary = {name: whole[name] for name in (*kept, "learning_rate_in_effect", "consensus_distance")}
        counted = ("bytes_sent", *per_rank[0]["counted"])
        summary |= {name: sum(rank[name] for rank in per_rank) for name in counted}
        summary["worker_val_accuracy"] = [rank["worker_val_accuracy"] for rank in per_rank]
        rounded = {name: [float(f"{value:.6g}") for value in values] for name, values in curves.items()}
        return cls(
            run.model,
            run.variant.key,
            run.seed,
            run.spec.train.learning_rate,
            run.made_with,
            read_counts(run),
            rounded,
            summary,
        )

    def to_json(self) -> dict[str, Any]:
        """For `comparison.json`."""
        return {**self._asdict(), "counts": self.counts._asdict()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From `comparison.json`."""
        return cls(**{**content, "counts": Counts(**content["counts"])})


class Timing(NamedTuple):
    """Times of a network, measured on this machine and simulated."""

    cluster: dict[str, Any]
    """The calibrated `training.simulation.cluster.ClusterSettings`, with this machine's own network."""
    measured: list[dict[str, Any]]
    """`method`, `workers`, `batch_size`, `seconds_per_batch` and `samples_per_second` of each timing run."""
    epochs: dict[str, dict[str, list[float]]]
    """`seconds` and `communicate` of every epoch by variant, on a simulated cluster with one machine per worker."""
    scaling: list[dict[str, Any]]
    """Lists `method`, `workers`, `seconds_per_batch`, `samples_per_second` by `network`, with one entry per run."""
    checks: list[dict[str, Any]]
    """`method`, `workers`, and the `measured` and `predicted` time per batch of runs not used to calibrate [s]."""
    convergence: dict[str, list[dict[str, list[float]]]]
    """By variant and seed: `seconds` and `val_accuracy` of every epoch, of simulated runs with one machine a worker."""

    @property
    def miss(self) -> float:
        """Largest relative error of a predicted time per batch; infinite if none was checked."""
        return max((abs(each["predicted"] / each["measured"] - 1) for each in self.checks), default=np.inf)


class Comparison(NamedTuple):
    """All results of a comparison."""

    name: str
    digest: str
    """Digest of the plan."""
    made: dict[str, Any]
    """Command, machine and versions of the comparison."""
    settings: dict[str, Any]
    """The sections `compare`, `train` and `model`."""
    data: dict[str, Any]
    """Description of the features: version, classes, number of events by class and split."""
    runs: list[RunResult]
    timing: dict[str, Timing]

    @property
    def models(self) -> list[str]:
        """The networks, in the order of the settings."""
        return list(self.settings["compare"]["models"])

    @property
    def workers(self) -> int:
        """Number of workers of every run."""
        return int(self.settings["compare"]["workers"])

    def of(self, model: str, variant: Variant) -> list[RunResult]:
        """The runs of a variant with its best learning rate, that of the lowest validation loss, by seed."""
        by_rate = self.by_rate(model, variant)
        return min(by_rate.values(), key=lowest_loss, default=[])

    def by_rate(self, model: str, variant: Variant) -> dict[float, list[RunResult]]:
        """The runs of a variant with each learning rate, by seed; the rates ascend."""
        found = [run for run in self.runs if (run.model, run.variant) == (model, variant.key)]
        by_rate: dict[float, list[RunResult]] = {}
        for run in sorted(found, key=lambda run: (run.learning_rate, run.seed)):
            by_rate.setdefault(run.learning_rate, []).append(run)
        return by_rate

    def curves(self, model: str, variant: Variant, name: str) -> Floats:
        """A quantity of each run and epoch, (num_seeds, num_epochs)."""
        return np.array([run.curves[name] for run in self.of(model, variant)])

    def variants(self, model: str) -> list[Variant]:
        """The variants of a network's runs, in the order of the plan."""
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


def lowest_loss(runs: Sequence[RunResult]) -> float:
    """Lowest validation loss of each run, averaged; one that is not finite counts as infinite."""
    losses = np.array([run.curves["val_loss"] for run in runs])
    return float(np.where(np.isfinite(losses), losses, np.inf).min(axis=1).mean())


def load(path: Path, digest: str) -> Comparison | None:
    """Earlier results, if they belong to the same plan, else None."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["version"], content["digest"]) != (VERSION, digest):
            return None
        return Comparison.from_json(content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def collect(runs: Sequence[PlannedRun]) -> list[RunResult]:
    """The results of finished and counted runs."""
    return [RunResult.of(run) for run in runs]


def communicating(record: Mapping[str, Any], settings: TrainSettings) -> float:
    """Communication time of an epoch, waiting included [s]; averages in a thread count too, as in the thesis."""
    seconds = float(sum(record["seconds_by_kind"].get(kind, 0.0) for kind in ("communicate", "wait")))
    in_thread = settings.algorithm.sharing.overlap == "thread"
    return seconds + float(record["exchange_seconds"]) if in_thread else seconds
