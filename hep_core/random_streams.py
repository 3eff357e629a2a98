"""Random numbers: one stream per purpose."""

from __future__ import annotations

import numpy as np


def random_stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator for a purpose and key, independent of all others of the same seed.

    Examples:
        >>> first = random_stream(1, "rows", 0, 5).integers(1000)
        >>> second = random_stream(1, "rows", 5, 0).integers(1000)
        >>> bool(first == second)
        False
    """
    spawn_key = (*purpose.encode(), *key)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))
