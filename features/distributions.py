"""Histograms of the features by class, for the dataset card: tasks fill, the driver adds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import boost_histogram as bh
import numpy as np
import uhi.io.json
from numpy.typing import NDArray

from features.columns import (
    HIGH_LEVEL,
    NUM_PARTICLES,
    PARTICLE,
    PARTICLE_FEATURE_NAMES,
    Binning,
    Feature,
    hlf_names,
)

#: Events per row group whose particles enter histograms and scaler. The first ones are a random
#: sample, since rows are mixed. Particles of all events would take a third of the time of the
#: mixing; the means of 64 events differ from theirs by at most 2 % of the standard deviation.
EVENTS_FOR_PARTICLES: Final = 64

#: File of all histograms in the dataset's folder.
HISTOGRAMS: Final = "histograms.json"

Histograms = dict[str, bh.Histogram[Any]]


def histogrammed_features() -> dict[str, tuple[Feature, Binning]]:
    """Features with a histogram and their bins, by the name of the histogram (`hlf.met`)."""
    features_by_group = {"hlf": [*HIGH_LEVEL, NUM_PARTICLES], "particles": PARTICLE}
    histogrammed = {}
    for group, features in features_by_group.items():
        for feature in features:
            if feature.binning is not None:
                histogrammed[f"{group}.{feature.name}"] = (feature, feature.binning)
    return histogrammed


def fill_histograms(
    hlf: NDArray[np.float32],
    particles: NDArray[np.float32],
    num_particles: NDArray[np.int32],
    labels: NDArray[np.int64],
    weights: NDArray[np.float32],
    classes: list[str],
) -> Histograms:
    """Fill the weighted histograms of one row group, each over (feature, class).

    Their names are `hlf.<name>` and `particles.<name>`. A particle has the label and the weight of
    its event.

    Args:
        hlf: (num_events, NUM_HLF).
        particles: (num_sampled, 19) of the first EVENTS_FOR_PARTICLES events, without padding.
        num_particles: (num_events,) number of particles of each event.
        labels: (num_events,).
        weights: (num_events,).
        classes: Names of the classes.
    """
    event_columns = dict(zip(hlf_names(), hlf.T, strict=True))
    event_columns[NUM_PARTICLES.name] = num_particles
    particle_columns = dict(zip(PARTICLE_FEATURE_NAMES, particles.T, strict=True))
    sampled_counts = num_particles[:EVENTS_FOR_PARTICLES]
    particle_labels = np.repeat(labels[:EVENTS_FOR_PARTICLES], sampled_counts)
    particle_weights = np.repeat(weights[:EVENTS_FOR_PARTICLES], sampled_counts)

    histograms = {}
    for name, (feature, binning) in histogrammed_features().items():
        histogram = _empty_histogram(feature, binning, classes)
        if name.startswith("hlf."):
            histogram.fill(event_columns[feature.name], labels, weight=weights)
        else:
            histogram.fill(particle_columns[feature.name], particle_labels, weight=particle_weights)
        histograms[name] = histogram
    return histograms


def add_histograms(sets: Iterable[Mapping[str, bh.Histogram[Any]]]) -> Histograms:
    """The sum of one or more sets of histograms."""
    first, *more = sets
    totals = dict(first)
    for histograms in more:
        for name, histogram in histograms.items():
            totals[name] = totals[name] + histogram
    return totals


def save_histograms(histograms: Histograms, path: Path) -> None:
    """Write histograms as JSON in uhi's exchange format, which hist and boost-histogram read."""
    text = json.dumps(histograms, default=uhi.io.json.default)
    path.write_text(text, encoding="utf-8")


def _empty_histogram(feature: Feature, binning: Binning, classes: list[str]) -> Any:
    """A histogram over (feature, class) that also sums squared weights; axes have names."""
    feature_axis = bh.axis.Regular(binning.bins, binning.low, binning.high)
    class_axis = bh.axis.Integer(0, len(classes), underflow=False, overflow=False)
    unit = "" if feature.unit == "1" else f" [{feature.unit}]"
    feature_axis.__dict__.update(name=feature.name, label=f"{feature.name}{unit}")
    class_label = ", ".join(classes)
    class_axis.__dict__.update(name="class", label=class_label)
    return bh.Histogram(feature_axis, class_axis, storage=bh.storage.Weight())
