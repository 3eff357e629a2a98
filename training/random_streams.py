"""Random numbers: one stream per purpose, and the state of a stream for checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np


def random_stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator for a purpose and key, independent of all others of the same seed.

    Examples:
        >>> int(random_stream(1, "rows", 0, 5).integers(1000)) == int(random_stream(1, "rows", 5, 0).integers(1000))
        False
    """
    spawn_key = (*purpose.encode(), *key)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a generator in plain values; its integers have 128 bits."""
    return dict(rng.bit_generator.state)


def set_generator_state(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore the state that `generator_state` returned.

    Examples:
        >>> rng = np.random.default_rng(1)
        >>> state = generator_state(rng)
        >>> first = rng.random()
        >>> set_generator_state(rng, state)
        >>> rng.random() == first
        True
    """
    rng.bit_generator.state = state
