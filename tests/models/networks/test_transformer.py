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


def head_by_hand(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Scaled dot-product attention of one head."""
    width = query.shape[1]
    scores = query @ key.T / np.sqrt(width)
    exponentials = np.exp(scores)
    shares = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares @ value


class TransformerByHand:
    """The network in NumPy, event by event and head by head (equations of Lee et al. 2019)."""

    def __init__(self, model: Classifier) -> None:
        self.weights = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def two_layers(self, name: str, x: np.ndarray) -> np.ndarray:
        hidden = np.maximum(self.linear(f"{name}.0", x), 0)
        return self.linear(f"{name}.2", hidden)

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        mean = x.mean(axis=1, keepdims=True)
        variance = x.var(axis=1, keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, name: str, queries: np.ndarray, seen: np.ndarray) -> np.ndarray:
        normed_queries = self.norm(f"{name}.norm_query", queries)
        normed_seen = self.norm(f"{name}.norm_seen", seen)
        query = self.linear(f"{name}.query", normed_queries)
        key_and_value = self.linear(f"{name}.key_and_value", normed_seen)
        key, value = np.split(key_and_value, 2, axis=1)

        split_heads = zip(
            np.split(query, HEADS, axis=1),
            np.split(key, HEADS, axis=1),
            np.split(value, HEADS, axis=1),
            strict=True,
        )
        heads = [head_by_hand(*query_key_value) for query_key_value in split_heads]
        queries = queries + self.linear(f"{name}.joined", np.hstack(heads))

        normed_sum = self.norm(f"{name}.norm_dense", queries)
        return queries + self.two_layers(f"{name}.dense", normed_sum)

    def logits(self, event: np.ndarray) -> np.ndarray:
        mean, std = np.array(SCALERS["particles"][:2])
        vectors = self.two_layers("embedding", (event - mean) / std)
        for block in ("blocks.0", "blocks.1"):
            points = self.weights[f"{block}.points"][0]
            collected = self.attention(f"{block}.collect", points, vectors)
            vectors = self.attention(f"{block}.spread", vectors, collected)
        pooled = self.attention("pool", self.weights["token"][0], vectors)
        return self.linear("output.1", self.norm("output.0", pooled))[0]


def test_the_network_is_attention_through_points_and_a_class_token() -> None:
    model = small_network("transformer", width=8, heads=HEADS, points=3, frame="detector")
    events = random_events(LENGTHS)

    logits = run(model, events).detach().numpy()

    by_hand = TransformerByHand(model)
    particles = events["particles"].numpy()
    for index, length in enumerate(LENGTHS):
        expected = by_hand.logits(particles[index, :length])
        np.testing.assert_allclose(logits[index], expected, rtol=1e-10, atol=1e-10)


def test_heads_that_do_not_divide_the_width_are_an_error() -> None:
    with pytest.raises(ValidationError, match="width 10 is no multiple of the number of heads, 4"):
        TransformerSettings(width=10, heads=4)
