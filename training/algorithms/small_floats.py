"""Vectors in floating-point numbers of 8 or 4 bits, as messages of packed bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from training.transports.basics import Vector, is_finite

#: Bits of the exponent and of the mantissa of a number, by the number of its bits. The others are
#: the sign. E3M0 is the format of Douillard et al. 2025: powers of 2, and 0.
_FORMATS: Final = {4: (3, 0), 8: (4, 3)}


def magnitudes(bits: int) -> Vector:
    """Return the magnitudes of all numbers of a format in ascending order, the largest being 1.

    Examples:
        >>> magnitudes(4).tolist()
        [0.0, 0.015625, 0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0]
    """
    exponent_bits, mantissa_bits = _FORMATS[bits]
    codes = np.arange(2 ** (exponent_bits + mantissa_bits))
    exponents, mantissas = np.divmod(codes, 2**mantissa_bits)
    # As in IEEE 754: numbers of the lowest exponent have no leading 1, so that 0 is one of them.
    has_leading_one = exponents > 0
    significands = has_leading_one + mantissas / 2**mantissa_bits
    values = np.ldexp(significands, np.maximum(exponents, 1))
    normalized: Vector = values / values[-1]
    return normalized


class SmallFloats:
    """Encodes vectors in numbers of a few bits, beside one scale for the vector.

    The scale is the largest magnitude of the vector, for which the largest number stands. Each
    value becomes the nearest number, the one nearer to 0 if it is half-way: nothing is random.

    `bits`: 8 or 4. `dtype`: floating-point type of the vectors.

    Examples:
        >>> small_floats = SmallFloats(4, np.float64)
        >>> message = small_floats.encode(np.array([8.0, -3.1, 0.05]))
        >>> message.size, small_floats.decode(message, 3).tolist()
        (10, [8.0, -4.0, 0.0])
    """

    def __init__(self, bits: int, dtype: Any) -> None:
        self._bits = bits
        self._dtype = np.dtype(dtype)
        positive = magnitudes(bits)
        self._midpoints = (positive[:-1] + positive[1:]) / 2
        """Between two magnitudes that follow each other."""
        self._sign_bit = len(positive)
        """The highest bit of a code; it is set for negative numbers."""
        self._values = np.concatenate([positive, -positive]).astype(self._dtype)
        """(2 ** bits,) all numbers by their codes."""

    def encode(self, vector: Vector) -> Vector:
        """Return a message of bytes: the scale, then the codes; 4 bits a value if `bits` is 4.

        The scale of a vector that is not finite is NaN.
        """
        # An array of one element, which a message can hold.
        scale = np.abs(vector).max(keepdims=True)
        codes = np.zeros(vector.size, np.uint8)
        if not is_finite(vector):
            scale[:] = np.nan
        elif scale[0] > 0:
            codes = self._nearest_codes(vector / scale)
        scale_bytes = scale.view(np.uint8)
        return np.concatenate([scale_bytes, self._pack(codes)])

    def decode(self, message: Vector, size: int) -> Vector:
        """Return the values in a message of `encode`, (size,); NaN if they were not finite."""
        scale_bytes, packed = np.split(message, [self._dtype.itemsize])
        scale = scale_bytes.view(self._dtype)
        codes = self._unpack(packed)[:size]
        vector: Vector = scale * self._values[codes]
        return vector

    def _nearest_codes(self, relative: Vector) -> Vector:
        """Return the codes, (n,) uint8, of the numbers nearest to values from -1 to 1."""
        codes = np.searchsorted(self._midpoints, np.abs(relative)).astype(np.uint8)
        codes[relative < 0] |= self._sign_bit
        return codes

    def _pack(self, codes: Vector) -> Vector:
        """Return codes as bytes, each with one code of 8 bits or two of 4."""
        if self._bits == 8:
            return codes
        # Beside an odd last code comes the first one again, which `decode` leaves out.
        num_bytes = (codes.size + 1) // 2
        low, high = np.resize(codes, (num_bytes, 2)).T
        packed: Vector = low | (high << 4)
        return packed

    def _unpack(self, packed: Vector) -> Vector:
        """Return the codes in the bytes of `_pack`, and one more if their number is odd."""
        if self._bits == 8:
            return packed
        low, high = packed & 15, packed >> 4
        return np.stack([low, high], axis=1).reshape(-1)
