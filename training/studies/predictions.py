"""Predicts the test split with the model of the lowest loss."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr
from torch import nn

from training.settings import TrainSettings
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


def weights_of_test(workload: Workload) -> str:
    """Weights of the events that `predictions_of` predicts, for `StudyResult.test_weights`."""
    weights = workload.rows("test", TrainSettings()).rows.weights.numpy().astype(np.float32)
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
    memory = workload.rows("test", settings)
    rows, module = memory.rows, module.to(memory.rows.weights.dtype).eval()
    with torch.inference_mode():
        logits = [module(*batch.inputs) for batch in memory.batches(_AT_ONCE)]
    probabilities = torch.softmax(torch.cat(logits).double(), dim=1)
    return Trained(history, probabilities.numpy(), rows.labels.numpy(), rows.weights.double().numpy())
