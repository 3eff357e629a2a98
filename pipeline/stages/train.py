"""Features Parquet to a trained model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from models.settings import ModelName, ModelSettings
from pipeline.config import Config, flat_items
from pipeline.doctor import Need
from pipeline.registry import Registry
from pipeline.stages.base import Check, Context, Result, Stage
from pipeline.store import Version
from training.settings import TrainSettings


class Train(Stage):
    """Trains the configured networks, one after the other, each in a folder of its name; see `training.launcher`."""

    name: ClassVar[str] = "train"
    upstream: ClassVar[tuple[str, ...]] = ("features",)
    code: ClassVar[tuple[str, ...]] = (
        # Not those that compare, simulate or search.
        "training/*.py",
        "training/algorithms",
        "training/gridsearch/choice.py",
        "training/readers",
        "training/transports",
        "models/classifier.py",
        "models/hlf.py",
        "models/inclusive.py",
        "models/inputs.py",
        "models/particles.py",
        "models/saved_model.py",
        "models/scaling.py",
        "models/settings.py",
        "features/dataset.py",
        "features/schema.py",
    )
    needs: ClassVar[tuple[Need, ...]] = (Need.MPI,)

    def upstream_of(self, config: Config) -> tuple[str, ...]:
        """The features, and the grid search where a network is to be what it found."""
        return ("features", "gridsearch") if config.model.searched else self.upstream

    def config_items(self, config: Config) -> dict[str, Any]:
        """Networks and training."""
        items = {"model.names": config.model.names, **flat_items(config.train, "train")}
        for network in config.model.names:
            items |= flat_items(getattr(config.model, network), f"model.{network}")
            if network in config.train_by_network:
                items |= flat_items(config.training_of(network), f"train_by_network.{network}")
        return items

    def can_go_on(self, folder: Path) -> bool:
        """Whether an interrupted run left a checkpoint."""
        return any(folder.glob("*/checkpoints/*/complete.json"))

    def run(self, context: Context) -> Result:
        """Train in this process or under mpirun."""
        context.refuse_load_test()
        if self.can_go_on(context.out_dir):
            context.console.print("  an interrupted run left a checkpoint: going on from there", highlight=False)
        summaries = {network: _train(context, network) for network in context.config.model.names}
        best = ", ".join(
            f"{network} {each['best_val_loss']:.4f} (accuracy {each['best_val_accuracy']:.3f}, epoch "
            f"{each['best_epoch'] + 1} of {each['epochs']})"
            for network, each in summaries.items()
        )
        return Result(
            summary=f"validation loss of {best}",
            counters={"networks": summaries},
            checks=[check for network, summary in summaries.items() for check in _checks(network, summary)],
        )


def _train(context: Context, network: ModelName) -> dict[str, Any]:
    """Train one network; returns its summary."""
    from training.gridsearch.choice import Choice
    from training.launcher import launch
    from training.run import RunSpec
    from training.trainer import Progress

    def say(words: str) -> None:
        context.console.print(f"  {words}", highlight=False, markup=False)

    config = context.config
    model, settings = config.model.of(network), config.training_of(network)
    if network == "hlf" and config.model.searched:
        best = Choice.load(context.upstream["gridsearch"].folder / "best.json")
        model, settings = best.applied_to(model, settings)
        say(
            f"from the grid search: layers {'-'.join(map(str, best.hidden))}, learning rate {best.learning_rate:g}, "
            f"{best.epochs} epochs, {settings.batch_size} events a step and worker"
        )
    for sentence in (f"{network}: {describe(settings)}", *settings.advice()):
        say(sentence)
    start_from = _start_from(context, network, model) if settings.warm_start else None
    spec = RunSpec(
        dataset=context.upstream["features"].folder.absolute(),
        model=model,
        train=settings,
        out_dir=context.out_dir.absolute() / network,
        start_from=None if start_from is None else start_from.folder.absolute() / "model",
    )
    spec.out_dir.mkdir(exist_ok=True)
    with context.bar(f"train {network}", "steps") as bar:

        def show(progress: Progress) -> None:
            done = (progress.epoch - 1) * progress.num_steps + progress.step
            apart = progress.consensus_distance
            note = (
                f"epoch {progress.epoch}/{progress.num_epochs}, loss {progress.loss:.3f}, "
                f"{progress.samples_per_second:,.0f} events/s"
                f"{f', consensus distance {apart:.2g}' if apart and math.isfinite(apart) else ''}"
            )
            bar(done, progress.num_epochs * progress.num_steps, note)

        launch(spec, on_progress=show, on_loss=say)
    summary: dict[str, Any] = json.loads((spec.out_dir / "summary.json").read_text(encoding="utf-8"))
    context.console.print(table_of_ranks(summary))
    return {**summary, "started_from": None if start_from is None else start_from.name}


def _start_from(context: Context, network: ModelName, model: ModelSettings) -> Version | None:
    """The model in use, if it has the same layers, is of features of the same definitions, and saw no test event."""
    from features.dataset import FeatureDataset
    from models.saved_model import load_model
    from pipeline.models_on_disk import count_seen, dataset_of, identities

    current = Registry(context.config.run_dir, network).current()
    if current is None:
        context.console.print("  there is no model in use to begin with: fresh weights", highlight=False)
        return None
    _, spec = load_model(current.folder / "model")
    dataset = FeatureDataset.load(context.upstream["features"].folder)
    wanted = (model, dataset.classes, dataset.definitions)
    if (spec.settings, spec.classes, spec.definitions) != wanted:
        context.console.print(
            f"  the model in use, {current.name}, has other layers, classes or features: fresh weights", highlight=False
        )
        return None
    learnt_from = dataset_of(current.folder)
    # After a change of the split it may have learnt from what are test events now.
    num_seen = None
    if learnt_from is not None:
        num_seen = count_seen(FeatureDataset.load(learnt_from), identities(dataset.files("test")))
    if num_seen != 0:
        events = "events that are not known any more" if num_seen is None else f"{num_seen} of the test events"
        context.console.print(
            f"  the model in use, {current.name}, was trained on {events}: fresh weights", highlight=False
        )
        return None
    context.console.print(f"  beginning with the model in use, {current.name}, and its scaling", highlight=False)
    return current


def _checks(network: ModelName, summary: dict[str, Any]) -> list[Check]:
    used = summary["samples"] + summary["samples_left_out"]
    expected = summary["train_rows"] * summary["epochs"]
    return [
        Check(f"{network}: loss is finite", math.isfinite(summary["best_val_loss"]), f"{summary['best_val_loss']}"),
        Check(f"{network}: events trained on + left out = epochs x rows", used == expected, f"{used} = {expected}"),
    ]


def describe(settings: TrainSettings) -> str:
    """The run in a sentence: method, optimiser, workers and the learning rate in effect.

    Examples:
        >>> describe(TrainSettings(algorithm="ar-sgd", optimizer="sgd", workers=4))
        'ar-sgd with sgd, 4 worker(s), learning rate 0.004 (0.001 x 4 workers)'
    """
    rate = settings.effective_learning_rate
    scaled = f" ({settings.learning_rate:g} x {settings.workers} workers)" if rate != settings.learning_rate else ""
    slow = ""
    if settings.slowmo is not None:
        average = "with" if settings.slowmo_is_exact else "without"
        slow = (
            f", SlowMo {average} exact average (tau {settings.slowmo.tau}, alpha {settings.slowmo.alpha:g}, beta "
            f"{settings.slowmo.beta:g}; state of {settings.optimizer}: {settings.state_policy})"
        )
    return (
        f"{settings.algorithm} with {settings.optimizer}, {settings.workers} worker(s), learning rate "
        f"{rate:g}{scaled}{slow}"
    )


def table_of_ranks(summary: dict[str, Any]) -> Table:
    """What each rank did and where its time went; pairwise averages where there are any."""
    ranks = summary["per_rank"]
    has_pairs = any(rank["averages_begun"] for rank in ranks)
    table = Table("rank", "steps", "events", "compute [s]", "talk [s]", "wait [s]")
    for name in ("averages", "staleness") if has_pairs else ():
        table.add_column(name)
    table.add_column("accuracy")
    for rank in ranks:
        seconds = rank["seconds_by_kind"]
        pairs = (
            f"{rank['averages_begun']}+{rank['averages_received']}",
            f"{rank['mean_staleness']:.1f}, max {rank['max_staleness']}",
        )
        table.add_row(
            str(rank["rank"]),
            str(rank["steps"]),
            f"{rank['samples']:,}",
            f"{seconds.get('compute', 0.0):.2f}",
            f"{seconds.get('communicate', 0.0):.2f}",
            f"{rank['wait_seconds']:.2f}",
            *(pairs if has_pairs else ()),
            f"{rank['worker_val_accuracy']:.3f}",
        )
    return table
