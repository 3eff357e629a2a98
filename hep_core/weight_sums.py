"""Tells sums of weights that are above 0 from those that are so by rounding alone."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Relative size of rounding errors: sums of weights that differ by less count as equal.
ROUNDING: Final = 1e-9


def are_positive(sums: ArrayLike, squares: ArrayLike) -> NDArray[np.bool_]:
    """Return which weights add up to more than 0, beyond rounding.

    The root of the sum of squares sets the scale, since weights may have any unit.

    Args:
        sums: Sums of weights, one or more.
        squares: Sums of the squares of the same weights.

    Examples:
        >>> are_positive([0.1 + 0.2 - 0.3, 1e-20], [0.14, 1e-40]).tolist()
        [False, True]
    """
    return np.asarray(sums) > ROUNDING * np.sqrt(squares)


def without_rounding(weight_sum: float, square_sum: float) -> float:
    """Return a sum of weights, or 0 if it is not 0 by rounding alone.

    Examples:
        >>> without_rounding(0.1 + 0.2 - 0.3, 0.14), without_rounding(-0.1, 0.01)
        (0.0, -0.1)
    """
    is_rounding = abs(weight_sum) <= ROUNDING * np.sqrt(square_sum)
    return 0.0 if is_rounding else weight_sum
