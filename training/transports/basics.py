"""What all transports build on: vectors, and coroutines that never suspend."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
T = TypeVar("T")


def is_finite(vector: Vector) -> bool:
    """Whether all elements are finite, and not so large that the sum of their squares overflows.

    Examples:
        >>> is_finite(np.array([1.0, -2.0])), is_finite(np.array([1.0, np.nan]))
        (True, False)
    """
    # Unlike `dot` it does not warn of an overflow.
    return math.isfinite(np.vdot(vector, vector))


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, such as all coroutines over MPI or of a single worker.

    Raises:
        AssertionError: The coroutine suspended, so it needs the simulator.

    Examples:
        >>> async def three() -> int:
        ...     return 3
        >>> run_now(three())
        3
    """
    try:
        work.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    work.close()
    raise AssertionError("this coroutine waits for a simulator")
