"""Warnings about the numbers of the report: inputs, data, models, stale stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ingestion.file_info import BadFile, FileInfo, WaitingFile
from ingestion.notes import notes
from ingestion.settings import SampleSettings
from pipeline.reporting import summary
from pipeline.reporting.cutflow import uncertain_mixtures
from pipeline.reporting.origin import BUNDLED
from pipeline.runs.counters import IngestCounters
from pipeline.runs.version import Version

#: With fewer test events than this, the report warns.
_FEW_EVENTS: Final = 1000
#: Probability below which the report says that two samples differ.
_DIFFERENT: Final = 0.01


def warnings(versions: Mapping[str, Version]) -> list[str]:
    """Return warnings about the numbers of the page: inputs, data, models, stale stages."""
    features = versions["features"].manifest
    metrics = versions["evaluate"].manifest.counters
    return [
        *_warnings_about_input(versions["ingest"], metrics["num_events"], features.config),
        *_warnings_about_data(metrics),
        *_warnings_about_models(metrics),
        *_warnings_about_accepted(versions),
    ]


def _warnings_about_input(
    ingested: Version, num_test_events: int, config: Mapping[str, Any]
) -> Iterator[str]:
    """Yield warnings about files and events.

    Args:
        ingested: The version of `ingest`.
        num_test_events: Number of events in the test split.
        config: The config of the stage `features`.
    """
    counters, files = ingested.counters(IngestCounters), ingested.manifest.inputs
    num_bundled = sum(file["uuid"] in BUNDLED for file in files)
    if num_bundled:
        yield (
            f"Technical sample: {num_bundled} of the {len(files)} input files are bundled with the "
            f"software. Their events test it; they do not measure the quality of such models."
        )
    if num_test_events < _FEW_EVENTS:
        yield f"Only {num_test_events} test events: small differences between models mean nothing."
    if config["features"]["convention"] != "correct":
        yield "Features are those of CERN's published notebooks, mistakes included."
    samples = counters.samples.values()
    if num_negative := sum(sample["events_of_negative_weight"] for sample in samples):
        yield (
            f"{num_negative} of the ingested events have negative weights: they enter sums, losses "
            "and metrics with their sign, so a bin of a histogram or a share of the cutflow may "
            "be negative."
        )
    if num_copies := sum(sample["rejected_copy"] for sample in samples):
        yield f"{num_copies} events are copies of others in the input files and were left out."
    # These notes on files are the same that the command line prints.
    yield from notes(
        [FileInfo(**file) for file in files],
        [SampleSettings.model_construct(**sample) for sample in config["samples"]],
        counters.samples,
        [
            *(BadFile(**file) for file in counters.bad_files),
            *(WaitingFile(**file) for file in counters.waiting_files),
        ],
    )
    yield from uncertain_mixtures(config)
    if num_bad := len(counters.bad_files):
        yield (
            f"Unreadable input files that were skipped: {num_bad}. The numbers do not include them."
        )


def _warnings_about_data(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield how many events of the data are copies, by where their originals are."""
    # Numbers of the data are the same for all models.
    data = next(iter(metrics["runs"].values())).get("data", {})
    for origin, num_copies in data.get("copies", {}).items():
        if num_copies:
            yield f"{num_copies} events of the data are copies of others in the {origin}."


def _warnings_about_models(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield what cannot be measured of each model, and whether it is overtrained.

    Overtrained means: of the Kolmogorov-Smirnov tests that compare scores of training and test
    events, one for each class and output, the smallest p-value, times their number, is below 0.01.
    """
    for model, run in metrics["runs"].items():
        for sentence in run.get("not_measurable", ()):
            yield f"{model}: {sentence}"
        p_values = []
        for tests_of_class in run["train_against_test"].values():
            p_values += [test["p_value"] for test in tests_of_class.values()]
        p_values = [p_value for p_value in p_values if p_value is not None]
        # The smallest of n p-values is below p by chance with a probability of up to n p
        # (Bonferroni).
        corrected = min(p_values, default=1.0) * len(p_values)
        if p_values and corrected < _DIFFERENT:
            p_value = summary.powers(corrected, 1)
            yield (
                f"{model}: scores of training and test events differ (p = {p_value}): overtrained."
            )


def _warnings_about_accepted(versions: Mapping[str, Version]) -> Iterator[str]:
    """Yield which stages were stale, and the user declared up to date with `plan --accept`."""
    for stage, version in versions.items():
        acceptance = version.manifest.accepted
        if acceptance is not None:
            reasons = "; ".join(acceptance.reasons)
            yield f"{stage} was stale and accepted as up to date: {reasons}."
