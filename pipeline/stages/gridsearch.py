"""Features Parquet to the best perceptron on high-level features."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.machine.doctor import Need
from pipeline.machine.spark_session import counted
from pipeline.stages.base import Check, Context, Part, Result, Stage
from pipeline.terminal.tables import search_table

if TYPE_CHECKING:
    from training.gridsearch.spark_job import SearchOutcome
    from training.gridsearch.trainings import Search

#: Keys of `train` that the trainings of a search use.
_FROM_TRAIN: Final = ("optimizer", "momentum", "weight_decay", "schedule", "seed")
#: Name of the part that holds the trainings, and of its folder.
_TRAININGS: Final = "trainings"
_MOST_SLOTS: Final = 64


class GridSearch(Stage):
    """Tries the settings of a grid by cross-validation on the training split; see `training.gridsearch`."""

    name: ClassVar[str] = "gridsearch"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "features": ("dataset.json", "scaler.json", "train/*")
    }
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)
    wanted_by: ClassVar[str] = "model.hlf.from_gridsearch"
    volatile: ClassVar[frozenset[str]] = frozenset(
        {
            "search.json/seconds",
            "search.json/speed_up",
            "search.json/training_seconds",
            "search.json/trainings_taken_over",
            "search.json/scores/*/latency",
        }
    )

    def is_wanted(self, config: Config) -> bool:
        """Whether a network takes its settings from the search; the command `gridsearch` runs it in any case."""
        return config.model.searched

    def entry_points(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        """The search, and the network that it searches."""
        return (f"pipeline.stages.{self.name}", "models.networks.hlf")

    def parts(self, config: Config) -> dict[str, Part]:
        """The trainings, which depend on grid, optimiser and seed; a new drawing does not repeat them."""
        train = flat_items(config.training_of("hlf"), "train")
        items = {
            **flat_items(config.gridsearch, "gridsearch"),
            **{key: value for key, value in train.items() if key.split(".")[1] in _FROM_TRAIN},
        }
        return {
            _TRAININGS: Part(
                items, ("training.gridsearch.trainings", "models.networks.hlf"), ("features",)
            )
        }

    def can_continue(self, folder: Path) -> bool:
        """Whether a folder holds finished trainings."""
        return any((folder / _TRAININGS).glob("[!.]*.json"))

    def run(self, context: Context) -> Result:
        """Search; write `best.json`, `search.json`, `plots/` and the curves of each training in `trainings/`."""
        from features.dataset import FeatureDataset
        from training.gridsearch.spark_job import count_trainings, run_search
        from training.gridsearch.trainings import Search

        config = context.config
        dataset = FeatureDataset.load(context.upstream["features"].folder.absolute())
        common = Search(dataset.folder, config.gridsearch, config.training_of("hlf"))
        trainings = context.out_dir.absolute() / _TRAININGS
        trainings.mkdir(exist_ok=True)
        spark = context.start_spark()
        started = time.perf_counter()
        with (
            context.bar("gridsearch", "trainings") as bar,
            counted(spark, bar, count_trainings(common)) as num_done,
        ):
            found = run_search(
                spark, common, trainings, num_done=num_done, num_tasks=context.spark.num_tasks
            )
        seconds = time.perf_counter() - started
        with context.bar("gridsearch", "settings") as bar:
            bar(0, 0, "timing and drawing the settings")
            return _finish(context, common, found, dataset, seconds, spark.defaultParallelism)


def _finish(
    context: Context, common: Search, found: SearchOutcome, dataset: Any, seconds: float, slots: int
) -> Result:
    """Measure the candidates, write the result and draw it."""
    from hep_core.random_streams import random_stream
    from models.evaluation.style import NO_LABELS, save_figure
    from training.gridsearch.figures import plot_pareto, plot_speed_up
    from training.gridsearch.results import measure_latencies, rank_scores, select_score, speed_ups

    generator = random_stream(common.train.seed, "latency")
    architectures = [score.trial.hidden for score in found.scores]
    times = measure_latencies(architectures, dataset, generator=generator)
    scores = rank_scores(
        score._replace(latency=times[score.trial.hidden]) for score in found.scores
    )
    taken = select_score(scores, one_standard_error=common.settings.one_standard_error)
    best = taken.trial
    best.save(context.out_dir / "best.json")
    # Earlier trainings took no time in this run.
    measured = None if found.num_reused else (slots, sum(found.training_seconds) / seconds)
    content = {
        "search": common.settings.search,
        "folds": common.settings.folds,
        "scores": [each.to_json(scores[0]) for each in scores],
        "chosen": scores.index(taken),
        "failed": [
            {"trial": trial._asdict(), "reason": reason} for trial, reason in found.failed.items()
        ],
        "trainings": len(found.training_seconds),
        "trainings_taken_over": found.num_reused,
        "seconds": seconds,
        "slots": slots,
        "training_seconds": sum(found.training_seconds),
        "speed_up": measured and measured[1],
        "train_events": dataset.num_rows("train"),
    }
    (context.out_dir / "search.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    plots = context.out_dir / "plots"
    plots.mkdir(exist_ok=True)
    save_figure(plot_pareto(scores, NO_LABELS), plots / "pareto")
    save_figure(
        plot_speed_up(speed_ups(found.training_seconds, _MOST_SLOTS), measured, NO_LABELS),
        plots / "speed_up",
    )
    context.console.print(search_table(scores))
    for trial, reason in found.failed.items():
        context.say(f"failed: {trial.key}: {reason}")
    num_trials = len(scores) + len(found.failed)
    failures = f"; {len(found.failed)} failed" if found.failed else ""
    return Result(
        summary=(
            f"best of {num_trials} settings: {best.key}, accuracy {taken.accuracy:.3f} over "
            f"{common.settings.folds} folds{failures}"
        ),
        counters=content,
        checks=[Check("settings tried = scores + failed", num_trials > 0, f"{num_trials}")],
    )
