"""The set transformer on the particle list."""

from __future__ import annotations

import numpy as np
import pytest
from networks import SCALERS, random_events, run, small_network
from pydantic import ValidationError

from models.networks.classifier import Classifier
from models.networks.transformer_settings import TransformerSettings

LENGTHS = [4, 1, 9]
HEADS = 2


class ByHand:
    """The network in NumPy, one event and one head after the other (equations of Lee et al. 2019)."""

    def __init__(self, model: Classifier) -> None:
        self.p = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.p[f"{name}.weight"].T + self.p[f"{name}.bias"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        scaled = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        return scaled * self.p[f"{name}.weight"] + self.p[f"{name}.bias"]

    def attention(self, name: str, asking: np.ndarray, seen: np.ndarray) -> np.ndarray:
        query = self.linear(f"{name}.query", self.norm(f"{name}.norm_query", asking))
        key, value = np.split(
            self.linear(f"{name}.key_and_value", self.norm(f"{name}.norm_seen", seen)), 2, axis=1
        )
        results = []
        for q, k, v in zip(
            *(np.split(matrix, HEADS, axis=1) for matrix in (query, key, value)), strict=True
        ):
            weights = np.exp(q @ k.T / np.sqrt(k.shape[1]))
            results.append(weights / weights.sum(axis=1, keepdims=True) @ v)
        asking = asking + self.linear(f"{name}.joined", np.hstack(results))
        hidden = np.maximum(
            self.linear(f"{name}.dense.0", self.norm(f"{name}.norm_dense", asking)), 0
        )
        return asking + self.linear(f"{name}.dense.2", hidden)

    def logits(self, event: np.ndarray) -> np.ndarray:
        mean, std = np.array(SCALERS["particles"][:2])
        x = self.linear(
            "embedding.2", np.maximum(self.linear("embedding.0", (event - mean) / std), 0)
        )
        for block in ("blocks.0", "blocks.1"):
            seen = self.attention(f"{block}.collect", self.p[f"{block}.points"][0], x)
            x = self.attention(f"{block}.spread", x, seen)
        collected = self.attention("pool", self.p["token"][0], x)
        return self.linear("output.1", self.norm("output.0", collected))[0]


def test_the_network_is_attention_through_points_and_a_class_token() -> None:
    model = small_network("transformer", width=8, heads=HEADS, points=3, frame="detector")
    events = random_events(LENGTHS)
    actual = run(model, events).detach().numpy()
    for event, length, logits in zip(events["particles"].numpy(), LENGTHS, actual, strict=True):
        np.testing.assert_allclose(
            logits, ByHand(model).logits(event[:length]), rtol=1e-10, atol=1e-10
        )


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValidationError, match="width 10 is no multiple of the number of heads, 4"):
        TransformerSettings(width=10, heads=4)
