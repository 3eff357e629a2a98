"""Histograms of the features by class, for the dataset card: filled by the tasks, added up on the driver."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import boost_histogram as bh
import numpy as np
import uhi.io.json
from numpy.typing import NDArray

from features.schema import HLF_NAMES, PARTICLE_FEATURE_NAMES


class Binning(NamedTuple):
    """Equal bins of one feature; what lies outside is counted in the flow bins."""

    bins: int
    low: float
    high: float
    unit: str = ""
    log: bool = False
    """Whether it falls so steeply that it is drawn on a logarithmic axis."""


#: High-level features, and the number of particles of an event.
EVENT_BINNINGS: Final[dict[str, Binning]] = {
    "ht": Binning(30, 0, 1200, "GeV"),
    "met": Binning(30, 0, 300, "GeV"),
    "met_phi": Binning(16, -math.pi, math.pi, "rad"),
    "mt": Binning(30, 0, 240, "GeV"),
    "num_jets": Binning(12, -0.5, 11.5),
    "num_bjets": Binning(6, -0.5, 5.5),
    "lepton_pt": Binning(30, 0, 240, "GeV"),
    "lepton_eta": Binning(20, -4, 4),
    "lepton_phi": Binning(16, -math.pi, math.pi, "rad"),
    "lepton_iso_charged": Binning(30, 0, 0.45),
    "lepton_iso_photon": Binning(30, 0, 0.45, log=True),
    "lepton_iso_neutral": Binning(30, 0, 0.45, log=True),
    "lepton_charge": Binning(3, -1.5, 1.5, "e"),
    "lepton_is_electron": Binning(2, -0.5, 1.5),
    "num_particles": Binning(30, 0, 802),
}

#: The main features of the particles (the lepton is one of them).
PARTICLE_BINNINGS: Final[dict[str, Binning]] = {
    "pt": Binning(50, 0, 50, "GeV", log=True),
    "eta": Binning(50, -5, 5),
    "phi": Binning(32, -math.pi, math.pi, "rad"),
    "energy": Binning(50, 0, 200, "GeV", log=True),
    "vertex_z": Binning(50, -200, 200, "mm", log=True),
    "iso_charged": Binning(50, 0, 50, log=True),
    "iso_photon": Binning(50, 0, 50, log=True),
    "iso_neutral": Binning(50, 0, 50, log=True),
}

#: Particles of so many events per row group are filled: a row group is a random sample, and all would take long.
EVENTS_FOR_PARTICLES: Final = 32

#: Name of the file of all histograms, in the dataset's folder.
HISTOGRAMS: Final = "histograms.json"

Histograms = dict[str, bh.Histogram[Any]]


def fill(
    hlf: NDArray[np.float32],
    particles: NDArray[np.float32],
    num_particles: NDArray[np.int32],
    labels: NDArray[np.int64],
    weights: NDArray[np.float32],
    classes: list[str],
) -> Histograms:
    """Histograms of one row group, by `hlf.<name>` and `particles.<name>`, each of (feature, class), weighted.

    Args:
        hlf: (num_events, 14).
        particles: (num_events, 801, 19), padded.
        num_particles: (num_events,) rows that are no padding.
        labels: (num_events,) classes.
        weights: (num_events,) event weights.
        classes: Their names.
    """
    filled = {}
    columns = {**dict(zip(HLF_NAMES, hlf.T, strict=True)), "num_particles": num_particles}
    for name, binning in EVENT_BINNINGS.items():
        filled[f"hlf.{name}"] = _histogram(binning, classes).fill(columns[name], labels, weight=weights)
    few = slice(0, EVENTS_FOR_PARTICLES)
    counts = num_particles[few]
    rows = particles[few][np.arange(particles.shape[1]) < counts[:, None]]
    for name, binning in PARTICLE_BINNINGS.items():
        column = rows[:, PARTICLE_FEATURE_NAMES.index(name)]
        filled[f"particles.{name}"] = _histogram(binning, classes).fill(
            column, np.repeat(labels[few], counts), weight=np.repeat(weights[few], counts)
        )
    return filled


def add(parts: Iterable[Mapping[str, bh.Histogram[Any]]]) -> Histograms:
    """The sum of several sets of histograms."""
    total: Histograms = {}
    for part in parts:
        for name, histogram in part.items():
            total[name] = total[name] + histogram if name in total else histogram.copy()
    return total


def save(histograms: Histograms, path: Path) -> None:
    """Write them as JSON in uhi's exchange format, which hist, boost-histogram and others read."""
    path.write_text(json.dumps(histograms, default=uhi.io.json.default), encoding="utf-8")


def binning_of(name: str) -> Binning:
    """The binning of a histogram by its name (`hlf.ht`)."""
    kind, feature = name.split(".", 1)
    return (EVENT_BINNINGS if kind == "hlf" else PARTICLE_BINNINGS)[feature]


def _histogram(binning: Binning, classes: list[str]) -> Any:
    return bh.Histogram(
        bh.axis.Regular(binning.bins, binning.low, binning.high),
        bh.axis.Integer(0, len(classes), underflow=False, overflow=False),
        storage=bh.storage.Weight(),
    )
