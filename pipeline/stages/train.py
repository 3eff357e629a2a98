"""Features Parquet to a trained model."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

from pipeline.config import Config, flat_items
from pipeline.doctor import Need
from pipeline.stages.base import Check, Context, Result, Stage


class Train(Stage):
    """Trains the configured network; see `training.launcher`."""

    name: ClassVar[str] = "train"
    upstream: ClassVar[tuple[str, ...]] = ("features",)
    code: ClassVar[tuple[str, ...]] = (
        "training",
        "models/hlf.py",
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

    def run(self, context: Context) -> Result:
        """Train in this process or under mpirun."""
        from training.launcher import launch
        from training.trainer import Progress, RunSpec

        context.refuse_load_test()
        settings = context.config.train
        rate = settings.effective_learning_rate
        scaled = f" ({settings.learning_rate:g} x {settings.workers} workers)" if rate != settings.learning_rate else ""
        context.console.print(
            f"  {settings.algorithm} with {settings.optimizer}, {settings.workers} worker(s), "
            f"learning rate {rate:g}{scaled}",
            highlight=False,
        )
        spec = RunSpec(
            dataset=context.upstream["features"].folder.absolute(),
            model=context.config.model,
            train=settings,
            out_dir=context.out_dir.absolute(),
        )
        with context.bar("train", "steps") as bar:

            def show(progress: Progress) -> None:
                done = (progress.epoch - 1) * progress.num_steps + progress.step
                note = (
                    f"epoch {progress.epoch}/{progress.num_epochs}, loss {progress.loss:.3f}, "
                    f"{progress.samples_per_second:,.0f} events/s"
                )
                bar(done, progress.num_epochs * progress.num_steps, note)

            launch(spec, on_progress=show)
        summary: dict[str, Any] = json.loads((context.out_dir / "summary.json").read_text(encoding="utf-8"))
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
