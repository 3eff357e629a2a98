"""The network on high-level features."""

from __future__ import annotations

import torch
from networks import SCALERS, random_events, run, small_network


def test_the_forward_pass_by_hand() -> None:
    model = small_network("hlf")
    events = random_events([1] * 6)

    logits = run(model, events)

    mean, std = torch.tensor(SCALERS["hlf"][:2], dtype=torch.float64)
    scaled = (events["hlf"] - mean) / std
    w_1, b_1, w_2, b_2, w_3, b_3 = model.parameters()
    hidden = torch.relu(scaled @ w_1.T + b_1)
    hidden = torch.relu(hidden @ w_2.T + b_2)
    expected = hidden @ w_3.T + b_3
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
