"""The settings of an evaluation: classes, rates before the classifier, and the text of plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from features.settings import FeatureSettings
from pipeline.config import Config
from pipeline.errors import MissingInputError, nearest
from pipeline.reporting.cutflow import Step, cutflow, labels_by_sample
from pipeline.runs.counters import FeaturesCounters, IngestCounters
from pipeline.runs.version import Version

if TYPE_CHECKING:
    from models.evaluation.bootstrap import Estimate
    from models.evaluation.evaluation_task import EvaluationTask
    from models.evaluation.intervals import Efficiency
    from models.evaluation.rates import Rates
    from pipeline.reporting.origin import Files

#: Conversion from [1/(cm2 s)] to [1/(pb s)].
_PB_PER_CM2: Final = 1e-36


class SelectionRates(NamedTuple):
    """The rates of the samples before the classifier, after the selection, or why there are none.

    Neither are there rates nor reasons if no sample of the config has a cross-section.
    """

    known: Rates | None = None
    reasons: Sequence[str] = ()
    """A sentence for each reason why they are unknown."""


def task_of_run(
    config: Config, classes: list[str], upstream: Mapping[str, Version]
) -> EvaluationTask:
    """Return the settings of an evaluation of the events of a run.

    Args:
        config: The config.
        classes: The classes that the features state.
        upstream: The versions of `ingest` and `features` in use, by stage.
    """
    files = upstream["ingest"].manifest.inputs
    rates = rates_of_run(config, upstream)
    return make_task(config, classes, rates, feature_settings(upstream["features"]), files)


def make_task(
    config: Config,
    classes: list[str],
    rates: SelectionRates,
    selection: FeatureSettings,
    files: Files,
) -> EvaluationTask:
    """Return the settings of an evaluation.

    Args:
        config: The config.
        classes: The classes that the features state.
        rates: Rates of the samples before the classifier.
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
    if rates.known is not None:
        # From the rates at one luminosity to the events of another.
        scale = selection.integrated_luminosity / _luminosity_of_rates(config, selection)
        expected_events = {
            label: rates.known.of_class(label) * scale for label in range(len(classes))
        }
    decorrelated_columns, decorrelated_classes = config.decorrelated()
    return EvaluationTask(
        classes=classes,
        signals=[classes.index(name) for name in config.signals],
        working_points=config.evaluate.working_points,
        rates=rates.known,
        reasons_without_rates=rates.reasons,
        labels=plot_labels(config.model_dump(mode="json"), files),
        seed=config.train.seed,
        by_rate=config.evaluate.fractions == "rate",
        background_points=config.evaluate.background_working_points,
        expected=expected_events,
        luminosity=selection.integrated_luminosity,
        uncertainty=config.evaluate.background_uncertainty,
        blind_above=None if config.evaluate.unblind else config.evaluate.blind_above,
        edges=kinematic_edges(selection.min_lepton_pt, selection.max_lepton_abs_eta),
        independent_of=decorrelated_columns,
        independent_within=[classes.index(name) for name in decorrelated_classes],
    )


def feature_settings(features: Version) -> FeatureSettings:
    """Return the settings with which a version of `features` was made."""
    return FeatureSettings.model_validate(features.config.features)


def rates_of_run(config: Config, upstream: Mapping[str, Version]) -> SelectionRates:
    """Return the rates of the samples after the selection, with their errors.

    A rate is cross-section times luminosity times the efficiency of the selection. In an offline
    analysis it is a number of events. See `rates_of_cutflow`.

    Args:
        config: The config, with cross-sections and luminosity.
        upstream: The versions of `ingest` and `features` in use, by stage.

    Returns:
        The rates, or why there are none: a cross-section is missing, or ingest had other samples.
    """
    if not _asks_for_rates(config):
        return SelectionRates()
    ingested, selected = upstream["ingest"], upstream["features"]
    recorded_config = {
        "samples": ingested.config.samples,
        "ingest": ingested.config.ingest,
        "classes": selected.config.classes,
        "features": selected.config.features,
    }
    ingest_counters = ingested.counters(IngestCounters)
    steps = cutflow(ingest_counters, selected.counters(FeaturesCounters), recorded_config)
    rates = rates_of_cutflow(config, steps, feature_settings(selected))
    if rates.known is None:
        return rates
    # The events have the labels that they were ingested with.
    labels = labels_by_sample(ingested.config.samples)
    return SelectionRates(rates.known._replace(labels=labels))


