"""The trained models on the test split."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rich.table import Table

from pipeline.config import Config, flat_items
from pipeline.reporting.cutflow import cutflow
from pipeline.stages.base import Check, Context, Result, Stage
from pipeline.store import Version

if TYPE_CHECKING:
    from models.measure import Rates

#: [1/(cm2 s)] to [1/(pb s)].
_PB_PER_CM2 = 1e-36


class Evaluate(Stage):
    """Predicts, measures and plots; see `models.evaluate`."""

    name: ClassVar[str] = "evaluate"
    upstream: ClassVar[tuple[str, ...]] = ("ingest", "features", "train")
    code: ClassVar[tuple[str, ...]] = (
        "models",
        "features/dataset.py",
        "features/schema.py",
        "pipeline/models_on_disk.py",
        "pipeline/reporting/cutflow.py",
    )

    def config_items(self, config: Config) -> dict[str, Any]:
        """What is asked, cross-sections, and the words on the plots."""
        items = flat_items(config.report, "report")
        del items["report.title"]
        cross_sections = {
            f"samples.{sample.name}.cross_section_pb": sample.cross_section_pb for sample in config.samples
        }
        return {**items, **flat_items(config.evaluate, "evaluate"), **cross_sections}

    def run(self, context: Context) -> Result:
        """Predict the test split and write predictions, metrics and plots."""
        from features.dataset import FeatureDataset
        from models.evaluate import boosted_trees, evaluate
        from pipeline.models_on_disk import find_models, refuse_other_features

        context.refuse_load_test()
        config = context.config
        dataset = FeatureDataset.load(context.upstream["features"].folder)
        trained = context.upstream["train"]
        networks = trained.manifest["counters"]["networks"]
        found = find_models([f"{name}={trained.folder / name}" for name in networks], dataset.classes)
        refuse_other_features(found, dataset.definitions)
        candidates = [each.candidate for each in found]
        if config.evaluate.reference:
            candidates.append(
                boosted_trees(dataset.files("train"), dataset.classes, dataset.class_weights, seed=config.train.seed)
            )
        metrics = evaluate(
            candidates,
            dataset.files("test"),
            dataset.files("train"),
            make_task(config, dataset.classes, rates_before(config, context.upstream)),
            context.out_dir,
            train_events=config.evaluate.train_events,
        )
        for table in tables_of(metrics):
            context.console.print(table)
        expected = dataset.num_rows("test")
        accuracies = ", ".join(
            f"{name} {each['accuracy']['value']:.3f} +- {each['accuracy']['error']:.3f}"
            for name, each in metrics["runs"].items()
        )
        return Result(
            summary=f"accuracy {accuracies}",
            counters=metrics,
            checks=[
                Check(
                    f"{name}: events predicted = events in the test split",
                    each["num_events"] == expected,
                    f"{expected}",
                )
                for name, each in metrics["runs"].items()
            ],
        )


def make_task(config: Config, classes: list[str], rates: Rates | None) -> Any:
    """What an evaluation is asked for, a `models.evaluate.Task`."""
    from models.evaluate import Task
    from models.style import PlotLabels

    report = config.report
    return Task(
        classes=classes,
        signal=classes.index(config.signal),
        working_points=config.evaluate.working_points,
        rates=rates,
        labels=PlotLabels(report.experiment, report.sample_note, report.energy_tev),
        seed=config.train.seed,
    )


def rates_before(config: Config, upstream: Mapping[str, Version]) -> Rates | None:
    """Rates of the classes after the selection; None without all cross-sections, or without weights to share."""
    from models.efficiencies import rate
    from models.measure import Rates

    if any(sample.cross_section_pb is None for sample in config.samples):
        return None
    ingested, selected = upstream["ingest"].manifest, upstream["features"].manifest
    described = {
        **{key: ingested["config"][key] for key in ("samples", "ingest")},
        **{key: selected["config"][key] for key in ("classes", "features")},
    }
    last = cutflow(ingested["counters"], selected["counters"], described)[-1]
    found = dict.fromkeys(config.classes, 0.0)
    for sample in config.samples:
        found[config.classes[sample.label]] += rate(
            sample.cross_section_pb or 0.0,
            last.weighted[sample.name].value,
            1.0,
            per_pb_second=config.evaluate.luminosity * _PB_PER_CM2,
        )
    return Rates(found) if all(map(math.isfinite, found.values())) else None


def tables_of(metrics: Mapping[str, Any]) -> list[Table]:
    """For the terminal: accuracy and areas by model, the working points, and rates where they are known."""
    classes, signal = metrics["classes"], metrics["signal"]
    summary = Table("model", "accuracy", *(f"AUC {name}" for name in classes))
    points = Table("model", f"{signal} kept", "threshold", *(f"{name} left [%]" for name in classes if name != signal))
    rates = Table("model", f"{signal} kept", *(f"{name} [1/s]" for name in classes), "purity")
    for name, run in metrics["runs"].items():
        summary.add_row(name, _words(run["accuracy"]), *(_words(run["auc"][each]) for each in classes))
        for point in run["working_points"]:
            kept = f"{100 * point['wanted']:g}%"
            if not point["measurable"]:
                points.add_row(name, kept, f"- ({point['num_failing']:.1f} < 10)")
                continue
            points.add_row(name, kept, f"{point['threshold']:.4f}", *map(_interval, point["backgrounds"].values()))
            if metrics["rates_before"] is not None:
                purity = "not defined" if point["purity"] is None else f"{point['purity']:.3f}"
                rates.add_row(name, kept, *(f"{point['rates'][each]:.3g}" for each in classes), purity)
    points.caption = "-: not measurable, so few signal events are expected to fail"
    for table in (summary, points, rates):
        table.columns[0].no_wrap = True
    return [summary, points, *([rates] if rates.row_count else [])]


def _words(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.3f} ± {estimate['error']:.3f}"


def _interval(efficiency: Mapping[str, float]) -> str:
    low, value, high = efficiency["low"], efficiency["value"], efficiency["high"]
    return f"{100 * value:.2f} +{100 * (high - value):.2f} -{100 * (value - low):.2f}"
