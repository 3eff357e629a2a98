"""How kernels are compiled: numba, machine code cached on disk beside the source.

Both decorators hide numba's missing types from mypy, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile a loop over arrays."""
    return cast("Kernel", numba.njit(cache=True)(function))


def compiled_ufunc(function: Callable[..., float]) -> Any:
    """Compile a formula of scalars to a NumPy ufunc, which takes scalars and arrays, here and in other kernels."""
    return numba.vectorize(cache=True)(function)  # type: ignore[no-untyped-call]
