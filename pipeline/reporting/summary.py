"""The answer to the trigger's question in a sentence, and numbers with intervals in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: The signal efficiency that the question asks for; if it cannot be measured, the nearest that can be.
_ASKED: Final = 0.9
#: A space at which no line ends.
_TIGHT: Final = "\N{NO-BREAK SPACE}"
#: Spaces at which no line should end: before units, after comparisons, within brackets.
_WITHIN: Final = re.compile(r"(?<=\d) (?=(?:%|[GT]eV|[mµn]?s|kB)(?!\w))|(?<=[<>]) (?=\d)|(?<=\d) (?=−\d)")  # noqa: RUF001 - a minus
_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def share(each: Mapping[str, float] | None) -> str:
    """An efficiency or purity with its interval in per cent, or an upper limit where nothing passes.

    Examples:
        >>> share({"value": 0.0, "low": 0.0, "high": 0.0577})
        '< 5.8 %'
        >>> share({"value": 0.0, "low": 0.0, "high": 0.0996})
        '< 10 %'
    """
    return "not defined" if each is None else _with_interval(each, 100, " %")


def rejection(each: Mapping[str, float]) -> str:
    """1 / an efficiency with its interval, or a lower limit where nothing passes.

    Examples:
        >>> rejection({"value": 0.0, "low": 0.0, "high": 0.001}), rejection({"value": 0.1, "low": 0.08, "high": 0.125})
        ('> 1000', '10 (8 to 12.5)')
    """
    if each["value"] <= 0 or each["low"] <= 0:
        return f"> {_whole(1 / each['high'])}" if each["value"] <= 0 else _whole(1 / each["value"])
    value, low, high = (_whole(1 / each[name]) for name in ("value", "high", "low"))
    return f"{value} ({low} to {high})"


def _whole(number: float) -> str:
    return f"{number:.3g}" if number < 999 else f"{number:.0f}"


def rate(each: Mapping[str, float]) -> str:
    r"""A rate with its interval, or an upper limit.

    Examples:
        >>> ascii(rate({"value": 120.4, "low": 100.0, "high": 160.0}))
        "'120/s (+40 \\u221220)'"
    """
    return _with_interval(each, 1, "/s")


def estimate(each: Mapping[str, float]) -> str:
    """A number with its error."""
    return f"{each['value']:.3f} ± {each['error']:.3f}"


def spread(over: Mapping[str, float]) -> str:
    """Mean and spread of a number over several trainings."""
    return f"{over['mean']:.3f} ± {over['spread']:.3f}"


def tight(words: str) -> str:
    """Words in which a number stays with its unit, and the two ends of an interval with each other."""
    return _WITHIN.sub(_TIGHT, words)


def powers(value: float, digits: int = 3) -> str:
    r"""A number as physicists write it, very large and very small ones with a power of ten.

    Examples:
        >>> ascii(powers(2e34))
        "'2\\xa0\\xd7\\xa010\\xb3\\u2074'"
        >>> powers(1234.0)
        '1,230'
    """
    rounded = f"{value:.{digits - 1}e}"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{float(rounded):,.12g}"
    first, _, power = rounded.partition("e")
    return f"{float(first):g}{_TIGHT}×{_TIGHT}10{str(int(power)).translate(_RAISED)}"  # noqa: RUF001 - a product


def with_powers(words: str) -> str:
    r"""Words with numbers such as 4.7e-07 written by `powers`.

    Examples:
        >>> ascii(with_powers("0.5 ± 4.7e-07"))
        "'0.5 \\xb1 4.7\\xa0\\xd7\\xa010\\u207b\\u2077'"
    """
    return re.sub(r"\d(?:\.\d+)?e[-+]\d+", lambda found: powers(float(found[0])), words)


def _with_interval(each: Mapping[str, float], unit: float, symbol: str) -> str:
    low, value, high = (unit * each[name] for name in ("low", "value", "high"))
    if value <= 0:
        return f"< {_digits(high, high)}{symbol}"
    up, down = max(0.0, high - value), max(0.0, value - low)
    error = max(up, down)
    return f"{_digits(value, error)}{symbol} (+{_digits(up, error)} −{_digits(down, error)})"  # noqa: RUF001 - a minus


def _digits(value: float, error: float) -> str:
    """A number with two digits of its error."""
    if not error > 0:
        return f"{value:.3g}"
    # Rounding may make an error longer: 9.96 is 10.
    place = math.floor(math.log10(float(f"{error:.1e}"))) - 1
    return f"{round(value, -place):,.{max(0, -place)}f}"


def point_to_show(runs: Mapping[str, Any]) -> int | None:
    """Index of the measurable working point nearest to 90 %; None if there is none."""
    points: Sequence[Mapping[str, Any]] = next(iter(runs.values()))["working_points"]
    measurable = [place for place, point in enumerate(points) if point["measurable"]]
    return min(measurable, key=lambda place: abs(points[place]["wanted"] - _ASKED), default=None)


def answer(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """How much background is left at 90 % of the signal, by the model that leaves the least; None if unmeasurable."""
    place = point_to_show(metrics["runs"])
    if place is None:
        return None
    points = {name: run["working_points"][place] for name, run in metrics["runs"].items()}
    best = min(
        points, key=lambda name: (points[name]["all_backgrounds"]["value"], points[name]["all_backgrounds"]["high"])
    )
    point = points[best]
    return {
        "model": best,
        "kept": f"{100 * point['wanted']:g} %",
        "left": {name: share(each) for name, each in point["backgrounds"].items()},
        "rates": {name: rate(each) for name, each in point["rates"].items()} if "rates" in point else {},
        "total": rate(point["total_rate"]) if "rates" in point else None,
        "purity": share(point["purity"]) if "rates" in point else None,
    }


def unmeasurable(metrics: Mapping[str, Any]) -> str:
    """One line about the working points that cannot be measured, for it depends on the events, not on the models."""
    points = next(iter(metrics["runs"].values()))["working_points"]
    few = [point for point in points if not point["measurable"]]
    if not few:
        return ""
    wanted = ", ".join(f"{100 * point['wanted']:g} %" for point in few)
    failing = ", ".join(f"{point['num_failing']:.1f}" for point in few)
    return (
        f"Not measurable on these events: efficiencies of {wanted}. Below such a cut, only {failing} effective events "
        f"of {metrics['signal']} are expected; 10 are needed."
    )


def shifts(run: Mapping[str, Any], kind: str) -> list[tuple[str, float, list[str]]]:
    """What other weights or shifted inputs change in the numbers of a model, at each measurable working point.

    `kind` is `weights` or `systematics`.

    Returns:
        Name of the variation, wanted signal efficiency, and shifts of accuracy, area and efficiency of each class;
        evaluations of release 0.2.0 have no area.
    """
    together = {f"all {len(run[kind])}": run[f"{kind}_envelope"]} if f"{kind}_envelope" in run else {}
    return [
        (
            name,
            point["wanted"],
            [_shift(each) for each in (found["accuracy"], found.get("auc"), *point["efficiencies"].values())],
        )
        for name, found in (*run.get(kind, {}).items(), *together.items())
        for point, nominal in zip(found["working_points"], run["working_points"], strict=True)
        if nominal["measurable"]
    ]


def _shift(found: Mapping[str, float] | None) -> str:
    r"""A shift in percentage points with its error, or the largest ones down and up with the RMS of all.

    Examples:
        >>> ascii(_shift({"shift": -1e-9, "error": 0.0123})), ascii(_shift({"shift": 0.0, "error": 0.0}))
        ("'+0.00 \\xb1 1.23'", "'+0.00 \\xb1 0'")
        >>> _shift({"down": -0.012, "up": 0.0, "rms": 0.0085})
        '-1.20 +0.00 (0.85)'
    """
    if found is None:
        return "-"
    if "rms" in found:
        return f"{100 * found['down']:+z.2f} {100 * found['up']:+z.2f} ({100 * found['rms']:.2f})"
    error = f"{100 * found['error']:.2f}" if found["error"] else "0"
    return f"{100 * found['shift']:+z.2f} ± {error}"
