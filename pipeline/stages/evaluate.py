"""The trained models on the test split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from features.functions import plugin_features
from hep_core.plugin_functions import code_module
from models.errors import UndefinedMetricError
from models.evaluation.own_figures import OWN_FIGURES
from models.evaluation.rounding import with_error
from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.reporting.summary import about_data
from pipeline.runs.outputs import COUNTERS
from pipeline.runs.version import Version
from pipeline.stages.base import Check, Context, Result, Stage, StageInputs
from pipeline.stages.data_events import data_file_records, find_data_files, scored_data
from pipeline.stages.evaluation_task import task_of_run
from pipeline.stages.input_files import files_read, identities
from pipeline.stages.shifted_events import shifted_test_events
from pipeline.terminal.evaluation_tables import evaluation_tables
from pipeline.terminal.progress import Bar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from features.dataset import FeatureDataset
    from models.evaluation.data_comparison import DataEvents
    from models.evaluation.evaluation_task import EvaluationTask
    from models.prediction import Candidate


class Evaluate(Stage):
    """Predicts, measures and plots; see `models.evaluation.evaluation`."""

    name: ClassVar[str] = "evaluate"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ingest": ("events/*", "counters/samples", "counters/weights"),
        "features": ("dataset.json", "scaler.json", "train/*", "test/*", COUNTERS),
        "train": ("*/model/*", "*/metrics/rank-0.jsonl"),
    }

    def entry_points(self, config: Config) -> tuple[str, ...]:
        """Return this stage, the networks, the figures of plugins, and the code for other events.

        Other events are data and events with shifted energies, whose features are computed here.
        """
        figures = {code_module(figure.draw) for figure in OWN_FIGURES.values()}
        modules = [
            f"pipeline.stages.{self.name}",
            "pipeline.runs.trained_models",
            *config.model.modules,
            *sorted(figures),
        ]
        if config.evaluate.data:
            modules.append("pipeline.scoring")
        if _computes_features(config):
            plugins = {code_module(feature.function) for feature in plugin_features().values()}
            modules += sorted(plugins)
        return tuple(modules)

    def config_items(self, config: Config) -> dict[str, Any]:
        """Return the config values that the evaluation depends on, by dotted key.

        These are the section `evaluate`, what normalises the samples, the seed, the columns and
        classes of `train.decorrelate`, and the texts of the section `report` that stand on plots.
        """
        items = flat_items(config.report, "report")
        del items["report.title"], items["report.rates_note"]
        items |= flat_items(config.evaluate, "evaluate")
        # Without a name the signal is the one that the classes imply.
        items["evaluate.signal"] = config.signals
        # The result also depends on whether the luminosity of the events is stated, whatever its
        # value.
        items["evaluate.luminosity"] = config.trigger_luminosity
        # The files themselves are inputs.
        del items["evaluate.data"]
        items |= config.normalisation()
        for sample in config.samples:
            error = sample.cross_section_error_pb
            items[f"samples.{sample.name}.cross_section_error_pb"] = error
        items["train.seed"] = config.train.seed
        columns, classes = config.decorrelated()
        if columns:
            items["train.decorrelate"] = {"from": columns, "classes": classes}
        return items

    def find_inputs(self, config: Config, current: Version | None, console: Console) -> StageInputs:
        """Find and check the ROOT files of `evaluate.data`, and identify them by their UUIDs.

        Files that the version in use has checked in the same way, and that are unchanged, are not
        opened again.
        """
        from ingestion.changes import carry_over_revisions

        if not config.evaluate.data:
            return StageInputs({})

        def say(text: str) -> None:
            console.print(f"  {text}", highlight=False, markup=False)

        earlier_infos = files_read(current)
        # What another code or setting found in a file says nothing about it now.
        is_read_alike = current is not None and self._is_read_alike(config, current)
        files = find_data_files(config, say, known=earlier_infos if is_read_alike else [])
        # An unchanged file keeps its digest and revision, so that it is the same input as before.
        infos = carry_over_revisions(files.infos, earlier_infos)
        return StageInputs(identities(infos), infos, [info._asdict() for info in infos])

    def _is_read_alike(self, config: Config, current: Version) -> bool:
        """Return whether a version read the data by the same code and settings as now."""
        if not current.ran_same_code(*self.entry_points(config)):
            return False
        recorded = current.config
        same_particles = recorded.features.get("particles") == config.features.particles
        return same_particles and recorded.ingest == config.ingest.model_dump(mode="json")

    def run(self, context: Context) -> Result:
        """Predict the test split with each network, and write predictions, metrics and plots.

        All networks must have the classes and the definitions of features of the dataset.
        """
        from features.dataset import FeatureDataset
        from pipeline.runs.plugin_code import check_plugin_code, check_same_code
        from pipeline.runs.trained_models import check_definitions, trained_models
        from training.threads import use_threads

        config = context.config
        use_threads(config.train.threads)
        dataset = FeatureDataset.load(context.upstream["features"].folder)
        models = trained_models(context.upstream["train"], dataset.classes)
        check_definitions(models, dataset.definitions, dataset.reading)
        check_plugin_code(models, dataset)
        if _computes_features(config):
            check_same_code("the computation of the test features", dataset.plugin_code)
        metrics = evaluate_models(
            config,
            context.console,
            [model.candidate for model in models],
            task_of_run(config, dataset.classes, context.upstream),
            dataset.files("test"),
            context.out_dir,
            reference=dataset if config.evaluate.reference else None,
            train=dataset.files("train"),
            shifted=shifted_test_events(context, dataset),
            # A function, since the boosted trees, which are fitted later, score the data too.
            data=lambda candidates: scored_data(context, candidates, dataset),
        )
        num_rows = dataset.num_rows("test")
        checks = [
            Check(
                f"{name}: events predicted = events in the test split",
                run["num_events"] == num_rows,
                f"{num_rows}",
            )
            for name, run in metrics["runs"].items()
        ]
        return Result(
            summary=_summary(metrics),
            counters=metrics,
            inputs=data_file_records(context.inputs.details or []),
            checks=checks,
        )


def _computes_features(config: Config) -> bool:
    """Return whether features are computed here, of data or of events with shifted energies."""
    return bool(config.evaluate.data) or any(dict(config.evaluate.systematics).values())


def _summary(metrics: Mapping[str, Any]) -> str:
    """Return the line for the terminal: the accuracy of each model with its error."""
    phrases = []
    for model, run in metrics["runs"].items():
        accuracy = run["accuracy"]
        phrases.append(f"{model} {with_error(accuracy['value'], accuracy['error'], ' +- ')}")
    return f"accuracy {', '.join(phrases)}"


def evaluate_models(
    config: Config,
    console: Console,
    candidates: Sequence[Candidate],
    task: EvaluationTask,
    test: Sequence[Path],
    out_dir: Path,
    *,
    reference: FeatureDataset | None,
    train: Sequence[Path],
    shifted: Mapping[str, NDArray[np.float32]] | None = None,
    data: Callable[[Sequence[Candidate]], dict[str, DataEvents]] = lambda _: {},
) -> dict[str, Any]:
    """Evaluate models on the same events, print the tables, and return the metrics.

    Args:
        config: The config.
        console: Gets the tables and notes.
        candidates: The models.
        task: The settings of the evaluation: signal, rates, working points.
        test: Feature files of the events to evaluate.
        out_dir: Gets predictions, metrics and plots.
        reference: The dataset on whose training split boosted trees are fitted as a further model;
            None for no such model.
        train: Feature files of the training split.
        shifted: High-level features of the test events with shifted energies, by shift.
        data: Returns the data events with their probabilities, by model, for some models.

    Returns:
        The metrics as JSON content; `runs` are those of each model.
    """
    from models.evaluation.evaluation import evaluate

    def say(text: str) -> None:
        console.print(f"  {text}", highlight=False, markup=False)

    # Without a setting, the signal follows from the names of the classes, which the line says.
    implied = "" if config.evaluate.signal else " (by its name; evaluate.signal is not set)"
    say(f"signal: {task.signal.description}{implied}, against {task.mixture.description}")
    with Bar(console, "evaluate", "events") as bar:
        if reference is not None:
            bar(0, 0, "training boosted trees")
            # The trees show what simple means reach, and count as one more model.
            trees = _fit_boosted_trees(reference, config.train.seed, say)
            if trees is not None:
                candidates = [*candidates, trees]
        metrics = evaluate(
            candidates,
            test,
            train,
            task,
            out_dir,
            train_events=config.evaluate.train_events,
            on_progress=bar,
            shifted=shifted,
            data=data(candidates),
        )
    for table in evaluation_tables(metrics):
        console.print(table)
    sentence = about_data(metrics)
    if sentence:
        say(sentence)
    for model, run in metrics["runs"].items():
        for sentence in run["not_measurable"]:
            say(f"note: {model}: {sentence}")
    return metrics


def _fit_boosted_trees(
    dataset: FeatureDataset, seed: int, say: Callable[[str], None]
) -> Candidate | None:
    """Fit boosted trees to the high-level features; return None, with a note, if it fails."""
    from models.evaluation.boosted_trees import boosted_trees

    try:
        return boosted_trees(
            dataset.files("train"), dataset.classes, dataset.class_weights, seed=seed, report=say
        )
    except UndefinedMetricError as error:
        say(f"note: no boosted trees as a reference: {error}")
        return None
