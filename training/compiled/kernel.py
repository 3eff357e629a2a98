"""The decorator of the kernels, and formulas that they share."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import DTypeLike, NDArray

from hep_core.compiling import compiled
from models.networks.lepton_frame import RotatedColumns

Array = NDArray[Any]
"""Real numbers of the network's precision, contiguous."""
Integers = NDArray[np.int64]

#: Compiles a function by Numba. Its sums may be reordered, which vector instructions need; NaN and
#: infinity keep their meaning. It releases Python's lock, so that other threads run meanwhile.
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
    """Scale the numbers of one column in place.

    A logarithmic column first becomes asinh(value / unit). Then the mean is subtracted, the result
    divided by the standard deviation, and clipped to the limit.

    `values`: (n,) consecutive in memory. `column`: number of the column, which selects constants.
    """
    unit = scaling.log_above[column]
    mean, inverse_std = scaling.mean[column], scaling.inverse_std[column]
    limit = values.dtype.type(scaling.limit)
    if unit > 0:
        for i in range(len(values)):
            values[i] = asinh(values[i] / unit)
    for i in range(len(values)):
        # The order of the arguments keeps NaN as NaN.
        values[i] = max(min((values[i] - mean) * inverse_std, limit), -limit)


@kernel
def rotate_columns(columns: Array, rotated: RotatedColumns, azimuths: Array, etas: Array) -> None:
    """Rotate rows into the frames of their events' leptons, in place.

    The frame has the lepton at azimuth 0 and in the forward half: pairs of x and y are rotated, the
    lepton's azimuth is subtracted from azimuths, and the components along the beam change their
    sign if the lepton's eta is negative. `models.networks.lepton_frame.LeptonFrame` does the same
    in torch.

    Args:
        columns: (num_columns, n) features of n rows.
        rotated: Numbers of the columns of each kind.
        azimuths: (n,) azimuth of the lepton of each row's event.
        etas: (n,) its pseudorapidity.
    """
    if len(rotated.azimuths) == 0:
        return
    for i in range(columns.shape[1]):
        cos, sin = np.cos(azimuths[i]), np.sin(azimuths[i])
        for x, y in zip(rotated.xs, rotated.ys):  # noqa: B905 - numba knows no strict
            old_x = columns[x, i]
            columns[x, i] = cos * old_x + sin * columns[y, i]
            columns[y, i] = cos * columns[y, i] - sin * old_x
        for j in rotated.azimuths:
            # A difference outside [-pi, pi] is moved into it by a whole turn.
            angle = columns[j, i] - azimuths[i]
            columns[j, i] = angle - 2 * math.pi * (int(angle > math.pi) - int(angle < -math.pi))
        if etas[i] < 0:
            for j in rotated.beams:
                columns[j, i] = -columns[j, i]


def unscaled(width: int, real: DTypeLike) -> ColumnScaling:
    """Return constants of a scaling that leaves `width` columns as they are."""
    return ColumnScaling(
        np.zeros(width, real), np.ones(width, real), np.zeros(width, real), math.inf
    )


#: 1 / log(2), and two numbers whose difference is log(2), in single precision. The first has few
#: digits, so that its product with a small whole number is exact.
_INVERSE_LOG_2: Final = np.float32(1.4426950408889634)
_LOG_2_HIGH: Final = np.float32(0.693359375)
_LOG_2_LOW: Final = np.float32(2.12194440e-4)
#: The same in double precision, where log(2) is the sum of both.
_INVERSE_LOG_2_DOUBLE: Final = 1.4426950408889634
_LOG_2_HIGH_DOUBLE: Final = 6.93147180369123816490e-1
_LOG_2_LOW_DOUBLE: Final = 1.90821492927058770002e-10


def exponential(value: Any) -> Any:
    """Return exp of a number, within rounding.

    Compiled code takes `_exponential` instead, of which a loop becomes vector instructions.
    """
    return np.exp(value)


@overload(exponential)
def _exponential(value: Any) -> Any:
    """Choose the compiled form of exp(x) for a type; Numba calls this when it compiles.

    Both forms divide x into k log(2) + r with whole k and |r| <= log(2) / 2, so that exp(x) is
    2^k exp(r). Taylor's polynomial gives exp(r), and k is written into the exponent bits of a
    number.
    """
    return _exponential_float32 if value == types.float32 else _exponential_float64


