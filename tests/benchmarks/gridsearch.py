"""Benchmark: trainings of a grid search against a plain torch loop with fused Adam (`make bench`).

The loop is the quickest that a user would write: tensors in memory, no weights of events. Same
    networks, folds, batches and numbers of steps on both sides; alternating runs in one process, on
    one core.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from features.columns import hlf_names
from models.networks.hlf import HlfClassifier
from models.networks.hlf_settings import HlfSettings
from models.networks.scaling_layer import Scaler
from training.gridsearch.trainings import Fold, make_folds, train_on_fold
from training.readers.batch import Rows
from training.settings import TrainSettings
from training.threads import be_deterministic

#: CERN's grid: widths of the three hidden layers, and batch sizes.
FIRST, SECOND, THIRD, BATCHES = (50, 100, 150), (20, 50, 100), (10, 20, 50), (64, 100, 200)
FOLDS = 5
SCALERS = {"hlf": Scaler([0.0] * len(hlf_names()), [1.0] * len(hlf_names()))}


def make_rows(num_rows: int) -> Rows:
    """Events without meaning."""
    rng = np.random.default_rng(1)
    hlf = rng.normal(size=(num_rows, len(hlf_names()))).astype(np.float32)
    labels = rng.integers(0, 3, num_rows)
    return Rows((torch.from_numpy(hlf),), torch.from_numpy(labels), torch.ones(num_rows))


def plain(
    make_network: Callable[[], HlfClassifier], rows: Rows, fold: Fold, num_steps: int
) -> None:
    """One epoch of one network, validation included."""
    torch.manual_seed(1)
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    order = np.random.default_rng(1).permutation(fold.train)
    for chunk in torch.from_numpy(order).tensor_split(num_steps):
        optimizer.zero_grad()
        functional.cross_entropy(network(rows.inputs[0][chunk]), rows.labels[chunk]).backward()
        optimizer.step()
    with torch.inference_mode():
        chunk = torch.from_numpy(fold.val)
        functional.cross_entropy(network(rows.inputs[0][chunk]), rows.labels[chunk]).item()


def seconds_per_model(hidden: list[int], batch_size: int, *, num_steps: int) -> tuple[float, float]:
    """CPU seconds that one network takes for an epoch of some steps: in plain torch, and by us."""
    rows = make_rows(num_steps * batch_size * FOLDS // (FOLDS - 1))
    fold = make_folds(rows.labels.numpy(), FOLDS, seed=1)[0]

    def make_network() -> HlfClassifier:
        return HlfClassifier(HlfSettings(hidden=list(hidden)), SCALERS, num_classes=3)

    started = time.process_time()
    plain(make_network, rows, fold, num_steps)
    torchs = time.process_time() - started
    started = time.process_time()
    train_on_fold(
        make_network,
        TrainSettings(learning_rate=1e-3, epochs=1),
        rows,
        fold,
        seed=1,
        num_steps=num_steps,
    )
    return torchs, time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--events", type=int, default=10_000, help="events that a network learns from"
    )
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    be_deterministic()
    seconds_per_model([50, 20, 10], 128, num_steps=10)
    sys.stdout.write("                        torch    ours   (microseconds per step)\n")
    for hidden, batch_size in (
        ([50, 20, 10], 128),
        ([50, 20, 10], 32),
        ([150, 100, 50], 200),
        ([1000, 1000], 128),
    ):
        steps = arguments.events // batch_size
        pairs = [
            seconds_per_model(hidden, batch_size, num_steps=steps) for _ in range(arguments.repeats)
        ]
        torchs, ours = (
            1e6 * statistics.median(times) / steps for times in zip(*pairs, strict=True)
        )
        ratio = statistics.median(first / second for first, second in pairs)
        widths = "-".join(map(str, hidden))
        sys.stdout.write(
            f"{widths:>10}, batch {batch_size:>3}: {torchs:7.1f} {ours:7.1f}  x {ratio:.2f}\n"
        )
    totals = []
    for _ in range(arguments.repeats):
        settings = itertools.product(FIRST, SECOND, THIRD, BATCHES)
        results = [
            seconds_per_model(list(hidden), batch_size, num_steps=arguments.events // batch_size)
            for *hidden, batch_size in settings
        ]
        totals.append([sum(times) for times in zip(*results, strict=True)])
    ratio = statistics.median(torchs / ours for torchs, ours in totals)
    rate = statistics.median(len(BATCHES) * 27 / ours for _, ours in totals)
    sys.stdout.write(f"CERN's 81 settings: x {ratio:.2f}, {rate:.1f} epochs of a model/s\n")


if __name__ == "__main__":
    main()
