"""Numbers of few bits: nearest values, packed bytes, and vectors that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from training.algorithms.small_floats import SmallFloats, magnitudes

Array = NDArray[np.float64]
bits_per_number = st.sampled_from([4, 8])
vectors = arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e6, 1e6))


def sent(vector: Any, bits: int) -> Any:
    """A vector as its receivers see it."""
    small_floats = SmallFloats(bits, vector.dtype)
    return small_floats.decode(small_floats.encode(vector), vector.size)


def test_numbers_of_8_bits_have_four_bits_of_exponent_and_three_of_mantissa() -> None:
    mantissas = np.arange(8) / 8
    subnormal = mantissas * 2.0**-14
    normal = np.outer(2.0 ** np.arange(-14, 1), 1 + mantissas).ravel()
    largest = 1.875

    expected = np.concatenate([subnormal, normal]) / largest

    np.testing.assert_allclose(magnitudes(8), expected, rtol=1e-15)


@given(vectors, bits_per_number)
def test_each_value_becomes_the_nearest_number(vector: Array, bits: int) -> None:
    scale = np.abs(vector).max()
    positive = scale * magnitudes(bits)
    numbers = np.concatenate([positive, -positive])
    distances = np.abs(vector[:, np.newaxis] - numbers)

    errors = np.abs(sent(vector, bits) - vector)

    np.testing.assert_allclose(errors, distances.min(axis=1), atol=1e-12 * scale)


@given(vectors, bits_per_number)
def test_rounding_treats_both_signs_alike_and_keeps_what_is_rounded(
    vector: Array, bits: int
) -> None:
    rounded = sent(vector, bits)

    np.testing.assert_array_equal(sent(-vector, bits), -rounded)
    np.testing.assert_array_equal(sent(rounded, bits), rounded)
    assert np.abs(rounded).max() == np.abs(vector).max()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("bits", "size", "num_bytes"), [(4, 6, 3), (4, 7, 4), (8, 7, 7)])
def test_a_message_has_the_scale_and_the_bits_of_each_value(
    bits: int, size: int, num_bytes: int, dtype: type[np.floating[Any]]
) -> None:
    vector = np.linspace(-1, 1, size).astype(dtype)

    message = SmallFloats(bits, dtype).encode(vector)

    assert message.dtype == np.uint8
    assert message.nbytes == vector.itemsize + num_bytes
    assert sent(vector, bits).dtype == dtype


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_a_vector_that_is_not_finite_arrives_as_nan(value: float) -> None:
    vector = np.array([1.0, value, 2.0])

    assert np.isnan(sent(vector, 4)).all()


def test_zeros_arrive_as_zeros() -> None:
    np.testing.assert_array_equal(sent(np.zeros(3), 8), np.zeros(3))
