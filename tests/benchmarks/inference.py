"""Benchmark: one event, and batches, through the exported networks in onnxruntime and in torch, on
one core."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import random_columns
from numpy.typing import NDArray

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES, hlf_names
from models.export.latency import measure_latency, measure_throughput
from models.export.onnx_classifier import OnnxClassifier
from models.export.onnx_export import export_onnx
from models.networks.classifier import Classifier
from models.networks.registry import NETWORKS, ModelName
from models.networks.scaling_layer import Scaler
from models.saved_model import ModelSpec, build

EVENTS = 64
#: As in the bundled events.
MEAN_PARTICLES, SPREAD = 700, 60
SCALERS = {
    "hlf": Scaler([0.0] * len(hlf_names()), [1.0] * len(hlf_names())),
    "particles": Scaler([0.0] * NUM_PARTICLE_FEATURES, [1.0] * NUM_PARTICLE_FEATURES),
}


def torch_median(model: Classifier, columns: dict[str, NDArray[Any]], calls: int) -> float:
    """Median time of one event in torch [us], arrays to probabilities."""
    times = []
    for call in range(calls):
        event = {name: values[call % EVENTS][None] for name, values in columns.items()}
        started = time.perf_counter()
        model.probabilities(event)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def bench(name: ModelName, folder: Path, repeats: int) -> None:
    """Print the numbers of one network, medians over repeats that alternate between the two."""
    spec = ModelSpec(NETWORKS[name](), ["QCD", "ttbar", "W+jets"], SCALERS)
    torch.manual_seed(1)
    model = build(spec)
    export_onnx(model, spec, folder / f"{name}.onnx")
    exported = OnnxClassifier.load(folder / f"{name}.onnx")
    lengths = np.random.default_rng(1).normal(MEAN_PARTICLES, SPREAD, EVENTS)
    columns = random_columns(np.clip(lengths, 1, MAX_PARTICLES))
    calls = 1000 if "particles" in NETWORKS[name].inputs else 10_000
    single, batches, in_torch = [], [], []
    for _ in range(repeats):
        single.append(measure_latency(exported, columns, calls=calls))
        batches.append(measure_throughput(exported, columns))
        in_torch.append(torch_median(model, columns, calls // 4))
    percentiles = ", ".join(
        f"{message} {statistics.median(getattr(times, key) for times in single):,.1f}"
        for message, key in (
            ("median", "p50"),
            ("90 %", "p90"),
            ("99 %", "p99"),
            ("99.9 %", "p99_9"),
        )
        if getattr(single[0], key) is not None
    )
    ratio = statistics.median(
        first / times.p50 for first, times in zip(in_torch, single, strict=True)
    )
    sys.stdout.write(
        f"{name}: one event in onnxruntime [us]: {percentiles}; torch takes {ratio:.1f} times as "
        f"long; batches of 256: {statistics.median(batches):,.0f} events/s\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            bench(name, Path(folder), repeats)


if __name__ == "__main__":
    main()
