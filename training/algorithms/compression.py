"""Lossy compression of vectors: the message that travels, and the vector that both sides read from it.

Each is a contraction: E |Q(v) - v|^2 <= (1 - delta) |v|^2 with delta > 0 (Koloskova, Stich, Jaggi 2019, assumption 1).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from training.transports.basics import Vector


class CompressionName(StrEnum):
    """A compression of the differences that neighbours exchange."""

    NONE = "none"
    """Send all."""
    TOP_K = "top-k"
    """Send the elements of largest magnitude, with their places."""
    SIGN = "sign"
    """Send the signs, and the mean magnitude."""


class Compression(Protocol):
    """A compression Q of vectors of one size and type."""

    def compress(self, values: Vector) -> Vector:
        """The message; all messages have the same size and type."""

    def expand(self, message: Vector) -> Vector:
        """Q(v), which the message says."""


class NoCompression(Compression):
    """Q(v) = v, delta = 1."""

    @override
    def compress(self, values: Vector) -> Vector:
        return values.copy()

    @override
    def expand(self, message: Vector) -> Vector:
        return message


class TopK(Compression):
    """The k elements of largest magnitude, and 0 elsewhere: 4 bytes of index and one value each; delta = k / size.

    Args:
        size: Number of elements of a vector.
        dtype: Type of its elements.
        fraction: k / size.

    Examples:
        >>> top = TopK(5, np.dtype(np.float32), 0.4)
        >>> message = top.compress(np.array([1, -3, 0, 2, -1], np.float32))
        >>> message.nbytes, top.expand(message).tolist()
        (16, [0.0, -3.0, 0.0, 2.0, 0.0])
    """

    def __init__(self, size: int, dtype: np.dtype[Any], fraction: float) -> None:
        self._size, self._dtype = size, dtype
        self._kept = max(1, math.ceil(fraction * size))

    @override
    def compress(self, values: Vector) -> Vector:
        rest = self._size - self._kept
        places = np.sort(np.argpartition(np.abs(values), rest)[rest:] if rest else np.arange(self._size))
        return np.concatenate([places.astype(np.int32).view(np.uint8), values[places].view(np.uint8)])

    @override
    def expand(self, message: Vector) -> Vector:
        indices, values = np.split(message, [4 * self._kept])
        expanded = np.zeros(self._size, self._dtype)
        expanded[indices.view(np.int32)] = values.view(self._dtype)
        return expanded


class Sign(Compression):
    """sign(v) |v|_1 / size: one bit an element, and one value; delta = |v|_1^2 / (size |v|_2^2).

    Args:
        size: Number of elements of a vector.
        dtype: Type of its elements.

    Examples:
        >>> sign = Sign(5, np.dtype(np.float32))
        >>> message = sign.compress(np.array([1, -3, 1, 4, -1], np.float32))
        >>> message.nbytes, sign.expand(message).tolist()
        (5, [2.0, -2.0, 2.0, 2.0, -2.0])
    """

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self._size, self._dtype = size, dtype

    @override
    def compress(self, values: Vector) -> Vector:
        scale = np.abs(values).mean(dtype=self._dtype).reshape(1)
        return np.concatenate([scale.view(np.uint8), np.packbits(values >= 0)])

    @override
    def expand(self, message: Vector) -> Vector:
        scale, bits = np.split(message, [self._dtype.itemsize])
        signs = np.unpackbits(bits, count=self._size).astype(self._dtype)
        expanded: Vector = (2 * signs - 1) * scale.view(self._dtype)
        return expanded


def make_compression(name: CompressionName, like: Vector, *, fraction: float) -> Compression:
    """The compression of vectors of this size and type.

    Args:
        name: Its name.
        like: Such a vector.
        fraction: That of `TopK`.
    """
    if name is CompressionName.TOP_K:
        return TopK(like.size, like.dtype, fraction)
    return Sign(like.size, like.dtype) if name is CompressionName.SIGN else NoCompression()
