"""Benchmark: trainings of a grid search side by side against a plain torch loop over one at a time (`make bench`).

Same networks, folds, batches and numbers of steps on both sides; alternating runs in one process, on one core.
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

from features.columns import NUM_HLF
from models.networks.hlf import HlfClassifier
from models.networks.scaling_layer import Scaler
from training.gridsearch.stacked_training import Member, make_folds, train_stacked
from training.readers.batch import Rows
from training.workloads.sums import weighted_losses

#: CERN's grid: widths of the three hidden layers, and batch sizes.
FIRST, SECOND, THIRD, BATCHES = (50, 100, 150), (20, 50, 100), (10, 20, 50), (64, 100, 200)
FOLDS = 5
SCALERS = {"hlf": Scaler([0.0] * NUM_HLF, [1.0] * NUM_HLF)}


def make_rows(num_rows: int) -> Rows:
    """Events without meaning."""
    rng = np.random.default_rng(1)
    hlf = rng.normal(size=(num_rows, NUM_HLF)).astype(np.float32)
    labels = rng.integers(0, 3, num_rows)
    return Rows((torch.from_numpy(hlf),), torch.from_numpy(labels), torch.ones(num_rows))


def plain(make_network: Callable[[], HlfClassifier], rows: Rows, member: Member, num_steps: int) -> None:
    """One epoch of one network, validation included."""
    torch.manual_seed(member.seed)
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters())
    order = np.random.default_rng(1).permutation(member.fold.train)
    for part in np.array_split(order, num_steps):
        batch = rows.batch(part)
        optimizer.zero_grad()
        losses = weighted_losses(network(*batch.inputs), batch.labels, batch.weights)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.inference_mode():
        batch = rows.batch(member.fold.val)
        weighted_losses(network(*batch.inputs), batch.labels, batch.weights).sum().item()


def seconds_per_model(hidden: list[int], batch_size: int, *, num_steps: int, num_seeds: int = 1) -> tuple[float, float]:
    """CPU seconds that one network takes for an epoch of some steps: on its own, and within a stack."""
    rows = make_rows(num_steps * batch_size * FOLDS // (FOLDS - 1))
    folds = make_folds(rows.labels.numpy(), FOLDS, seed=1)
    members = [Member(fold, seed) for seed in range(num_seeds) for fold in folds]

    def make_network() -> HlfClassifier:
        return HlfClassifier(hidden, SCALERS, num_classes=3)

    started = time.process_time()
    plain(make_network, rows, members[0], num_steps)
    alone = time.process_time() - started
    started = time.process_time()
    train_stacked(make_network, torch.optim.Adam, rows, members, num_steps=num_steps, epochs=1)
    return alone, (time.process_time() - started) / len(members)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000, help="events that a network learns from")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seconds_per_model([50, 20, 10], 128, num_steps=10)
    sys.stdout.write("                        alone    stacked   (microseconds per step and model)\n")
    for batch_size, num_seeds in ((128, 1), (128, 4), (32, 1)):
        steps = arguments.events // batch_size
        pairs = [
            seconds_per_model([50, 20, 10], batch_size, num_steps=steps, num_seeds=num_seeds)
            for _ in range(arguments.repeats)
        ]
        alone, stacked = (1e6 * statistics.median(times) / steps for times in zip(*pairs, strict=True))
        ratio = statistics.median(first / second for first, second in pairs)
        sys.stdout.write(
            f"50-20-10, batch {batch_size:>3}, {FOLDS * num_seeds:>2} at once: "
            f"{alone:7.1f} {stacked:7.1f}  x {ratio:.2f}\n"
        )
    totals = []
    for _ in range(arguments.repeats):
        settings = itertools.product(FIRST, SECOND, THIRD, BATCHES)
        found = [
            seconds_per_model(list(hidden), batch_size, num_steps=arguments.events // batch_size)
            for *hidden, batch_size in settings
        ]
        totals.append([sum(times) for times in zip(*found, strict=True)])
    ratio = statistics.median(alone / stacked for alone, stacked in totals)
    rate = statistics.median(len(BATCHES) * 27 / stacked for _, stacked in totals)
    sys.stdout.write(f"CERN's 81 settings x {FOLDS} folds: x {ratio:.2f}, {rate:.1f} epochs of a model/s\n")


if __name__ == "__main__":
    main()
