"""The training loop of one rank: epochs of steps, validation, best model, metrics."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TextIO

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from features.dataset import FeatureDataset
from models.hlf import HlfClassifier
from models.saved_model import ModelSpec, build, save_model
from models.settings import ModelSettings
from training.algorithms.ar_sgd import ArSgd
from training.algorithms.base import Algorithm
from training.algorithms.sgd import Sgd
from training.errors import DivergedError
from training.flat_model import FlatModel
from training.readers import Batch, Reader
from training.settings import AlgorithmName, OptimizerName, TrainSettings
from training.sharding import plan_epoch
from training.transport import Transport

ALGORITHMS: Final[dict[AlgorithmName, type[Algorithm]]] = {
    AlgorithmName.SGD: Sgd,
    AlgorithmName.AR_SGD: ArSgd,
}
_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}


class RunSpec(NamedTuple):
    """What a training run is made of; goes to the ranks as JSON."""

    dataset: Path
    model: ModelSettings
    train: TrainSettings
    out_dir: Path

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        content = {
            "dataset": str(self.dataset),
            "model": self.model.model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
            "out_dir": str(self.out_dir),
        }
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            Path(content["dataset"]),
            ModelSettings(**content["model"]),
            TrainSettings(**content["train"]),
            Path(content["out_dir"]),
        )


class Progress(NamedTuple):
    """How far a rank is; shown by rank 0."""

    epoch: int
    num_epochs: int
    step: int
    num_steps: int
    loss: float
    samples_per_second: float


class Sums(NamedTuple):
    """Weighted sums over events, which add up over batches and ranks."""

    loss: float
    weight: float
    correct: float
    samples: int

    def plus(self, other: Sums) -> Sums:
        """Sums over both sets of events."""
        return Sums(
            self.loss + other.loss,
            self.weight + other.weight,
            self.correct + other.correct,
            self.samples + other.samples,
        )


class Timer:
    """Seconds spent on each kind of work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def restart(self) -> None:
        """Forget everything and start now."""
        self.seconds.clear()
        self._last = time.perf_counter()

    def lap(self, kind: str) -> None:
        """Book the time since the last lap."""
        now = time.perf_counter()
        self.seconds[kind] = self.seconds.get(kind, 0.0) + now - self._last
        self._last = now


class TimedTransport:
    """A transport that books the time it takes under `communicate`, and the bytes it moves."""

    def __init__(self, transport: Transport, timer: Timer) -> None:
        self._transport = transport
        self._timer = timer
        self.rank = transport.rank
        self.world_size = transport.world_size
        self.bytes = 0

    def all_reduce_sum(self, vector: np.ndarray[Any, Any]) -> None:
        """See `Transport`."""
        self._timer.lap("compute")
        self._transport.all_reduce_sum(vector)
        self.bytes += vector.nbytes
        self._timer.lap("communicate")

    def broadcast(self, vector: np.ndarray[Any, Any]) -> None:
        """See `Transport`."""
        self._transport.broadcast(vector)

    def barrier(self) -> None:
        """See `Transport`."""
        self._transport.barrier()


