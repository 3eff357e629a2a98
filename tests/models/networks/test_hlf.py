"""The network on high-level features."""

from __future__ import annotations

import torch
from networks import SCALERS, random_events, run, small_network


def test_the_forward_pass_by_hand() -> None:
    model, events = small_network("hlf"), random_events([1] * 6)
    mean, std = torch.tensor(SCALERS["hlf"][:2], dtype=torch.float64)
    x = (events["hlf"] - mean) / std
    weights = [parameter.detach() for parameter in model.parameters()]
    for index in range(0, 4, 2):
        x = torch.relu(x @ weights[index].T + weights[index + 1])
    torch.testing.assert_close(
        run(model, events), x @ weights[4].T + weights[5], rtol=1e-12, atol=1e-12
    )
