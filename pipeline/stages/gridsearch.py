"""Features Parquet to the best perceptron on high-level features."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.machine.doctor import Need
from pipeline.machine.spark_jobs import counted
from pipeline.stages.base import Check, Context, Part, Result, Stage
from pipeline.terminal.tables import search_table

if TYPE_CHECKING:
    from features.dataset import FeatureDataset
    from training.gridsearch.results import Score
    from training.gridsearch.search import Search
    from training.gridsearch.spark_job import SearchOutcome

#: Keys of `train` that the trainings of a search use.
_FROM_TRAIN: Final = ("optimizer", "momentum", "weight_decay", "schedule", "seed")
#: Name of the part that holds the trainings, and of its folder.
_TRAININGS: Final = "trainings"
_MAX_SLOTS: Final = 64


class GridSearch(Stage):
    """Tries the settings of a grid by cross-validation on the training split.

    See `training.gridsearch`.
    """

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
        """Return whether a network of the config takes its settings from the search.

        Otherwise only the command `gridsearch` runs it, but not `run`.
        """
        return config.model.searched

    def entry_points(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        """The search, and the network that it searches."""
        return (f"pipeline.stages.{self.name}", "models.networks.hlf")

    def parts(self, config: Config) -> dict[str, Part]:
        """Return one part, with the trainings of the search; they depend on grid, optimiser, seed.

        Since they are a part, a change that only concerns the figures does not repeat them.
        """
        items = flat_items(config.gridsearch, "gridsearch")
        for key, value in flat_items(config.training_of("hlf"), "train").items():
            if key.split(".")[1] in _FROM_TRAIN:
                items[key] = value
        code = ("training.gridsearch.trainings", "models.networks.hlf")
        return {_TRAININGS: Part(items, code, ("features",))}

    def can_continue(self, folder: Path) -> bool:
        """Return whether a version folder of a killed run holds results of finished trainings."""
        # A result that is being written has a name with a dot in front.
        return any((folder / _TRAININGS).glob("[!.]*.json"))

    def run(self, context: Context) -> Result:
        """Train all settings of the grid on Spark, and choose the best.

        `trainings/` gets the curves of each training; an interrupted run continues from them. Then
        the settings are ranked, timed and drawn; see `_finish`.

        Raises:
            IdleSettingError: The schedule of the learning rate needs more epochs than a setting has.
        """
        from features.dataset import FeatureDataset
        from training.gridsearch.search import Search
        from training.gridsearch.spark_job import count_trainings, run_search

        config = context.config
        training = config.training_of("hlf")
        _check_schedule(config)
        dataset = FeatureDataset.load(context.upstream["features"].folder.absolute())
        if training.decorrelate is not None:
            context.say("the search compares settings without the term of train.decorrelate")
        search = Search(dataset.folder, config.gridsearch, training)
        trainings = context.out_dir.absolute() / _TRAININGS
        # The folder may hold trainings of an interrupted run, which are not repeated.
        trainings.mkdir(exist_ok=True)
        spark = context.start_spark()
        start_time = time.perf_counter()
        with (
            context.bar("gridsearch", "trainings") as bar,
            counted(spark, bar, count_trainings(search)) as num_done,
        ):
            outcome = run_search(
                spark, search, trainings, num_done=num_done, num_tasks=context.spark.num_tasks
            )
        seconds = time.perf_counter() - start_time
        num_slots = spark.defaultParallelism
        context.spark.release()
        with context.bar("gridsearch", "settings") as bar:
            bar(0, 0, "timing and drawing the settings")
            return _finish(context, search, outcome, dataset, seconds, num_slots)


def _check_schedule(config: Config) -> None:
    """Refuse a schedule that the setting of the fewest epochs cannot follow to its end.

    The validation of the config does so only if a network takes its settings from the search.
    """
    from training.errors import IdleSettingError

    problems = list(config.problems_of_searched_schedule("hlf"))
    if problems:
        raise IdleSettingError("; ".join(problems))


def _finish(
    context: Context,
    search: Search,
    outcome: SearchOutcome,
    dataset: FeatureDataset,
    seconds: float,
    slots: int,
) -> Result:
    """Time the settings that were tried, choose the best, and write and draw the result.

    It writes `best.json` (the choice), `search.json` (all results) and `plots/`.

    Args:
        context: The context of the stage.
        search: What was searched.
        outcome: The scores of the settings, and the settings that failed.
        dataset: The features.
        seconds: How long the trainings took together, in parallel.
        slots: Number of trainings that Spark runs at once.
    """
    from hep_core.random_streams import random_stream
    from training.gridsearch.latencies import measure_latencies
    from training.gridsearch.results import rank_scores, select_score
    from training.gridsearch.settings import draw_trials

    generator = random_stream(search.train.seed, "latency")
    architectures = [score.trial.hidden for score in outcome.scores]
    latencies = measure_latencies(architectures, dataset, generator=generator)
    scores = rank_scores(
        score._replace(latency=latencies[score.trial.hidden]) for score in outcome.scores
    )
    best = select_score(scores, one_standard_error=search.settings.one_standard_error)
    best.trial.save(context.out_dir / "best.json")
    training_seconds = sum(outcome.training_seconds)
    # The speed-up is the sum of the times of all trainings over the time that they took together.
    # Trainings that were taken over took no time in this run, so that it would be too high.
    speed_up = None if outcome.num_reused else training_seconds / seconds
    content = {
        "search": search.settings.search,
        "folds": search.settings.folds,
        "scores": [score.to_json(scores[0]) for score in scores],
        "chosen": scores.index(best),
        "failed": [
            {"trial": trial._asdict(), "reason": reason} for trial, reason in outcome.failed.items()
        ],
        "trainings": len(outcome.training_seconds),
        "trainings_taken_over": outcome.num_reused,
        "seconds": seconds,
        "slots": slots,
        "training_seconds": training_seconds,
        "speed_up": speed_up,
        "train_events": dataset.num_rows("train"),
    }
    (context.out_dir / "search.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    measured = None if speed_up is None else (slots, speed_up)
    _draw(context.out_dir / "plots", scores, outcome.training_seconds, measured)
    context.console.print(search_table(scores))
    for trial, reason in outcome.failed.items():
        context.say(f"failed: {trial.key}: {reason}")
    num_failed = len(outcome.failed)
    num_settings = len(draw_trials(search.settings, seed=search.train.seed))
    num_tried = len(scores) + num_failed
    summary = (
        f"best of {num_tried} settings: {best.trial.key}, accuracy {best.accuracy:.3f} over "
        f"{search.settings.folds} folds"
    )
    if num_failed:
        summary += f"; {num_failed} failed"
    return Result(
        summary=summary,
        counters=content,
        checks=[
            Check(
                "settings of the search = scores + failed",
                num_settings == num_tried,
                f"{num_settings} = {len(scores)} + {num_failed}",
            )
        ],
    )


def _draw(
    folder: Path,
    scores: Sequence[Score],
    training_seconds: Sequence[float],
    measured: tuple[int, float] | None,
) -> None:
    """Draw the Pareto front of accuracy and latency, and the speed-up by number of slots.

    Args:
        folder: Gets the figures.
        scores: The results of all settings.
        training_seconds: How long each training took [s], from which speed-ups are computed.
        measured: Number of slots and speed-up of this run; None if it was not measured.
    """
    from models.evaluation.style import NO_LABELS, save_figure
    from training.gridsearch.figures import plot_pareto, plot_speed_up
    from training.gridsearch.results import speed_ups

    folder.mkdir(exist_ok=True)
    save_figure(plot_pareto(scores, NO_LABELS), folder / "pareto")
    expected = speed_ups(training_seconds, _MAX_SLOTS)
    save_figure(plot_speed_up(expected, measured, NO_LABELS), folder / "speed_up")
