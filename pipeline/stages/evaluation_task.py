"""The settings of an evaluation: classes, rates before the classifier, and the text of plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from features.settings import FeatureSettings
from pipeline.config import Config
from pipeline.errors import MissingInputError
from pipeline.reporting.cutflow import Step, cutflow, labels_by_sample
from pipeline.runs.counters import FeaturesCounters, IngestCounters
from pipeline.runs.version import Version

if TYPE_CHECKING:
    from models.evaluation.evaluation_task import EvaluationTask
    from models.evaluation.rates import Rates
    from pipeline.reporting.origin import Files

#: Conversion from [1/(cm2 s)] to [1/(pb s)].
_PB_PER_CM2: Final = 1e-36


def task_of_run(
    config: Config, classes: list[str], upstream: Mapping[str, Version]
) -> EvaluationTask:
    """The settings of an evaluation of the current features, which are of some classes."""
    files = upstream["ingest"].manifest.inputs
    rates = rates_of_run(config, upstream)
    return make_task(config, classes, rates, feature_settings(upstream["features"]), files)


def make_task(
    config: Config,
    classes: list[str],
    rates: Rates | None,
    selection: FeatureSettings,
    files: Files,
) -> EvaluationTask:
    """The settings of an evaluation.

    Args:
        config: The config.
        classes: Classes of the features.
        rates: Rates before the classifier.
        selection: Settings of the features.
        files: The input files, as the manifest of ingest holds them.

    Raises:
        MissingInputError: The config has other classes.
    """
    from models.evaluation.curves import kinematic_edges
    from models.evaluation.evaluation_task import EvaluationTask
    from pipeline.reporting.origin import plot_labels

    if classes != config.classes:
        raise MissingInputError(
            f"the features were made for the classes {classes}; the config has {config.classes} "
            f"now. Run `python -m pipeline features` first, or `python -m pipeline run` for all, "
            f"with the same options."
        )
    expected_events = None
    if rates is not None:
        # From the rates at one luminosity to the events of another.
        scale = selection.integrated_luminosity / _luminosity_of_rates(config, selection)
        expected_events = {label: rates.of_class(label) * scale for label in range(len(classes))}
    return EvaluationTask(
        classes=classes,
        signals=[classes.index(name) for name in config.signals],
        working_points=config.evaluate.working_points,
        rates=rates,
        labels=plot_labels(config.model_dump(mode="json"), files),
        seed=config.train.seed,
        by_rate=config.evaluate.fractions == "rate",
        background_points=config.evaluate.background_working_points,
        expected=expected_events,
        luminosity=selection.integrated_luminosity,
        uncertainty=config.evaluate.background_uncertainty,
        blind_above=None if config.evaluate.unblind else config.evaluate.blind_above,
        edges=kinematic_edges(selection.min_lepton_pt, selection.max_lepton_abs_eta),
    )


def feature_settings(features: Version) -> FeatureSettings:
    """The settings with which features were made."""
    return FeatureSettings.model_validate(features.config.features)


def rates_of_run(config: Config, upstream: Mapping[str, Version]) -> Rates | None:
    """Rates of the samples after the selection.

    Their errors are those of the efficiency of the selection and of the cross-section.

    Returns:
        None without all cross-sections or a positive sum of weights.
    """
    ingested, selected = upstream["ingest"], upstream["features"]
    labels = labels_by_sample(ingested.config.samples)
    cross_sections = {
        part.name: part.cross_section_pb for sample in config.samples for part in sample.by_label()
    }
    # A sample may have been taken out of the config, and its events are still there.
    if any(cross_sections.get(name) is None for name in labels):
        return None
    recorded_config = {
        "samples": ingested.config.samples,
        "ingest": ingested.config.ingest,
        "classes": selected.config.classes,
        "features": selected.config.features,
    }
    ingest_counters = ingested.counters(IngestCounters)
    steps = cutflow(ingest_counters, selected.counters(FeaturesCounters), recorded_config)
    rates = rates_of_cutflow(config, steps, feature_settings(selected))
    # The events have the labels that they were ingested with.
    return None if rates is None else rates._replace(labels=labels)


def rates_of_cutflow(
    config: Config, steps: Sequence[Step], selection: FeatureSettings
) -> Rates | None:
    """Rates of the samples of a config after the last step of their cutflow.

    Those of an offline analysis are numbers of events.

    Returns:
        None as for `rates_of_run`.
    """
    from models.evaluation.bootstrap import Estimate
    from models.evaluation.rates import Rates

    luminosity = _luminosity_of_rates(config, selection)
    rates = {}
    for part in (part for sample in config.samples for part in sample.by_label()):
        passed = steps[-1].weighted.get(part.name)
        if part.cross_section_pb is None or passed is None or passed.value <= 0:
            return None
        produced = part.cross_section_pb * luminosity
        produced_error = part.cross_section_error_pb * luminosity
        selection_error = produced * (passed.high - passed.low) / 2
        error = math.hypot(selection_error, produced_error * passed.value)
        rates[part.name] = Estimate(produced * passed.value, error)
    labels = labels_by_sample(sample.model_dump() for sample in config.samples)
    return Rates(rates, labels, are_events=config.trigger_luminosity is None)


def _luminosity_of_rates(config: Config, selection: FeatureSettings) -> float:
    """Luminosity by which a cross-section becomes a rate [1/(pb s)].

    In an offline analysis, it becomes a number of events, by the integrated luminosity [1/pb].
    """
    if config.trigger_luminosity is None:
        return selection.integrated_luminosity
    return config.trigger_luminosity * _PB_PER_CM2
