"""Measures the time of one event through the networks that a search has tried."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from scipy.stats import sem

from features.columns import hlf_names
from features.dataset import FeatureDataset
from models.export.latency import measure_latency
from models.export.onnx_classifier import OnnxClassifier
from models.export.onnx_export import export_onnx
from models.networks.hlf_settings import HlfSettings
from models.saved_model import build, model_spec
from training.gridsearch.results import Cost

#: Rounds over all networks, calls of each network in a round, and different events for the calls.
_ROUNDS: Final = 5
_CALLS: Final = 200
_EVENTS: Final = 64


def measure_latencies(
    architectures: Iterable[tuple[int, ...]],
    dataset: FeatureDataset,
    *,
    generator: np.random.Generator,
) -> dict[tuple[int, ...], Cost]:
    """Measure the time [us] of one event through each network in onnxruntime, on one core.

    Each of five rounds gives the median of 200 calls. The result is the median of the rounds, with
    the standard error of their mean. The networks are untrained, since the latency does not depend
    on the weights. They take turns, so that other work on the machine delays all of them and shows
    in the error.

    `architectures`: widths of the hidden layers of each network. `generator`: draws the events.
    """
    hlf = generator.normal(size=(_EVENTS, len(hlf_names()))).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        networks = {
            hidden: _export_untrained(hidden, dataset, Path(folder))
            for hidden in sorted(set(architectures))
        }
    times: dict[tuple[int, ...], list[float]] = {hidden: [] for hidden in networks}
    for _ in range(_ROUNDS):
        for hidden, network in networks.items():
            times[hidden].append(measure_latency(network, {"hlf": hlf}, calls=_CALLS).p50)
    return {
        hidden: Cost(float(np.median(medians)), float(sem(medians)))
        for hidden, medians in times.items()
    }


def _export_untrained(
    hidden: tuple[int, ...], dataset: FeatureDataset, folder: Path
) -> OnnxClassifier:
    """Export a network with initial weights to ONNX, and load it; overwrites the file before."""
    spec = model_spec(HlfSettings(hidden=list(hidden)), dataset)
    path = folder / "candidate.onnx"
    export_onnx(build(spec), spec, path)
    return OnnxClassifier.load(path)
