"""Trains any workload, on MPI or in the simulator, and predicts the test split with the model of the lowest loss."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr
from torch import nn

from training.flat_model import FlatModel
from training.launching.launcher import launch
from training.launching.rank import RunSpec, make_model
from training.loop.progress import Progress
from training.loop.records import read_records
from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings
from training.simulation.simulate import Simulated, simulate
from training.transports.transport import SingleTransport
from training.workloads.workload import Workload

_AT_ONCE = 1024


class Trained(NamedTuple):
    """The result of a training."""

    history: list[list[dict[str, Any]]]
    """Records of each worker per epoch; their times are virtual in the simulator."""
    probabilities: NDArray[np.float64]
    """(num_rows, num_classes) of the test split; the order of the rows is the same for all runs."""
    labels: NDArray[np.int64]
    """(num_rows,) of the test split."""
    weights: NDArray[np.float64]
    """(num_rows,) of the test split."""
    messages_lost: int = 0
    """Number of messages that the simulated network lost."""

    @property
    def is_correct(self) -> NDArray[np.bool_]:
        """(num_rows,) whether the class of the highest probability is right."""
        return np.asarray(self.probabilities.argmax(axis=1) == self.labels)

    @property
    def accuracy(self) -> float:
        """Weighted share of correct predictions."""
        return float(self.weights[self.is_correct].sum() / self.weights.sum())

    @property
    def guess_loss(self) -> float:
        """Loss of the best constant guess: the entropy of the weighted shares of the classes."""
        shares = np.bincount(self.labels, self.weights) / self.weights.sum()
        return float(entr(shares).sum())


def train_on_ranks(spec: RunSpec, *, on_progress: Callable[[Progress], None] = lambda _: None) -> Trained:
    """Train on MPI ranks, or in this process with one worker; files go to `spec.out_dir`.

    Raises:
        TrainingError: As in `training.launching.launcher.launch`.
    """
    spec.out_dir.mkdir(parents=True, exist_ok=True)
    launch(spec, on_progress=on_progress)
    workload = spec.workload.open()
    return predictions_of(read_records(spec.out_dir), workload, workload.load(spec.out_dir / "model"), spec.train)


def train_in_simulator(workload: Workload, settings: TrainSettings, cluster: ClusterSettings) -> Trained:
    """Train virtual workers in this process.

    Raises:
        TrainingError: As in `training.simulation.simulate.simulate`.
    """
    model = fresh_model(workload, settings)
    found = simulate_workload(workload, settings, cluster)
    if found.best is None:
        raise AssertionError("the simulated run kept no model")
    model.load(found.best)
    trained = predictions_of(found.records, workload, model.module, settings)
    return trained._replace(messages_lost=found.messages_lost)


def simulate_workload(workload: Workload, settings: TrainSettings, cluster: ClusterSettings, **how: Any) -> Simulated:
    """Train a workload in the simulator, from the same initial weights as on MPI.

    Args:
        workload: Rows, network and augmentation.
        settings: The training.
        cluster: Times of computation and communication.
        how: Further arguments of `simulate`.
    """
    train, val = (workload.rows(split, settings) for split in ("train", "val"))
    module, owners = fresh_model(workload, settings).module, workload.owners(settings, world_size=settings.workers)
    return simulate(module, train, val, settings, cluster, augmentation=workload.augmentation, owners=owners, **how)


def fresh_model(workload: Workload, settings: TrainSettings) -> FlatModel:
    """The network with the initial weights of its seed."""
    return make_model(workload, settings, SingleTransport(), torch.device("cpu"))


def weights_of_test(workload: Workload) -> str:
    """Weights of the events that `predictions_of` predicts, for `StudyResult.test_weights`."""
    weights = workload.rows("test", TrainSettings()).weights.numpy().astype(np.float32)
    return base64.b64encode(weights.tobytes()).decode()


def predictions_of(
    history: list[list[dict[str, Any]]], workload: Workload, module: nn.Module, settings: TrainSettings
) -> Trained:
    """The predictions of a trained network on the test split.

    Args:
        history: The records of its training.
        workload: Rows of the test split.
        module: The network.
        settings: The training.
    """
    rows = workload.rows("test", settings)
    module = module.to(rows.weights.dtype).eval()
    with torch.inference_mode():
        logits = [module(*batch.inputs) for batch in rows.batches(_AT_ONCE)]
    probabilities = torch.softmax(torch.cat(logits).double(), dim=1)
    return Trained(history, probabilities.numpy(), rows.labels.numpy(), rows.weights.double().numpy())
