"""Gradients of many virtual workers at once are those of each alone, in compiled code and by backpropagation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from simulated import CLUSTER, settings, toy_network, toy_rows
from torch import Tensor, nn

from training.errors import DivergedError
from training.readers.batch import Rows
from training.simulation.simulate import simulate
from training.simulation.stacked import StackedModels
from training.workloads.gradients import sums_of


class Recurrent(nn.Module):
    """The last state of a recurrent layer, into three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(3, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, sequences: Tensor) -> Tensor:
        states, _ = self.recurrent(sequences)
        classes: Tensor = self.out(states[:, -1])
        return classes


def recurrent() -> nn.Module:
    torch.manual_seed(3)
    return Recurrent().double()


CASES = {"perceptron": (toy_network, (4,)), "recurrent": (recurrent, (6, 3))}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_some_workers_are_those_of_each_alone(name: str) -> None:
    make, shape = CASES[name]
    torch.manual_seed(5)
    workers, sizes = 5, [7, 4, 7, 1, 6]
    stacked = StackedModels(make(), workers + 1)
    stacked.parameters += 0.3 * torch.randn_like(stacked.parameters)
    rows = Rows((torch.randn(30, *shape).double(),), torch.randint(3, (30,)), torch.rand(30).double())
    batches = {
        rank: np.random.default_rng(rank).permutation(30)[:size]
        for rank, size in zip([5, 0, 3, 1, 4], sizes, strict=True)
    }
    stacked.compute(batches, rows)
    for rank, numbers in batches.items():
        alone, batch = make(), rows.batch(numbers)
        nn.utils.vector_to_parameters(stacked.parameters[rank], alone.parameters())
        outputs = alone(*batch.inputs)
        losses = nn.functional.cross_entropy(outputs, batch.labels, reduction="none") * batch.weights
        losses.mean().backward()
        expected = torch.cat([parameter.grad.reshape(-1) for parameter in alone.parameters()])
        torch.testing.assert_close(stacked.gradients[rank], expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(stacked.sums[rank], sums_of(outputs.detach(), batch.labels, batch.weights))
    assert not stacked.gradients[2].any(), "the gradient of a worker that did not compute is left alone"
    assert not stacked.sums[2].any()


def test_divergence_is_said() -> None:
    rows, network = toy_rows(320, dtype=torch.float32), toy_network(torch.float32)
    with pytest.raises(DivergedError, match=r"diverged.*train\.learning_rate"):
        simulate(network, rows, rows, settings(algorithm="d-psgd", optimizer="sgd", learning_rate=1e30), CLUSTER)
