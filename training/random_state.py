"""Random numbers: a stream of its own for each purpose, and where in it one is, for checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

from training.sharding import random_stream

__all__ = ["generator_state", "random_stream", "set_generator_state"]


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a PCG64 generator in plain values; its 128-bit integers as text."""
    state = rng.bit_generator.state
    return {
        "state": str(state["state"]["state"]),
        "inc": str(state["state"]["inc"]),
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }


def set_generator_state(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Put a PCG64 generator where `generator_state` found one.

    Examples:
        >>> rng = np.random.default_rng(1)
        >>> state = generator_state(rng)
        >>> first = rng.random()
        >>> set_generator_state(rng, state)
        >>> rng.random() == first
        True
    """
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(state["state"]), "inc": int(state["inc"])},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }
