"""The trained model on the test split."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pipeline.config import Config, flat_items
from pipeline.stages.base import Check, Context, Result, Stage


class Evaluate(Stage):
    """Predicts, measures and plots; see `models.evaluate`."""

    name: ClassVar[str] = "evaluate"
    upstream: ClassVar[tuple[str, ...]] = ("features", "train")
    code: ClassVar[tuple[str, ...]] = ("models", "features/dataset.py", "features/schema.py")

    def config_items(self, config: Config) -> dict[str, Any]:
        """The words on the plots."""
        items = flat_items(config.report, "report")
        del items["report.title"]
        return items

    def run(self, context: Context) -> Result:
        """Predict the test split and write predictions, metrics and plots."""
        from features.dataset import FeatureDataset
        from models.evaluate import evaluate
        from models.style import PlotLabels

        context.refuse_load_test()
        dataset = FeatureDataset.load(context.upstream["features"].folder)
        trained = context.upstream["train"].folder
        history = [
            json.loads(line) for line in (trained / "metrics" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        report = context.config.report
        metrics = evaluate(
            trained / "model",
            dataset.files("test"),
            dataset.classes,
            history,
            PlotLabels(report.experiment, report.sample_note, report.energy_tev),
            context.out_dir,
        )
        areas = ", ".join(f"{name} {auc['value']:.3f}" for name, auc in metrics["auc"].items())
        expected = dataset.num_rows("test")
        accuracy = metrics["accuracy"]
        return Result(
            summary=f"accuracy {accuracy['value']:.3f} +- {accuracy['error']:.3f}; AUC {areas}",
            counters=metrics,
            checks=[
                Check(
                    "events predicted = events in the test split",
                    metrics["num_events"] == expected,
                    f"{expected}",
                ),
            ],
        )
