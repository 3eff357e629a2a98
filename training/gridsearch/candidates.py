"""Measures the latency of the networks of a search."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.columns import NUM_HLF
from features.dataset import FeatureDataset
from models.export.latency import measure_latency
from models.export.onnx_classifier import OnnxClassifier
from models.export.onnx_export import export_onnx
from models.networks.hlf_settings import HlfSettings
from models.saved_model import build, model_spec

_CALLS: Final = 500
_EVENTS: Final = 64


def latencies(
    architectures: Iterable[tuple[int, ...]], dataset: FeatureDataset, *, generator: np.random.Generator
) -> dict[tuple[int, ...], float]:
    """Median time [us] of one event through each network in onnxruntime, on one core.

    The networks are untrained, since the latency does not depend on the weights.

    Args:
        architectures: Widths of the hidden layers of each network.
        dataset: Gives the scaling and the number of classes.
        generator: Random generator of the events' features.
    """
    columns = {"hlf": generator.normal(size=(_EVENTS, NUM_HLF)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        return {hidden: _latency(hidden, dataset, columns, Path(folder)) for hidden in sorted(set(architectures))}


def _latency(hidden: tuple[int, ...], dataset: FeatureDataset, columns: dict[str, NDArray[Any]], folder: Path) -> float:
    spec = model_spec(HlfSettings(hidden=list(hidden)), dataset)
    path = folder / "candidate.onnx"
    export_onnx(build(spec), spec, path)
    return measure_latency(OnnxClassifier.load(path), columns, calls=_CALLS).p50
