"""Features Parquet to the best perceptron on high-level features."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.table import Table

from pipeline.config import Config, flat_items
from pipeline.doctor import Need
from pipeline.spark import counted
from pipeline.stages.base import Check, Context, Result, Stage

if TYPE_CHECKING:
    from training.gridsearch.job import Found
    from training.gridsearch.results import Score
    from training.gridsearch.running import Search

#: Of `train`: what the trainings of a search take from there.
_FROM_TRAIN: Final = ("optimizer", "momentum", "nesterov", "weight_decay", "seed")
_MOST_SLOTS: Final = 64
_ROWS_SHOWN: Final = 10


class GridSearch(Stage):
    """Tries the settings of a grid by cross-validation on the training split; see `training.gridsearch`."""

    name: ClassVar[str] = "gridsearch"
    upstream: ClassVar[tuple[str, ...]] = ("features",)
    code: ClassVar[tuple[str, ...]] = (
        "training/gridsearch",
        "training/readers",
        "training/determinism.py",
        "training/settings.py",
        "training/sharding.py",
        "training/sums.py",
        "training/topology.py",
        "training/transport.py",
        "training/work.py",
        "models",
        "features/dataset.py",
        "features/schema.py",
    )
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)

    def is_wanted(self, config: Config) -> bool:
        """Only where a network is to be what it finds; `gridsearch` itself runs it in any case."""
        return config.model.searched

    def config_items(self, config: Config) -> dict[str, Any]:
        """Grid, optimiser, seed."""
        train = flat_items(config.training_of("hlf"), "train")
        return {
            **flat_items(config.gridsearch, "gridsearch"),
            **{f"train.{name}": train[f"train.{name}"] for name in _FROM_TRAIN},
            **{f"report.{name}": getattr(config.report, name) for name in ("experiment", "sample_note", "energy_tev")},
        }

    def can_go_on(self, folder: Path) -> bool:
        """Whether trainings have ended in there."""
        return any((folder / "trainings").glob("*.json"))

    def run(self, context: Context) -> Result:
        """Search; write `best.json`, `search.json`, `plots/` and, in `trainings/`, the curves of each training."""
        from features.dataset import FeatureDataset
        from training.gridsearch.job import num_trainings, search
        from training.gridsearch.running import Search

        context.refuse_load_test()
        config = context.config
        dataset = FeatureDataset.load(context.upstream["features"].folder.absolute())
        common = Search(dataset.folder, config.gridsearch, config.training_of("hlf"))
        trainings = context.out_dir.absolute() / "trainings"
        trainings.mkdir(exist_ok=True)
        spark = context.spark.context()
        started = time.perf_counter()
        with (
            context.bar("gridsearch", "trainings") as bar,
            counted(spark, bar, num_trainings(common)) as done,
        ):
            found = search(
                spark,
                common,
                trainings,
                done=done,
                num_tasks=context.spark.num_tasks,
                on_round=lambda words: context.console.print(f"  {words}", highlight=False),
            )
        seconds = time.perf_counter() - started
        return _finish(context, common, found, dataset, seconds, spark.defaultParallelism)


def _finish(context: Context, common: Search, found: Found, dataset: Any, seconds: float, slots: int) -> Result:
    """Measure the candidates, write the result, draw it."""
    from training.gridsearch.candidates import latencies
    from training.gridsearch.choice import Choice
    from training.gridsearch.results import ranked
    from training.sharding import random_stream

    generator = random_stream(common.train.seed, "latency")
    times = latencies((each.trial.hidden for each in found.scores), dataset, generator=generator)
    scores = ranked([each._replace(latency=times[each.trial.hidden]) for each in found.scores])
    best = scores[0].trial
    Choice(list(best.hidden), best.batch_size, best.learning_rate, best.epochs).save(context.out_dir / "best.json")
    content = {
        "search": common.settings.search,
        "folds": common.settings.folds,
        "scores": [each.to_json() for each in scores],
        "failed": [{"trial": each.trial._asdict(), "reason": each.reason} for each in found.failed],
        "trainings": len(found.training_seconds),
        "trainings_taken_over": found.num_taken_over,
        "seconds": seconds,
        "slots": slots,
        "training_seconds": sum(found.training_seconds),
        # What was done before took no time now.
        "speed_up": None if found.num_taken_over else sum(found.training_seconds) / seconds,
        "train_events": dataset.num_rows("train"),
    }
    (context.out_dir / "search.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    _draw(context, scores, found, content)
    context.console.print(table_of(scores))
    for each in found.failed:
        context.console.print(f"  failed: {each.trial.key}: {each.reason}", highlight=False, markup=False)
    num_trials = len(scores) + len(found.failed)
    failures = f"; {len(found.failed)} failed" if found.failed else ""
    return Result(
        summary=(
            f"best of {num_trials} settings: {best.key}, accuracy {scores[0].accuracy:.3f} over "
            f"{common.settings.folds} folds{failures}"
        ),
        counters=content,
        checks=[Check("settings tried = scores + failed", num_trials > 0, f"{num_trials}")],
    )


def _draw(context: Context, scores: list[Score], found: Found, content: dict[str, Any]) -> None:
    from models.style import PlotLabels, save_figure
    from training.gridsearch.figures import plot_pareto, plot_speed_up
    from training.gridsearch.slots import speed_ups

    report = context.config.report
    labels = PlotLabels(report.experiment, report.sample_note, report.energy_tev)
    plots = context.out_dir / "plots"
    plots.mkdir(exist_ok=True)
    save_figure(plot_pareto(scores, labels), plots / "pareto")
    measured = None if content["speed_up"] is None else (content["slots"], content["speed_up"])
    save_figure(plot_speed_up(speed_ups(found.training_seconds, _MOST_SLOTS), measured, labels), plots / "speed_up")


def table_of(scores: list[Score]) -> Table:
    """The best settings of a search."""
    from training.gridsearch.results import latency, pareto_front

    fronts = {"size": pareto_front(scores), "time": pareto_front(scores, latency)}
    title = f"the best {min(_ROWS_SHOWN, len(scores))} of {len(scores)} settings"
    table = Table("layers", "batch", "rate", "epochs", title=title, title_justify="left")
    for name in ("parameters", "accuracy", "loss", "time/event [us]", "not beaten in"):
        table.add_column(name, justify="right")
    for each in scores[:_ROWS_SHOWN]:
        trial = each.trial
        table.add_row(
            "-".join(map(str, trial.hidden)),
            str(trial.batch_size),
            f"{trial.learning_rate:g}",
            str(trial.epochs),
            f"{each.num_parameters:,}",
            f"{each.accuracy:.4f} +- {each.accuracy_spread:.4f}",
            f"{each.loss:.4f}",
            f"{each.latency:.1f}",
            ", ".join(name for name, front in fronts.items() if each in front),
        )
    return table
