"""Compiles loops over arrays with numba.

A compiled function here calls no function of another file: numba looks for changes in its own file only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(function: Loop) -> Loop:
    """Compile a loop at its first call, and keep the machine code on disk; a division by zero is infinite.

    Args:
        function: The loop; its signature stays.
    """
    return cast("Loop", numba.njit(cache=True, error_model="numpy")(function))