def train(spec: RunSpec, transport: Transport, *, on_progress: Callable[[Progress], None]) -> None:
    """Train on this rank; rank 0 writes the model of the lowest validation loss and the summary.

    Writes into `spec.out_dir`: `model/` (the best), `metrics/rank-<n>.jsonl` (one line an epoch), `summary.json`.

    Args:
        spec: Dataset, network and settings.
        transport: The other ranks.
        on_progress: Called now and then, on every rank.

    Raises:
        ShardError: The dataset has too few row groups for the workers.
        DivergedError: The loss is no longer finite.
    """
    settings = spec.train
    torch.use_deterministic_algorithms(True)
    dataset = FeatureDataset.load(spec.dataset)
    scaler = dataset.scaler()["hlf"]
    model_spec = ModelSpec(spec.model, dataset.classes, scaler["mean"], scaler["std"])
    flat = make_model(model_spec, settings, transport)
    timer = Timer()
    timed = TimedTransport(transport, timer)
    algorithm = ALGORITHMS[settings.algorithm](flat, make_optimizer(flat, settings), timed)
    reader = Reader(dataset, HlfClassifier.inputs, dtype=_DTYPES[settings.precision], seed=settings.seed)
    metrics_path = spec.out_dir / "metrics" / f"rank-{transport.rank}.jsonl"
    metrics_path.parent.mkdir(exist_ok=True)
    best = {"epoch": -1, "val_loss": math.inf}
    history: list[dict[str, Any]] = []
    with metrics_path.open("w", encoding="utf-8") as metrics:
        for epoch in range(settings.epochs):
            record = run_epoch(epoch, dataset, reader, algorithm, timed, timer, settings, on_progress)
            record |= validate(flat, reader, transport)
            timer.lap("validate")
            record["seconds_by_kind"] = {kind: round(value, 6) for kind, value in timer.seconds.items()}
            write_record(metrics, record)
            history.append(record)
            if not math.isfinite(record["val_loss"]):
                raise DivergedError(
                    f"the validation loss of epoch {epoch + 1} is {record['val_loss']}: training diverged. "
                    f"Lower train.learning_rate (now {settings.effective_learning_rate:g} in effect)."
                )
            if record["val_loss"] < best["val_loss"]:
                best = {"epoch": epoch, "val_loss": record["val_loss"]}
                if transport.rank == 0:
                    save_model(flat.module, model_spec, spec.out_dir / "model")
    if transport.rank == 0:
        write_summary(spec, dataset, flat, best, history)
    transport.barrier()


def make_model(spec: ModelSpec, settings: TrainSettings, transport: Transport) -> FlatModel:
    """The network with initial weights from the seed, the same on all ranks."""
    torch.manual_seed(settings.seed)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(_DTYPES[settings.precision])
        flat = FlatModel(build(spec))
    finally:
        torch.set_default_dtype(before)
    transport.broadcast(flat.flat.detach().numpy())
    return flat


def make_optimizer(model: FlatModel, settings: TrainSettings) -> Optimizer:
    """The base optimiser over the flat vector."""
    rate = settings.effective_learning_rate
    if settings.optimizer is OptimizerName.ADAM:
        return Adam([model.flat], lr=rate, weight_decay=settings.weight_decay)
    return SGD([model.flat], lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay)


def run_epoch(
    epoch: int,
    dataset: FeatureDataset,
    reader: Reader,
    algorithm: Algorithm,
    transport: TimedTransport,
    timer: Timer,
    settings: TrainSettings,
    on_progress: Callable[[Progress], None],
) -> dict[str, Any]:
    """All steps of one epoch on this rank; returns its metrics record."""
    rows = [group.rows for group in dataset.splits["train"]]
    plan = plan_epoch(
        rows,
        world_size=transport.world_size,
        batch_size=settings.batch_size,
        seed=settings.seed,
        epoch=epoch,
    )
    started, bytes_before = time.perf_counter(), transport.bytes
    timer.restart()
    sums = Sums(0.0, 0.0, 0.0, 0)
    algorithm.model.module.train()
    for step, batch in enumerate(reader.train_batches(plan, rank=transport.rank, epoch=epoch), start=1):
        timer.lap("read")
        sums = sums.plus(training_step(algorithm, batch))
        timer.lap("compute")
        on_progress(
            Progress(
                epoch=epoch + 1,
                num_epochs=settings.epochs,
                step=step,
                num_steps=plan.num_steps,
                loss=sums.loss / sums.weight if sums.weight else math.nan,
                samples_per_second=sums.samples * transport.world_size / (time.perf_counter() - started),
            )
        )
    totals = reduce_sums(sums, transport)
    return {
        "epoch": epoch,
        "rank": transport.rank,
        "steps": plan.num_steps,
        "samples": sums.samples,
        "samples_all_ranks": totals.samples,
        "samples_left_out": int(sum(rows[group] for group in plan.left_out)),
        "learning_rate": settings.effective_learning_rate,
        "train_loss": totals.loss / totals.weight,
        "train_accuracy": totals.correct / totals.weight,
        "seconds": time.perf_counter() - started,
        "bytes_sent": transport.bytes - bytes_before,
    }


