"""The inverse hyperbolic sine in compiled code."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from features.compiling import compiled
from training.compiled.asinh import asinh
from training.compiled.kernel import kernel


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


@pytest.mark.parametrize("options", [{}, kernel.keywords], ids=["exact", "as in kernels"])
def test_what_is_not_finite_becomes_no_number(options: dict[str, Any]) -> None:
    # It became about 89, which hid from a compiled network what torch shows.
    values = np.array([np.nan, np.inf, -np.inf, 1.0], dtype=np.float32)
    assert np.isnan(numba.njit(**options)(asinhs.py_func)(values)).tolist() == [True, True, True, False]  # type: ignore[attr-defined]
