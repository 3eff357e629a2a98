"""The inverse hyperbolic sine in compiled code."""

from __future__ import annotations

import numpy as np

from features.compiling import compiled
from training.compiled.asinh import asinh


@compiled
def asinhs(values: np.ndarray) -> np.ndarray:
    found = np.empty_like(values)
    for place in range(values.size):
        found[place] = asinh(values[place])
    return found


def test_asinh_of_single_precision_is_right_within_rounding_from_0_to_the_largest_numbers() -> None:
    values = np.concatenate([[0.0], np.logspace(-8, 19, 20_001)]).astype(np.float32)
    for sign in (1, -1):
        found = asinhs(sign * values)
        expected = np.arcsinh(sign * values.astype(np.float64))
        np.testing.assert_allclose(found, expected, rtol=2e-7, atol=2e-7)
