"""A comparison with made-up numbers, without any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from training.settings import TrainSettings
from training.studies.results import Comparison, RunResult, Timing
from training.studies.runs import Counts
from training.studies.timing import CLOUD, THIS_MACHINE
from training.studies.variants import ALL_VARIANTS, BEST, METHODS

NUM_EVENTS = 1000
AGREEING = ("sgd", "ar-sgd", "ar-sgd-slowmo")
EPOCHS = 6


def made_run(
    model: str, variant: str, seed: int, *, correct: int, epochs: int = EPOCHS, rate: float = 1e-3
) -> RunResult:
    """A run that predicts a given number of the 1000 test events correctly, the first ones."""
    rng = np.random.default_rng([seed, len(variant)])
    rising = 0.9 - 0.4 * np.exp(-np.arange(epochs)) + 0.01 * rng.normal(size=epochs)
    curves = {
        "val_accuracy": rising.tolist(),
        "val_loss": (1 - rising).tolist(),
        "train_loss": (1 - rising).tolist(),
        "consensus_distance": [0.0 if variant in AGREEING else 0.01 * (epoch + 1) for epoch in range(epochs)],
        "seconds": [0.2 + 0.01 * seed] * epochs,
        "communicate": [0.05 + 0.01 * len(variant)] * epochs,
    }
    summary = {
        "epochs": epochs,
        "steps": 10 * epochs,
        "samples": 800 * epochs,
        "samples_left_out": 0,
        "num_parameters": 100,
        "best_epoch": epochs - 1,
        "seconds": 1.0,
        "learning_rate_in_effect": 1e-3,
        "consensus_distance": 0.1,
        "bytes_sent": 8000,
        "averages_begun": 0 if variant == "ar-sgd" else 80,
        "averages_skipped": 0,
        "worker_val_accuracy": [0.88, 0.9],
    }
    counts = Counts.of(np.arange(NUM_EVENTS) < correct, correct / NUM_EVENTS)
    return RunResult(model, variant, seed, rate, "commit 1", counts, curves, summary)


def made_timing(*, simulated_workers: Sequence[int] = (2, 4, 8), epochs: int = EPOCHS) -> Timing:
    """Times on which every method scales ideally but AR-SGD."""
    keys = [variant.key for variant in ALL_VARIANTS]
    times = {key: {"seconds": [0.1] * epochs, "communicate": [0.02] * epochs} for key in keys}
    runs = [("sgd", 1), *((str(method), workers) for method in METHODS for workers in simulated_workers)]
    seconds = [1e-3 * (1 + 0.1 * workers if method == "ar-sgd" else 1) for method, workers in runs]
    columns: dict[str, Any] = {
        "method": [method for method, _ in runs],
        "workers": [workers for _, workers in runs],
        "batch_size": [16] * len(runs),
        "seconds_per_batch": seconds,
        "samples_per_second": [16 * workers / each for (_, workers), each in zip(runs, seconds, strict=True)],
    }
    rest = {"batch_size": 16, "seconds_per_batch": 2e-3}
    measured = [
        {"method": method, "workers": workers, "samples_per_second": 8e3 * workers, **rest}
        for method, workers in [("sgd", 1), *((str(method), 2) for method in METHODS)]
    ]
    measured.append({**measured[0], "batch_size": 64, "samples_per_second": 2e4})
    cluster = {"step_seconds": 1e-3, "event_seconds": 1e-6, "jitter": 0.1, "latency_seconds": 1e-5}
    checks = [
        {"method": str(method), "workers": 2, "measured": 2e-3, "predicted": 2e-3 * error}
        for method, error in zip(METHODS, (0.8, 1.1, 1.0), strict=True)
    ]
    rising = (0.8 - 0.3 * np.exp(-np.arange(epochs))).tolist()
    convergence = {each.key: [{"seconds": [0.5] * epochs, "val_accuracy": rising}] * 2 for each in BEST}
    scaling = [{"network": network, **columns} for network in (THIS_MACHINE, CLOUD)]
    return Timing(cluster, measured, times, scaling, checks, convergence)


def made_comparison(
    correct: Mapping[str, Sequence[int]] | None = None, *, models: Sequence[str] = ("hlf", "particles")
) -> Comparison:
    """A comparison of all variants.

    Args:
        correct: By variant the correctly sorted of 1000 test events of each seed; by default 900 and 910 for all.
        models: The networks.
    """
    chosen = {variant.key: [900, 910] for variant in ALL_VARIANTS} | dict(correct or {})
    return Comparison(
        name="thesis",
        digest="0123",
        made={
            "command": "python -m pipeline compare thesis",
            "created": "2026-01-01T00:00:00+00:00",
            "machine": {"cpu": "Some Processor", "cores": 2},
            "packages": {"python": "3.11.7", "torch": "2.13.0"},
        },
        settings={
            "compare": {
                "models": list(models),
                "workers": 2,
                "batch_size": 16,
                "local_steps": 3,
                "tau": 12,
                "beta": 0.6,
                "epochs": dict.fromkeys(models, EPOCHS),
            },
            "train": TrainSettings().model_dump(mode="json"),
            "model": {},
        },
        data={
            "version": "0001-abcdef01",
            "classes": ["QCD", "ttbar"],
            "counts": {"train": [400, 400], "val": [100, 100], "test": [500, 500]},
            "sample_note": "technical sample",
        },
        runs=[
            made_run(model, key, seed, correct=number)
            for model in models
            for key, numbers in chosen.items()
            for seed, number in enumerate(numbers, start=1)
        ],
        timing={model: made_timing() if model == models[0] else made_timing()._replace(scaling=[]) for model in models},
    )