def rates_of_cutflow(
    config: Config, steps: Sequence[Step], selection: FeatureSettings
) -> SelectionRates:
    """Return the rates of the samples of a config after the last step of their cutflow.

    A rate is the cross-section times the luminosity times the fraction of weights that pass all
    steps. Its error is that of the fraction; the cross-section has its own. The rate of a sample
    whose passing weights add up to 0 or less is 0, with an upper limit. In an offline analysis,
    rates are numbers of events.

    Args:
        config: The config, with cross-sections and luminosity.
        steps: The cutflow by sample; a step holds the fraction of weights that pass, with an
            interval from `low` to `high`.
        selection: Settings of the features, with the integrated luminosity.

    Returns:
        The rates, or why there are none: a cross-section is missing, the cutflow has other samples
        than the config, or the weights of a sample add up to 0 or less.
    """
    from models.evaluation.rates import CrossSection, Rates

    luminosity = _luminosity_of_rates(config, selection)
    shares = steps[-1].weighted
    rates = {}
    cross_sections = {}
    for sample in config.samples:
        cross_section = sample.cross_section_pb
        for part in sample.by_label():
            share = shares.get(part.name)
            if cross_section is not None and share is not None:
                rates[part.name] = _rate_of_share(share, cross_section * luminosity)
                relative_error = sample.cross_section_error_pb / cross_section
                cross_sections[part.name] = CrossSection(sample.name, relative_error)
    labels = labels_by_sample(sample.model_dump() for sample in config.samples)
    if not labels.keys() == rates.keys() == shares.keys():
        return SelectionRates(reasons=_reasons_without_rates(config, shares))
    are_events = config.trigger_luminosity is None
    return SelectionRates(Rates(rates, labels, are_events, cross_sections))


def _reasons_without_rates(config: Config, shares: Mapping[str, Efficiency | None]) -> list[str]:
    """List a sentence for each reason why samples have no rates; empty without cross-sections.

    Args:
        config: The config.
        shares: The share of the weight of each sample that passes; None if it is undefined.
    """
    if not _asks_for_rates(config):
        return []
    sentences = missing_cross_sections(config)
    without_rates = f"there are no {_quantity(config)}"
    names = labels_by_sample(sample.model_dump() for sample in config.samples)
    new_names = [name for name in names if name not in shares]
    for name in shares:
        if name not in names:
            advice = nearest(name, new_names) if new_names else ""
            sentences.append(
                f"{without_rates}: sample {name} was ingested, and is not in the config any "
                f"more.{advice} Call it as before, or run `python -m pipeline run`."
            )
    if new_names:
        sentences.append(
            f"{without_rates}: ingest did not read {', '.join(new_names)} of the config. Run "
            "`python -m pipeline run`."
        )
    for name, share in shares.items():
        if share is None:
            sentences.append(
                f"{without_rates}: the weights of sample {name} in the files add up to 0 or less. "
                "Add files of it."
            )
    return sentences


def _asks_for_rates(config: Config) -> bool:
    """Return whether a sample of the config has a cross-section."""
    return any(sample.cross_section_pb is not None for sample in config.samples)


def missing_cross_sections(config: Config) -> list[str]:
    """List a sentence on the samples without a cross-section; empty if all or none have one."""
    names = [sample.name for sample in config.samples if sample.cross_section_pb is None]
    if not (names and _asks_for_rates(config)):
        return []
    sentence = (
        f"there are no {_quantity(config)}: the config has no cross_section_pb of "
        f"{', '.join(names)}. State that of all samples, or of none."
    )
    return [sentence]


def _quantity(config: Config) -> str:
    """Return what cross-sections give: rates of a trigger, or numbers of events."""
    return "numbers of events" if config.trigger_luminosity is None else "rates"


def _rate_of_share(passed: Efficiency, produced: float) -> Estimate:
    """Return the rate of the share that passes, from the rate that is produced.

    The error is that of the share. A share of 0 or less is a rate of 0 with an upper limit.
    """
    from models.evaluation.bootstrap import Estimate

    if passed.value <= 0:
        return Estimate(0.0, produced * passed.high)
    # Half of the interval is one standard error.
    return Estimate(produced * passed.value, produced * (passed.high - passed.low) / 2)


def _luminosity_of_rates(config: Config, selection: FeatureSettings) -> float:
    """Return the factor by which a cross-section [pb] becomes a rate or a number of events.

    For a trigger this is its luminosity [1/(pb s)]. In an offline analysis, without one, it is
    the integrated luminosity [1/pb].
    """
    if config.trigger_luminosity is None:
        return selection.integrated_luminosity
    return config.trigger_luminosity * _PB_PER_CM2