def _exponential_float32(value: Any) -> Any:
    """Return exp of a number in single precision; the algorithm is in `_exponential`."""
    # Outside these limits 2^k has no normal number in single precision.
    clipped = max(value, np.float32(-87))
    clipped = min(clipped, np.float32(88))
    # The sum with 0.5 rounds to the nearest whole number.
    power = np.floor(clipped * _INVERSE_LOG_2 + np.float32(0.5))
    r = (clipped - power * _LOG_2_HIGH) + power * _LOG_2_LOW
    exp_r = np.float32(1 / 5040) * r + np.float32(1 / 720)
    exp_r = (exp_r * r + np.float32(1 / 120)) * r + np.float32(1 / 24)
    exp_r = (exp_r * r + np.float32(1 / 6)) * r + np.float32(1 / 2)
    exp_r = (exp_r * r + np.float32(1)) * r + np.float32(1)
    # The exponent has an offset of 127 and stands above 23 bits of mantissa.
    power_bits = np.int32((np.int32(power) + np.int32(127)) << np.int32(23))
    return exp_r * power_bits.view(np.float32)


def _exponential_float64(value: Any) -> Any:
    """Return exp of a number in double precision, like `_exponential_float32`, but to r^13."""
    clipped = max(value, -708.0)
    clipped = min(clipped, 709.0)
    power = np.floor(clipped * _INVERSE_LOG_2_DOUBLE + 0.5)
    r = (clipped - power * _LOG_2_HIGH_DOUBLE) - power * _LOG_2_LOW_DOUBLE
    exp_r = (r / 6227020800 + 1 / 479001600) * r + 1 / 39916800
    exp_r = (exp_r * r + 1 / 3628800) * r + 1 / 362880
    exp_r = (exp_r * r + 1 / 40320) * r + 1 / 5040
    exp_r = (exp_r * r + 1 / 720) * r + 1 / 120
    exp_r = (exp_r * r + 1 / 24) * r + 1 / 6
    exp_r = (exp_r * r + 1 / 2) * r + 1
    # The exponent has an offset of 1023 and stands above 52 bits of mantissa.
    power_bits = np.int64((np.int64(power) + np.int64(1023)) << np.int64(52))
    return (exp_r * r + 1) * power_bits.view(np.float64)


def asinh(value: Any) -> Any:
    """Return asinh of a number.

    Compiled code in single precision takes `_asinh_float32` instead, of which a loop becomes vector
    instructions. Its error is 1.5e-7, relative to values above 1, up to an x of 1e19.
    """
    return np.arcsinh(value)


@overload(asinh)
def _asinh(value: Any) -> Any:
    return _asinh_float32 if value == types.float32 else asinh


def _asinh_float32(value: Any) -> Any:
    """Return asinh(x) in single precision.

    It is log(y) with the sign of x, where y = |x| + sqrt(x^2 + 1). As in logf of Moshier's library
    Cephes, y is divided into 2^k (1 + r). Then log(y) is k log(2) + log(1 + r), and a polynomial
    gives log(1 + r).
    """
    size = abs(value)
    y_bits = np.float32(size + np.sqrt(size * size + np.float32(1))).view(np.int32)
    # The bits of sqrt(1/2) are 0x3F3504F3. Their subtraction puts 1 + r between it and sqrt(2).
    power = (y_bits - np.int32(0x3F3504F3)) >> np.int32(23)
    r = np.int32(y_bits - (power << np.int32(23))).view(np.float32) - np.float32(1)
    square = r * r
    log = np.float32(7.0376836292e-2) * r - np.float32(1.1514610310e-1)
    log = (log * r + np.float32(1.1676998740e-1)) * r - np.float32(1.2420140846e-1)
    log = (log * r + np.float32(1.4249322787e-1)) * r - np.float32(1.6668057665e-1)
    log = (log * r + np.float32(2.0000714765e-1)) * r - np.float32(2.4999993993e-1)
    log = (log * r + np.float32(3.3333331174e-1)) * r * square
    k = np.float32(power)
    log = r + (log - k * _LOG_2_LOW - np.float32(0.5) * square)
    result = np.copysign(log + k * _LOG_2_HIGH, value)
    # The bits of infinity and NaN have no mantissa to take apart; both give NaN.
    return result if size < np.float32(np.inf) else np.float32(np.nan)