def training_step(algorithm: Algorithm, batch: Batch) -> Sums:
    """One step of the algorithm; returns the sums over the local batch, before the update."""
    model = algorithm.model
    seen: list[Sums] = []

    def compute_gradient() -> None:
        model.zero_gradient()
        if not len(batch):
            return
        losses, sums = weighted_losses(model.module, batch)
        # Divided by the number of events, not by their weights: these are 1 on average, and may add up to 0 in a batch.
        (losses.sum() / len(batch)).backward()  # type: ignore[no-untyped-call]
        seen.append(sums)

    algorithm.step(compute_gradient, len(batch))
    return seen[0] if seen else Sums(0.0, 0.0, 0.0, 0)


def weighted_losses(module: nn.Module, batch: Batch) -> tuple[Tensor, Sums]:
    """Weighted cross-entropy of each event, (num_events,), and the sums over them."""
    logits = module(*batch.inputs)
    losses = batch.weights * nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    correct = (logits.argmax(dim=1) == batch.labels) * batch.weights
    return losses, Sums(float(losses.detach().sum()), float(batch.weights.sum()), float(correct.sum()), len(batch))


def validate(model: FlatModel, reader: Reader, transport: Transport) -> dict[str, float]:
    """Loss and accuracy on the validation split, shared out over the ranks; the same numbers on all."""
    sums = Sums(0.0, 0.0, 0.0, 0)
    model.module.eval()
    with torch.inference_mode():
        for batch in reader.val_batches(rank=transport.rank, world_size=transport.world_size):
            sums = sums.plus(weighted_losses(model.module, batch)[1])
    totals = reduce_sums(sums, transport)
    return {"val_loss": totals.loss / totals.weight, "val_accuracy": totals.correct / totals.weight}


def reduce_sums(sums: Sums, transport: Transport) -> Sums:
    """The sums over the events of all ranks."""
    vector = np.array(sums, dtype=np.float64)
    transport.all_reduce_sum(vector)
    loss, weight, correct, samples = vector.tolist()
    return Sums(loss, weight, correct, round(samples))


def write_record(metrics: TextIO, record: dict[str, Any]) -> None:
    """One JSON line, on disk at once: a killed run keeps what it knew."""
    metrics.write(json.dumps(record) + "\n")
    metrics.flush()


def write_summary(
    spec: RunSpec,
    dataset: FeatureDataset,
    model: FlatModel,
    best: dict[str, Any],
    history: list[dict[str, Any]],
) -> None:
    """`summary.json`: the run in a few numbers."""
    settings = spec.train
    chosen = history[best["epoch"]]
    content = {
        "model": spec.model.name,
        "algorithm": str(settings.algorithm),
        "optimizer": str(settings.optimizer),
        "workers": settings.workers,
        "epochs": settings.epochs,
        "steps": sum(record["steps"] for record in history),
        "samples": sum(record["samples_all_ranks"] for record in history),
        "samples_left_out": sum(record["samples_left_out"] for record in history),
        "train_rows": dataset.num_rows("train"),
        "num_parameters": model.flat.numel(),
        "learning_rate_in_effect": settings.effective_learning_rate,
        "best_epoch": best["epoch"],
        "best_val_loss": chosen["val_loss"],
        "best_val_accuracy": chosen["val_accuracy"],
        "seconds": sum(record["seconds"] for record in history),
    }
    (spec.out_dir / "summary.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
