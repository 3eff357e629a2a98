"""Writes the cutflow of the stage `features`: the events after each cut, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ingestion.expressions import sample_labels
from ingestion.tally import NO_CLASS, WRAPPED_AZIMUTHS
from pipeline.reporting.cutflow import applied_cuts, as_json, cutflow
from pipeline.runs.counters import FeaturesCounters, IngestCounters
from pipeline.runs.version import Version
from pipeline.stages.base import Context


def write_cutflow(context: Context, counters: dict[str, Any]) -> None:
    """Write the cutflow: the number of events that pass each cut, and all before.

    `cutflow.txt` is by class, and printed too; `cutflow.json` is by sample and by class. Both
    also hold counters of events that are remarkable but not rejected.

    Args:
        context: The context of the stage.
        counters: The counters of this stage.
    """
    from pipeline.terminal.tables import cutflow_table

    ingested, settings = context.upstream["ingest"], context.config.features
    config = {
        "samples": ingested.config.samples,
        "ingest": ingested.config.ingest,
        "classes": context.config.classes,
        "features": applied_cuts(settings.model_dump(mode="json"), ingested.manifest.inputs),
    }
    # The cutflow begins with the steps of ingest and continues with those of this stage.
    ingest_counters = ingested.counters(IngestCounters)
    selected = FeaturesCounters.model_validate(counters)
    by_class = cutflow(ingest_counters, selected, config, by_class=True)
    by_sample = cutflow(ingest_counters, selected, config)
    beside_cuts = _counters_beside_cuts(ingested, counters)
    normalisation = counters["normalisation"]

    remark = _remark_on_stated_sums(normalisation)
    if remark:
        context.say(remark)
    table = cutflow_table(by_class)
    text = str(table)
    for line in [*remark.splitlines(), *_lines_beside_cuts(beside_cuts)]:
        text += f"{line}\n"
    (context.out_dir / "cutflow.txt").write_text(text, encoding="utf-8")

    content = {
        "classes": as_json(by_class),
        "samples": as_json(by_sample),
        "counters": beside_cuts,
        "integrated_luminosity": settings.integrated_luminosity,
        "normalisation": normalisation,
    }
    (context.out_dir / "cutflow.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    context.console.print(table)


def _remark_on_stated_sums(normalisation: Mapping[str, Mapping[str, Any]]) -> str:
    """Name the samples whose sum of weights the config states; empty without any.

    Such a sum is that of all generated events, also of those in no file.
    """
    names = [name for name, sample in normalisation.items() if sample["stated_sum"] is not None]
    if not names:
        return ""
    return f"Efficiencies of weights are relative to all generated events of: {', '.join(names)}"


def _lines_beside_cuts(beside_cuts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a line for each counter that belongs to no cut, with its number of each sample."""
    for counter, counts in beside_cuts.items():
        samples = ", ".join(f"{sample} {count}" for sample, count in counts.items())
        yield f"{counter.replace('_', ' ')}: {samples}"


def _counters_beside_cuts(ingested: Version, counters: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return counters that belong to no cut, by sample; a counter that no sample has is left out.

    They count events whose lepton has no track of its own, events with an azimuth outside
    [-pi, pi], and events without a class.

    Args:
        ingested: The version of `ingest`.
        counters: The counters of this stage.
    """
    from features.kernel_pass import LACKS_OWN_TRACK

    ingested_steps = ingested.counters(IngestCounters).samples
    # Each counter with the numbers by sample and step in which it is found.
    sources = {
        LACKS_OWN_TRACK: counters["samples"],
        WRAPPED_AZIMUTHS: ingested_steps,
        NO_CLASS: ingested_steps,
    }
    # A sample with several labels has one name per label.
    names: list[str] = []
    for sample in ingested.config.samples:
        names += sample_labels(sample["name"], sample["label"], sample.get("label_by", {}))
    beside_cuts = {}
    for counter, steps_by_sample in sources.items():
        counts = {
            name: steps_by_sample[name][counter]
            for name in names
            if counter in steps_by_sample.get(name, {})
        }
        if counts:
            beside_cuts[counter] = counts
    return beside_cuts
