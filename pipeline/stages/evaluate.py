"""The trained models on the test split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from features.functions import needed_branches, plugin_features
from features.settings import FeatureSettings
from hep_core.plugin_functions import code_module
from models.errors import UndefinedMetricError
from models.evaluation.own_figures import OWN_FIGURES
from models.evaluation.rounding import with_error
from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.errors import MissingInputError
from pipeline.reporting.cutflow import Step, cutflow, labels_by_sample
from pipeline.reporting.summary import about_data
from pipeline.runs.outputs import COUNTERS
from pipeline.runs.version import Version
from pipeline.stages.base import Check, Context, Result, Stage, StageInputs
from pipeline.stages.input_files import files_read, identities
from pipeline.terminal.progress import Bar
from pipeline.terminal.tables import evaluation_tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from features.dataset import FeatureDataset
    from ingestion.file_info import FileInfo
    from ingestion.settings import IngestSettings
    from models.evaluation.data_comparison import DataEvents
    from models.evaluation.evaluation_task import EvaluationTask
    from models.evaluation.rates import Rates
    from models.prediction import Candidate
    from pipeline.reporting.origin import Files

#: Conversion from [1/(cm2 s)] to [1/(pb s)].
_PB_PER_CM2 = 1e-36


class Evaluate(Stage):
    """Predicts, measures and plots; see `models.evaluation.evaluation`."""

    name: ClassVar[str] = "evaluate"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ingest": ("events/*", "counters/samples", "counters/weights"),
        "features": ("dataset.json", "scaler.json", "train/*", "test/*", COUNTERS),
        "train": ("*/model/*", "*/metrics/rank-0.jsonl"),
    }

    def entry_points(self, config: Config) -> tuple[str, ...]:
        """Also the networks and what reads them, own figures, and what makes features of data and shifted events."""
        modules = [
            f"pipeline.stages.{self.name}",
            "pipeline.runs.trained_models",
            *config.model.modules,
        ]
        modules += sorted({code_module(figure.draw) for figure in OWN_FIGURES.values()})
        if config.evaluate.data:
            modules.append("pipeline.scoring")
        if config.evaluate.data or any(dict(config.evaluate.systematics).values()):
            modules += sorted(
                {code_module(feature.function) for feature in plugin_features().values()}
            )
        return tuple(modules)

    def config_items(self, config: Config) -> dict[str, Any]:
        """The section `evaluate`, normalisation, and the text of the plots."""
        items = flat_items(config.report, "report")
        for words in ("title", "rates_note"):
            del items[f"report.{words}"]
        seed = {"train.seed": config.train.seed}
        errors = {
            f"samples.{each.name}.cross_section_error_pb": each.cross_section_error_pb
            for each in config.samples
        }
        # Without a name the signal is the one that the classes imply.
        ours = flat_items(config.evaluate, "evaluate") | {"evaluate.signal": config.signals}
        # It also depends on whether that of the events is stated, whatever its value.
        ours["evaluate.luminosity"] = config.trigger_luminosity
        # The files themselves are inputs.
        del ours["evaluate.data"]
        return {**items, **ours, **config.normalisation(), **errors, **seed}

    def find_inputs(self, config: Config, current: Version | None, console: Console) -> StageInputs:
        """The files of `evaluate.data`, as `ingest` knows those of samples."""
        from ingestion.changes import carry_over_revisions

        if not config.evaluate.data:
            return StageInputs({})

        def say(words: str) -> None:
            console.print(f"  {words}", highlight=False, markup=False)

        settings = config.ingest.model_copy(update={"pass_through": needed_branches()})
        earlier = files_read(current)
        known = earlier if self._reads_alike(config, current) else []
        infos = _data_files(
            config, settings, say, needs_particles=config.features.particles, known=known
        )
        infos = carry_over_revisions(infos, earlier)
        return StageInputs(identities(infos), infos, [info._asdict() for info in infos])

    def _reads_alike(self, config: Config, current: Version | None) -> bool:
        """Whether the data of a version were read by the code and the settings of now."""
        if current is None or not current.ran_same_code(*self.entry_points(config)):
            return False
        before = current.config
        ingest = config.ingest.model_dump(mode="json")
        same_particles = before.features.get("particles") == config.features.particles
        return same_particles and before.ingest == ingest

    def run(self, context: Context) -> Result:
        """Predict the test split and write predictions, metrics and plots."""
        from features.dataset import FeatureDataset
        from pipeline.runs.trained_models import check_definitions, trained_models
        from training.threads import use_threads

        config = context.config
        use_threads(config.train.threads)
        dataset = FeatureDataset.load(context.upstream["features"].folder)
        found = trained_models(context.upstream["train"], dataset.classes)
        check_definitions(found, dataset.definitions)
        task = task_of(config, dataset.classes, context.upstream)
        metrics = evaluated(
            config,
            context.console,
            [each.candidate for each in found],
            task,
            dataset.files("test"),
            context.out_dir,
            reference=dataset if config.evaluate.reference else None,
            train=dataset.files("train"),
            shifted=_shifted(context, dataset),
            data=lambda candidates: _data(context, candidates, dataset),
        )
        expected = dataset.num_rows("test")
        return Result(
            summary=_accuracies_in_words(metrics),
            counters=metrics,
            inputs=_files_of_manifest(context.inputs.details or []),
            checks=[
                Check(
                    f"{name}: events predicted = events in the test split",
                    each["num_events"] == expected,
                    f"{expected}",
                )
                for name, each in metrics["runs"].items()
            ],
        )


def _accuracies_in_words(metrics: Mapping[str, Any]) -> str:
    texts = []
    for model, run in metrics["runs"].items():
        accuracy = run["accuracy"]
        texts.append(f"{model} {with_error(accuracy['value'], accuracy['error'], ' +- ')}")
    return f"accuracy {', '.join(texts)}"


def evaluated(
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
    """Evaluate models, and boosted trees fitted to the training split of the `reference`; prints the tables."""
    from models.evaluation.evaluation import evaluate

    def say(words: str) -> None:
        console.print(f"  {words}", highlight=False, markup=False)

    implied = "" if config.evaluate.signal else " (by its name; evaluate.signal is not set)"
    say(f"signal: {task.signal.description}{implied}, against {task.mixture.description}")
    with Bar(console, "evaluate", "events") as bar:
        if reference is not None:
            from models.evaluation.boosted_trees import boosted_trees

            bar(0, 0, "training boosted trees")
            files, weights = reference.files("train"), reference.class_weights
            try:
                trees = boosted_trees(
                    files, reference.classes, weights, seed=config.train.seed, report=say
                )
            except UndefinedMetricError as error:
                say(f"note: no boosted trees as a reference: {error}")
            else:
                candidates = [*candidates, trees]
        metrics = evaluate(
            candidates, test, train, task, out_dir,
            train_events=config.evaluate.train_events, on_progress=bar, shifted=shifted, data=data(candidates),
        )  # fmt: skip
    for table in evaluation_tables(metrics):
        console.print(table)
    if sentence := about_data(metrics):
        say(sentence)
    for model, run in metrics["runs"].items():
        for sentence in run["not_measurable"]:
            say(f"note: {model}: {sentence}")
    return metrics


def _data_files(
    config: Config,
    settings: IngestSettings,
    say: Callable[[str], None],
    *,
    needs_particles: bool,
    known: Sequence[FileInfo] = (),
) -> list[FileInfo]:
    """The checked files of `evaluate.data`; `settings` are those by which they are read, and `known` ones were."""
    from ingestion.files import find_input_files
    from ingestion.settings import NO_WEIGHT, SampleSettings

    sample = SampleSettings(name="data", label=0, files=config.evaluate.data, weight=NO_WEIGHT)
    # Without a file that cannot be read, the luminosity would be another.
    by_path = {info.path: info for info in known}
    return find_input_files(
        [sample], settings, say, strict=True, known=by_path, needs_particles=needs_particles
    ).infos


def _files_of_manifest(infos: Sequence[FileInfo]) -> list[dict[str, Any]]:
    """Files that were read, with the digests by which a touched file is known to be unchanged."""
    from hep_core.storage import retry_remote
    from ingestion.changes import content_digest, has_changed_since_check

    files = []
    for info in infos:
        digest = info.digest or retry_remote(content_digest, info.path)
        files.append(
            info._replace(digest="" if has_changed_since_check(info) else digest)._asdict()
        )
    return files


def _shifted(context: Context, dataset: FeatureDataset) -> dict[str, NDArray[np.float32]]:
    """The shifted high-level features of the test events by name of the shift; empty without systematics."""
    from features.kernels import EnergyScales
    from features.schema import identities
    from features.shifts import shifted_features

    sizes = context.config.evaluate.systematics
    shifts = {
        f"{name} {100 * shift:+g} %": EnergyScales(**{key: 1 + shift})
        for name, key, size in (
            ("jet scale", "jets", sizes.jet_scale),
            ("MET scale", "met", sizes.met_scale),
        )
        for shift in ((size, -size) if size else ())
    }
    if not shifts:
        return {}
    ingested = context.upstream["ingest"]
    parts = [
        each.location(ingested.folder) for each in ingested.files if each.path.startswith("events/")
    ]
    wanted = identities(dataset.files("test"))
    return dict(
        zip(
            shifts,
            shifted_features(parts, wanted, _selection(context), list(shifts.values())),
            strict=True,
        )
    )


def _data(
    context: Context, candidates: Sequence[Candidate], dataset: FeatureDataset
) -> dict[str, DataEvents]:
    """The selected events of `evaluate.data` with the probabilities of each model, by its name; empty without files."""
    import numpy as np

    from ingestion.copies import event_keys
    from ingestion.settings import IngestSettings
    from models.evaluation.data_comparison import DataEvents
    from pipeline.scoring import EventClassifier, blocks_of

    config, selection = context.config, _selection(context)
    if not config.evaluate.data:
        return {}
    reading = IngestSettings.model_validate({**dataset.reading, "pass_through": needed_branches()})
    is_read_alike = reading == config.ingest.model_copy(update={"pass_through": needed_branches()})
    known = context.inputs.details if is_read_alike else []
    files = _data_files(
        config, reading, context.say, needs_particles=selection.particles, known=known
    )
    scorers = [
        EventClassifier(each.name, each.model, dataset.classes, reading, selection)
        for each in candidates
    ]
    hlf: list[NDArray[np.float32]] = []
    keys: list[NDArray[np.uint64]] = []
    scores: list[list[NDArray[np.float32]]] = [[] for _ in scorers]
    for raw, kept, block in blocks_of(files, reading, selection):
        hlf.append(block.hlf)
        selected = kept.table["entry"].to_numpy()[block.selected] - raw.entries[0]
        keys.append(event_keys(raw.scalars, raw.collections)[selected])
        for scorer, found in zip(scorers, scores, strict=True):
            found.append(scorer.of_block(block))
    num_entries = sum(info.entries for info in files)
    if not sum(map(len, hlf)):
        raise MissingInputError(
            "evaluate.data: no event of these files passes the selection. Give others, or none."
        )
    features, copies = (
        np.concatenate(hlf),
        _copies(context.upstream["ingest"], np.concatenate(keys)),
    )
    for where, number in copies.items():
        if number:
            context.say(
                f"note: {number} events of evaluate.data are copies of others in the {where}"
            )
    return {
        each.name: DataEvents(
            features, np.concatenate(found).astype(np.float64), copies, len(files), num_entries
        )
        for each, found in zip(candidates, scores, strict=True)
    }


def _copies(ingested: Version, keys: NDArray[np.uint64]) -> dict[str, int]:
    """How many events of the data, by their keys, the data or the simulation hold too; see `ingestion.copies`."""
    import numpy as np

    from ingestion.copies import read_keys

    keys = keys[keys != 0]
    simulated = [
        read_keys(each.location(ingested.folder))
        for each in ingested.files
        if each.path.startswith("keys/")
    ]
    num_simulated = sum(np.isin(each, keys).sum() for each in simulated)
    return {"data": len(keys) - len(np.unique(keys)), "simulation": int(num_simulated)}


def _selection(context: Context) -> FeatureSettings:
    """The settings with which the features were made."""
    return FeatureSettings.model_validate(context.upstream["features"].config.features)


def make_task(
    config: Config,
    classes: list[str],
    rates: Rates | None,
    selection: FeatureSettings,
    files: Files,
) -> EvaluationTask:
    """The settings of an evaluation.

    `rates` are those before the classifier; `files` are the input files, as the manifest of ingest holds them.
    """
    from models.evaluation.curves import kinematic_edges
    from models.evaluation.evaluation_task import EvaluationTask
    from pipeline.reporting.origin import plot_labels

    if classes != config.classes:
        raise MissingInputError(
            f"the features were made for the classes {classes}; the config has {config.classes} now. Run `python -m "
            f"pipeline features` first, or `python -m pipeline run` for all, with the same options."
        )
    expected = None
    if rates is not None:
        # From the rates at one luminosity to the events of another.
        factor = selection.integrated_luminosity / _luminosity_of_rates(config, selection)
        expected = {label: rates.of_class(label) * factor for label in range(len(classes))}
    return EvaluationTask(
        classes=classes,
        signals=[classes.index(name) for name in config.signals],
        working_points=config.evaluate.working_points,
        rates=rates,
        labels=plot_labels(config.model_dump(mode="json"), files),
        seed=config.train.seed,
        by_rate=config.evaluate.fractions == "rate",
        background_points=config.evaluate.background_working_points,
        expected=expected,
        luminosity=selection.integrated_luminosity,
        uncertainty=config.evaluate.background_uncertainty,
        blind_above=None if config.evaluate.unblind else config.evaluate.blind_above,
        edges=kinematic_edges(selection.min_lepton_pt, selection.max_lepton_abs_eta),
    )


def task_of(config: Config, classes: list[str], upstream: Mapping[str, Version]) -> EvaluationTask:
    """The settings of an evaluation of the current features, which are of some classes."""
    selection = FeatureSettings.model_validate(upstream["features"].config.features)
    files = upstream["ingest"].manifest.inputs
    return make_task(config, classes, rates_before(config, upstream), selection, files)


def rates_before(config: Config, upstream: Mapping[str, Version]) -> Rates | None:
    """Rates of the samples after the selection; None without all cross-sections or a positive sum of weights.

    Their errors are those of the efficiency of the selection and of the cross-section.
    """
    ingested, selected = upstream["ingest"], upstream["features"]
    labels = labels_by_sample(ingested.config.samples)
    known = {
        part.name: part.cross_section_pb for sample in config.samples for part in sample.by_label()
    }
    # A sample may have been taken out of the config, and its events are still there.
    if any(known.get(name) is None for name in labels):
        return None
    described = {
        "samples": ingested.config.samples,
        "ingest": ingested.config.ingest,
        "classes": selected.config.classes,
        "features": selected.config.features,
    }
    selection = FeatureSettings.model_validate(selected.config.features)
    steps = cutflow(ingested.manifest.counters, selected.manifest.counters, described)
    found = rates_behind_cutflow(config, steps, selection)
    # The events have the labels of then.
    return found and found._replace(labels=labels)


def rates_behind_cutflow(
    config: Config, steps: Sequence[Step], selection: FeatureSettings
) -> Rates | None:
    """Rates of the samples of a config after the last step of their cutflow; None as for `rates_before`.

    Those of an offline analysis are numbers of events.
    """
    from models.evaluation.bootstrap import Estimate
    from models.evaluation.rates import Rates

    per_pb = _luminosity_of_rates(config, selection)
    rates = {}
    for sample in (part for each in config.samples for part in each.by_label()):
        passed = steps[-1].weighted.get(sample.name)
        if sample.cross_section_pb is None or passed is None or passed.value <= 0:
            return None
        size, error = (
            each * per_pb for each in (sample.cross_section_pb, sample.cross_section_error_pb)
        )
        of_selection = size * (passed.high - passed.low) / 2
        rates[sample.name] = Estimate(
            size * passed.value, math.hypot(of_selection, error * passed.value)
        )
    labels = labels_by_sample(sample.model_dump() for sample in config.samples)
    return Rates(rates, labels, are_events=config.trigger_luminosity is None)


def _luminosity_of_rates(config: Config, selection: FeatureSettings) -> float:
    """Luminosity by which a cross-section becomes a rate [1/(pb s)], or in an offline analysis events [1/pb]."""
    if config.trigger_luminosity is None:
        return selection.integrated_luminosity
    return config.trigger_luminosity * _PB_PER_CM2
