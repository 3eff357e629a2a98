"""The decorator of the kernels, and formulas that they share."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import DTypeLike, NDArray

from hep_core.compiling import compiled
from models.networks.lepton_frame import RotatedColumns

Array = NDArray[Any]
"""Real numbers of the network's precision, contiguous."""
Integers = NDArray[np.int64]

#: Sums may be reordered, which vectors need; NaN and infinity keep their meaning. Other threads run beside a kernel.
kernel = partial(
    compiled, error_model="numpy", nogil=True, fastmath={"reassoc", "contract", "arcp", "nsz"}
)


class ColumnScaling(NamedTuple):
    """The constants of a `models.networks.scaling_layer.Standardize`, one number per column."""

    mean: Array
    inverse_std: Array
    log_above: Array
    """Size above which a column is logarithmic; 0 for a linear column."""
    limit: float
    """Largest size of a scaled value; infinite for none."""


@kernel
def scale(values: Array, scaling: ColumnScaling, column: int) -> None:
    """Scale the numbers of one column, (n,) one after the other in memory, in place."""
    unit, mean, factor = (
        scaling.log_above[column],
        scaling.mean[column],
        scaling.inverse_std[column],
    )
    limit = values.dtype.type(scaling.limit)
    if unit > 0:
        for i in range(len(values)):
            values[i] = asinh(values[i] / unit)
    for i in range(len(values)):
        # NaN stays NaN.
        values[i] = max(min((values[i] - mean) * factor, limit), -limit)


@kernel
def turn(columns: Array, turned: RotatedColumns, azimuths: Array, etas: Array) -> None:
    """Bring columns (num_columns, n) of rows of events whose leptons have these directions, (n,), into their frame.

    This is `models.networks.lepton_frame.LeptonFrame`.
    """
    for i in range(columns.shape[1] if len(turned.azimuths) else 0):
        cos, sin = np.cos(azimuths[i]), np.sin(azimuths[i])
        for x, y in zip(turned.xs, turned.ys):  # noqa: B905 - numba knows no strict
            old = columns[x, i]
            columns[x, i] = cos * old + sin * columns[y, i]
            columns[y, i] = cos * columns[y, i] - sin * old
        for j in turned.azimuths:
            angle = columns[j, i] - azimuths[i]
            columns[j, i] = angle - 2 * math.pi * (int(angle > math.pi) - int(angle < -math.pi))
        if etas[i] < 0:
            for j in turned.beams:
                columns[j, i] = -columns[j, i]


def unscaled(width: int, real: DTypeLike) -> ColumnScaling:
    """Constants that leave columns as they are."""
    return ColumnScaling(
        np.zeros(width, real), np.ones(width, real), np.zeros(width, real), math.inf
    )


def exponential(value: Any) -> Any:
    """Exp of a number, within rounding; in compiled code a loop over it becomes vector instructions."""
    return np.exp(value)


@overload(exponential)
def _exponential(value: Any) -> Any:
    """2^k exp(r) with |r| <= log(2) / 2: exp(r) is Taylor's polynomial, and k is written into the exponent's bits."""
    return _single if value == types.float32 else _double


def _single(value: Any) -> Any:
    clipped = max(value, np.float32(-87))
    clipped = min(clipped, np.float32(88))
    power = np.floor(clipped * np.float32(1.4426950408889634) + np.float32(0.5))
    # log(2) in two parts, the first with few digits, so that the product is exact.
    rest = (clipped - power * np.float32(0.693359375)) + power * np.float32(2.12194440e-4)
    found = np.float32(1 / 5040) * rest + np.float32(1 / 720)
    found = (found * rest + np.float32(1 / 120)) * rest + np.float32(1 / 24)
    found = (found * rest + np.float32(1 / 6)) * rest + np.float32(1 / 2)
    found = (found * rest + np.float32(1)) * rest + np.float32(1)
    return found * np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)


def _double(value: Any) -> Any:
    clipped = max(value, -708.0)
    clipped = min(clipped, 709.0)
    power = np.floor(clipped * 1.4426950408889634 + 0.5)
    rest = (clipped - power * 6.93147180369123816490e-1) - power * 1.90821492927058770002e-10
    found = (rest / 6227020800 + 1 / 479001600) * rest + 1 / 39916800
    found = (found * rest + 1 / 3628800) * rest + 1 / 362880
    found = (found * rest + 1 / 40320) * rest + 1 / 5040
    found = (found * rest + 1 / 720) * rest + 1 / 120
    found = (found * rest + 1 / 24) * rest + 1 / 6
    found = (found * rest + 1 / 2) * rest + 1
    return (found * rest + 1) * np.int64((np.int64(power) + np.int64(1023)) << np.int64(52)).view(
        np.float64
    )


def asinh(value: Any) -> Any:
    """Asinh of a number; in compiled code a loop over single precision becomes vector instructions.

    In single precision the error is 1.5e-7, relative to values above 1, up to an x of 1e19.
    """
    return np.arcsinh(value)


@overload(asinh)
def _asinh(value: Any) -> Any:
    return _single_asinh if value == types.float32 else asinh


def _single_asinh(value: Any) -> Any:
    """The logarithm of |x| + sqrt(x^2 + 1) >= 1, as in Moshier's library Cephes (logf)."""
    size = abs(value)
    bits = np.float32(size + np.sqrt(size * size + np.float32(1))).view(np.int32)
    # The mantissa is between sqrt(1/2) and sqrt(2): 0x3F3504F3 are the bits of sqrt(1/2).
    power = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    rest = np.int32(bits - (power << np.int32(23))).view(np.float32) - np.float32(1)
    square = rest * rest
    found = np.float32(7.0376836292e-2) * rest - np.float32(1.1514610310e-1)
    found = (found * rest + np.float32(1.1676998740e-1)) * rest - np.float32(1.2420140846e-1)
    found = (found * rest + np.float32(1.4249322787e-1)) * rest - np.float32(1.6668057665e-1)
    found = (found * rest + np.float32(2.0000714765e-1)) * rest - np.float32(2.4999993993e-1)
    found = (found * rest + np.float32(3.3333331174e-1)) * rest * square
    number = np.float32(power)
    found = rest + (found - number * np.float32(2.12194440e-4) - np.float32(0.5) * square)
    found = np.copysign(found + number * np.float32(0.693359375), value)
    # What is not finite has no mantissa.
    return found if size < np.float32(np.inf) else np.float32(np.nan)
