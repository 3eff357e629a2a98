"""Numbers with errors as text: as many digits as the error needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

#: A `value`, and the ends `low` and `high` of its interval, as in `metrics.json`; null where they
#: cannot be measured.
Interval = Mapping[str, Any]
NOT_MEASURABLE: Final = "not measurable"
#: How an interval is written on the terminal, and on pages, if its sides differ.
ON_TERMINAL: Final = "{value}{symbol} +{up} -{down}"
ON_PAGE: Final = "{value}{symbol} (+{up} \N{MINUS SIGN}{down})"
#: The same for equal sides.
_EVEN: Final = {ON_TERMINAL: "{value} ± {up}{symbol}", ON_PAGE: "{value}{symbol} (± {up})"}
#: Largest three digits of an error that is shown with two digits; larger ones have one (Particle
#: Data Group, Review of Particle Physics, 5.3).
_TWO_DIGITS: Final = 3.54
#: Relative error of numbers in double precision.
_ROUNDING: Final = 1e-12
#: Digits of a number without an error.
_WITHOUT_ERROR: Final = 3


def decimal_places(error: float) -> int:
    """Return how many decimal places a number with an error above 0 has.

    The Particle Data Group rounds so: an error whose leading digits are at most 3.54 has two
    digits, else one. The places are negative for tens.

    Examples:
        >>> [decimal_places(error) for error in (0.023, 0.0062, 0.000123, 0.0965, 354, 355)]
        [3, 3, 5, 2, -1, -2]
    """
    mantissa, _, exponent = f"{error:.2e}".partition("e")
    # For an error m x 10^-k, k places show one digit of it, k + 1 places two.
    return int(float(mantissa) <= _TWO_DIGITS) - int(exponent)


def rounded(number: float, places: int) -> str:
    """Format a number with some decimal places, commas between thousands, and no negative zero.

    Examples:
        >>> rounded(12345.6, -2), rounded(-0.0001, 2)
        ('12,300', '0.00')
    """
    return f"{round(number, places):z,.{max(0, places)}f}"


def with_error(value: float | None, error: float | None, sign: str = " ± ") -> str:
    """Format a number with its standard error, both with the digits that the error needs.

    Examples:
        >>> with_error(0.99942, 0.00021), with_error(0.931, 0.0231, "+-"), with_error(1.0, 0.0)
        ('0.99942 ± 0.00021', '0.931+-0.023', '1 ± 0')
        >>> with_error(None, None), with_error(0.9312, None)
        ('not measurable', '0.931 (error not measurable)')
    """
    if value is None or not math.isfinite(value):
        return NOT_MEASURABLE
    if error is None or not math.isfinite(error):
        return f"{value:.{_WITHOUT_ERROR}g} (error {NOT_MEASURABLE})"
    # A spread of equal numbers is their rounding.
    if error <= _ROUNDING * abs(value):
        return f"{value:.{_WITHOUT_ERROR}g}{sign}0"
    places = decimal_places(error)
    return f"{rounded(value, places)}{sign}{rounded(error, places)}"


def limit_of(interval: Interval, most: float = math.inf) -> Literal["upper", "lower"] | None:
    """Return which end of an interval is a limit: `upper`, `lower` or None.

    An interval with an upper limit has only its `high` end, such as `< 0.058`. The limit is `upper`
    where nothing passes, and `lower` where a share is `most` or more. A significance has no value
    where no background passes; then its own `limit` says that `low` is one.

    Examples:
        >>> limit_of({"value": 0.0, "low": 0.0, "high": 0.1})
        'upper'
        >>> limit_of({"value": 1.0, "low": 0.9, "high": 1.0}, most=1.0)
        'lower'
    """
    if not is_measured(interval):
        is_limit = interval.get("limit") == "lower" and _is_finite(interval.get("low"))
        return "lower" if is_limit else None
    if interval["value"] <= 0:
        return "upper"
    if interval["value"] >= most > interval["low"]:
        return "lower"
    return None


def with_interval(
    interval: Interval | None,
    *,
    scale: float = 1.0,
    symbol: str = "",
    most: float = math.inf,
    form: str = ON_TERMINAL,
) -> str:
    """Format a number with the distances to both ends of its interval, or as a limit.

    Args:
        interval: `value`, `low` and `high`; None gives `not measurable`.
        scale: Factor of all numbers, such as 100 for percent.
        symbol: Text after the number, such as ` %`.
        most: Highest possible value; a share of it is a lower limit, see `limit_of`.
        form: `ON_TERMINAL` or `ON_PAGE`.

    Examples:
        >>> with_interval({"value": 0.123, "low": 0.111, "high": 0.138}, scale=100, symbol=" %")
        '12.3 % +1.5 -1.2'
        >>> with_interval({"value": 0.123, "low": 0.111, "high": 0.135}, scale=100, symbol=" %")
        '12.3 ± 1.2 %'
        >>> with_interval({"value": 0.0, "low": 0.0, "high": 0.0577}), with_interval(None)
        ('< 0.058', 'not measurable')
        >>> with_interval({"value": 1.0, "low": 0.9931, "high": 1.0}, scale=100, most=1.0)
        '> 99.31'
    """
    if interval is None:
        return NOT_MEASURABLE
    limit = limit_of(interval, most)
    if limit is not None:
        return _limit_with_sign(interval, limit, scale, symbol, most)
    if not is_measured(interval):
        return NOT_MEASURABLE
    low = scale * interval["low"]
    value = scale * interval["value"]
    high = scale * interval["high"]
    up = max(0.0, high - value)
    down = max(0.0, value - low)
    if max(up, down) == 0:
        return f"{value:.{_WITHOUT_ERROR}g}{symbol}"
    places = _places_of_interval(up, down)
    up_text = rounded(up, places)
    down_text = rounded(down, places)
    if up_text == down_text:
        # Sides that are equal after rounding are written once.
        form = _EVEN[form]
    return form.format(value=rounded(value, places), up=up_text, down=down_text, symbol=symbol)


def inverse_with_interval(share: Interval | None) -> str:
    """Format the inverse of a share, such as a rejection, with its interval or a lower limit.

    The ends change places: the lower end of the inverse is 1 / `high`.

    Examples:
        >>> inverse_with_interval({"value": 0.1, "low": 0.08, "high": 0.125})
        '10.0 (8.0 to 12.5)'
        >>> inverse_with_interval({"value": 0.0, "low": 0.0, "high": 0.001})
        '> 1,000'
    """
    if share is None or not is_measured(share) or share["high"] <= 0:
        return NOT_MEASURABLE
    low = 1 / share["high"]
    # Of a share that may be 0, the inverse has only a lower limit.
    if share["value"] <= 0:
        return f"> {_rounded_limit(low, low)}"
    value = 1 / share["value"]
    # A lower end of 0 makes the upper end of the inverse infinite.
    if share["low"] <= 0:
        places = decimal_places(value - low) if value > low else _two_digits(value)
        return f"{rounded(value, places)} ({rounded(low, places)} to ∞)"
    high = 1 / share["low"]
    up = max(0.0, high - value)
    down = max(0.0, value - low)
    if max(up, down) == 0:
        return f"{value:.{_WITHOUT_ERROR}g}"
    places = _places_of_interval(up, down)
    return f"{rounded(value, places)} ({rounded(low, places)} to {rounded(high, places)})"


def is_measured(interval: Interval) -> bool:
    """Whether value and both ends of an interval are there and finite."""
    return all(_is_finite(interval.get(name)) for name in ("value", "low", "high"))


def _is_finite(number: float | None) -> bool:
    return number is not None and math.isfinite(number)


def _places_of_interval(up: float, down: float) -> int:
    """Choose decimal places for the error on the shorter side of an interval.

    If that side is less than a tenth of the longer one, a tenth of the longer one counts instead.
    """
    longer = max(up, down)
    shorter = min(up, down)
    return decimal_places(max(shorter, longer / 10))


def _limit_with_sign(
    interval: Interval, limit: Literal["upper", "lower"], scale: float, symbol: str, most: float
) -> str:
    """Format the end of an interval that is a limit, such as `< 0.058`."""
    end = scale * (interval["high"] if limit == "upper" else interval["low"])
    if end <= 0:
        return NOT_MEASURABLE
    if limit == "upper":
        return f"< {_rounded_limit(end, end)}{symbol}"
    # A share has a distance to its highest value; a significance has no such value.
    distance = scale * most - end if is_measured(interval) else end
    return f"> {_rounded_limit(end, distance)}{symbol}"


def _rounded_limit(limit: float, distance: float) -> str:
    """Format a limit with two digits, of itself and of its distance to the other end of the range.

    So 99.31 % has two digits of its distance to 100 %.
    """
    return rounded(limit, max(_two_digits(limit), _two_digits(distance)))


def _two_digits(number: float) -> int:
    """Return the decimal places with which a number has two digits."""
    # The exponent of the scientific form says where the first digit is.
    return 1 - int(f"{number:.1e}".partition("e")[2])
