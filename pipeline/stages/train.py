"""Features Parquet to a trained model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from pipeline.config import Config, flat_items
from pipeline.doctor import Need
from pipeline.stages.base import Check, Context, Result, Stage
from training.settings import TrainSettings


class Train(Stage):
    """Trains the configured network; see `training.launcher`."""

    name: ClassVar[str] = "train"
    upstream: ClassVar[tuple[str, ...]] = ("features",)
    code: ClassVar[tuple[str, ...]] = (
        # Not those that compare, simulate or search.
        "training/*.py",
        "training/algorithms",
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

    def config_items(self, config: Config) -> dict[str, Any]:
        """Network and training."""
        return {**flat_items(config.model, "model"), **flat_items(config.train, "train")}

    def can_go_on(self, folder: Path) -> bool:
        """Whether an interrupted run left a checkpoint."""
        return any((folder / "checkpoints").glob("*/complete.json"))

    def run(self, context: Context) -> Result:
        """Train in this process or under mpirun."""
        from training.launcher import launch
        from training.run import RunSpec
        from training.trainer import Progress

        context.refuse_load_test()
        settings = context.config.train
        for sentence in (describe(settings), *settings.advice()):
            context.console.print(f"  {sentence}", highlight=False, markup=False)
        if self.can_go_on(context.out_dir):
            context.console.print("  an interrupted run left a checkpoint: going on from there", highlight=False)
        spec = RunSpec(
            dataset=context.upstream["features"].folder.absolute(),
            model=context.config.model,
            train=settings,
            out_dir=context.out_dir.absolute(),
        )
        with context.bar("train", "steps") as bar:

            def show(progress: Progress) -> None:
                done = (progress.epoch - 1) * progress.num_steps + progress.step
                apart = progress.consensus_distance
                note = (
                    f"epoch {progress.epoch}/{progress.num_epochs}, loss {progress.loss:.3f}, "
                    f"{progress.samples_per_second:,.0f} events/s"
                    f"{f', consensus distance {apart:.2g}' if apart and math.isfinite(apart) else ''}"
                )
                bar(done, progress.num_epochs * progress.num_steps, note)

            launch(
                spec,
                on_progress=show,
                on_loss=lambda words: context.console.print(f"  {words}", highlight=False, markup=False),
            )
        summary: dict[str, Any] = json.loads((context.out_dir / "summary.json").read_text(encoding="utf-8"))
        context.console.print(table_of_ranks(summary))
        used = summary["samples"] + summary["samples_left_out"]
        expected = summary["train_rows"] * settings.epochs
        return Result(
            summary=(
                f"best epoch {summary['best_epoch'] + 1} of {settings.epochs}: validation loss "
                f"{summary['best_val_loss']:.4f}, accuracy {summary['best_val_accuracy']:.3f}"
            ),
            counters=summary,
            checks=[
                Check("loss is finite", math.isfinite(summary["best_val_loss"]), f"{summary['best_val_loss']}"),
                Check("events trained on + left out = epochs x rows", used == expected, f"{used} = {expected}"),
            ],
        )


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
