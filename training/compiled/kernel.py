"""The decorator of the kernels, and formulas that they share."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from features.compiling import compiled

Array = NDArray[Any]
"""Real numbers of the network's precision, contiguous."""
Integers = NDArray[np.int64]

#: Sums may be reordered, which vectors need; NaN and infinity keep their meaning. Other threads run beside a kernel.
kernel = partial(compiled, error_model="numpy", nogil=True, fastmath=frozenset({"reassoc", "contract", "arcp", "nsz"}))


def power_of_two(exponent: float) -> Any:
    """2 to an integral power, in the precision of the argument; for compiled code."""
    return np.ldexp(np.ones((), dtype=np.asarray(exponent).dtype)[()], int(exponent))


@overload(power_of_two, inline="always")
def _power_of_two(exponent: types.Type) -> Any:
    """Write the exponent of the floating point number, which compiles to vector instructions."""
    if exponent == types.float32:
        return lambda exponent: np.int32((np.int32(exponent) + np.int32(127)) << np.int32(23)).view(np.float32)
    return lambda exponent: np.int64((np.int64(exponent) + np.int64(1023)) << np.int64(52)).view(np.float64)
