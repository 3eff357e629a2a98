"""The answer to the trigger's question in a sentence, and numbers with intervals in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from models.evaluation.rounding import (
    ON_PAGE,
    Interval,
    decimal_places,
    inverse_with_interval,
    rounded,
    with_error,
    with_interval,
)

#: The signal efficiency that the question asks for; if it cannot be measured, the nearest that can be.
_ASKED: Final = 0.9
#: A space at which no line ends.
_TIGHT: Final = "\N{NO-BREAK SPACE}"
#: Spaces at which no line should end: before units, after comparisons, within brackets.
_WITHIN: Final = re.compile(
    r"(?<=\d) (?=(?:%|[GT]eV|[mµn]?s|kB)(?!\w))|(?<=[<>]) (?=\d)|(?<=\d) (?=−\d)"  # noqa: RUF001
)
_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def share(interval: Interval | None) -> str:
    """An efficiency or purity with its interval in per cent, or a limit where nothing, or all, passes.

    Examples:
        >>> share({"value": 0.0, "low": 0.0, "high": 0.0577}), share({"value": 1.0, "low": 0.0123, "high": 1.0})
        ('< 5.8 %', '> 1.2 %')
        >>> share({"value": 0.0, "low": 0.0, "high": 0.0996}), share(None)
        ('< 10 %', 'not measurable')
    """
    return with_interval(interval, scale=100, symbol=" %", most=1.0, form=ON_PAGE)


def rate(interval: Interval) -> str:
    r"""A rate with its interval, or an upper limit.

    Examples:
        >>> ascii(rate({"value": 120.4, "low": 100.0, "high": 160.0}))
        "'120/s (+40 \\u221220)'"
    """
    return with_interval(interval, symbol="/s", form=ON_PAGE)


def number(interval: Interval) -> str:
    """A number of events, or a significance, with its interval, or an upper limit."""
    return with_interval(interval, form=ON_PAGE)


def estimate(each: Mapping[str, float | None]) -> str:
    """A number with its error."""
    return with_error(each["value"], each["error"])


def spread(over: Mapping[str, float]) -> str:
    """Mean and spread of a number over several trainings."""
    return with_error(over["mean"], over["spread"])


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


def point_to_show(runs: Mapping[str, Any]) -> int | None:
    """Index of the working point nearest to 90 % that some model has measured; None if there is none."""
    wanted = [point["wanted"] for point in next(iter(runs.values()))["working_points"]]
    measured = [place for place in range(len(wanted)) if _measured_at(runs, place)]
    return min(measured, key=lambda place: abs(wanted[place] - _ASKED), default=None)


def _measured_at(runs: Mapping[str, Any], place: int) -> dict[str, Mapping[str, Any]]:
    """A working point of the models that have measured it."""
    points = {model: run["working_points"][place] for model, run in runs.items()}
    return {model: point for model, point in points.items() if point["measurable"]}


def answer(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """How much background is left at 90 % of the signal, by the model that leaves the least; None if unmeasurable."""
    place = point_to_show(metrics["runs"])
    if place is None:
        return None
    points = _measured_at(metrics["runs"], place)

    def background_left(model: str) -> tuple[float, float]:
        share = points[model]["all_backgrounds"]
        return share["value"], share["high"]

    best = min(points, key=background_left)
    point = points[best]
    return {
        "model": best,
        "kept": f"{100 * point['wanted']:g} %",
        "left": {name: share(left) for name, left in point["backgrounds"].items()},
        "rejection": inverse_with_interval(point["all_backgrounds"]),
        "rates": {name: rate(behind) for name, behind in point.get("rates", {}).items()},
        "total": rate(point["total_rate"]) if "rates" in point else None,
        "events": _events(point),
        "purity": share(point.get("purity")),
        "best_cut": _best_cut(metrics["runs"][best]) if "events" in point else "",
    }


def _events(point: Mapping[str, Any]) -> dict[str, str]:
    """Signal, background and significance behind a cut of an offline analysis; empty for a trigger."""
    names = ("signal_events", "background_events", "significance")
    return {name: _compared(number(point[name])) for name in names} if "events" in point else {}


def _compared(text: str) -> str:
    """A number behind its symbol: with an equals sign, unless it is a limit.

    Examples:
        >>> _compared("120"), _compared("< 3.7")
        ('= 120', '< 3.7')
    """
    return text if text.startswith(("<", ">")) else f"= {text}"


def _best_cut(run: Mapping[str, Any]) -> str:
    """The cut of the highest significance, in a sentence; empty if too few background events are left everywhere."""
    scan = run["significance"]
    best = scan["best"]
    if best is None:
        return ""
    highest = number(
        {"value": scan["asimov"][best], "low": scan["low"][best], "high": scan["high"][best]}
    )
    signal, background, threshold = (
        scan[name][best] for name in ("signal", "background", "threshold")
    )
    beyond = " (perhaps more at tighter cuts)" if scan["best_is_at_end"] else ""
    return (
        f"Of the cuts that leave effectively 10 or more background events of the test split, the one at "
        f"{threshold:.4f} has the highest significance, {highest}{beyond}, with {powers(signal)} signal and "
        f"{powers(background)} background events."
    )


def about_data(metrics: Mapping[str, Any]) -> str:
    """What data an evaluation has beside the simulation, and how these are scaled and blinded; empty without data."""
    numbers = next(iter(metrics["runs"].values())).get("data", {})
    # Evaluations of earlier releases do not say how many there were.
    if "num_entries" not in numbers:
        return ""
    num_files, blind_above = numbers["num_files"], numbers["blind_above"]
    files = f"Data: {numbers['num_entries']:,} entries in {num_files:,} {'file' if num_files == 1 else 'files'}"
    shown = f"{numbers['num_events']:,} events pass the selection"
    if blind_above is not None:
        # How many are blinded would tell what blinding hides.
        shown += f" and are shown; those that a model scores above {blind_above:g} are blinded"
    expected = f"the simulation expects {powers(numbers['num_expected'], 4)} of those shown at {metrics['luminosity']}"
    if numbers["scale"] is not None:
        expected = f"the simulation is scaled by {powers(numbers['scale'])} to those shown"
    return f"{files}; {shown}; {expected}."


def unmeasurable(metrics: Mapping[str, Any]) -> str:
    """The working points that cannot be measured; one sentence for all models of which the same holds."""
    models_of: dict[str, list[str]] = {}
    for model, run in metrics["runs"].items():
        few = [point for point in run["working_points"] if not point["measurable"]]
        if few:
            wanted = ", ".join(f"{100 * point['wanted']:g} %" for point in few)
            failing = ", ".join(f"{point['num_failing']:.1f}" for point in few)
            models_of.setdefault(f"{wanted} (below such a cut {failing})", []).append(model)
    if not models_of:
        return ""
    is_common = list(map(len, models_of.values())) == [len(metrics["runs"])]
    texts = [
        text if is_common else f"{', '.join(models)} {text}" for text, models in models_of.items()
    ]
    return (
        f"Not measurable on these events: efficiencies of {'; '.join(texts)}; effectively 10 events of "
        f"{metrics['signal']} below the cut are needed."
    )


def shifts(run: Mapping[str, Any], kind: str) -> list[tuple[str, float, list[str]]]:
    """What other weights or shifted inputs change in the numbers of a model, at each measurable working point.

    `kind` is `weights` or `systematics`.

    Returns:
        Name of the variation, wanted signal efficiency, and shifts of accuracy, area and efficiency of each class;
        evaluations of release 0.2.0 have no area.
    """
    together = (
        {f"all {len(run[kind])}": run[f"{kind}_envelope"]} if f"{kind}_envelope" in run else {}
    )
    return [
        (
            name,
            point["wanted"],
            [
                _shift(each)
                for each in (found["accuracy"], found.get("auc"), *point["efficiencies"].values())
            ],
        )
        for name, found in (*run.get(kind, {}).items(), *together.items())
        for point, nominal in zip(found["working_points"], run["working_points"], strict=True)
        if nominal["measurable"]
    ]


def _shift(shift: Mapping[str, float] | None) -> str:
    r"""A shift in percentage points with its error, or the largest ones down and up with the RMS of all.

    Examples:
        >>> ascii(_shift({"shift": -1e-9, "error": 0.0123})), ascii(_shift({"shift": 0.0, "error": 0.0}))
        ("'+0.0 \\xb1 1.2'", "'+0 \\xb1 0'")
        >>> _shift({"down": -0.012, "up": 0.0, "rms": 0.0085})
        '-1.2 +0.0 (0.9)'
    """
    if shift is None:
        return "-"
    if "rms" not in shift:
        text = with_error(100 * shift["shift"], 100 * shift["error"])
        return text if text.startswith("-") else f"+{text}"
    if shift["rms"] <= 0:
        return "-0 +0 (0)"
    places = decimal_places(100 * shift["rms"])
    down, up, rms = (rounded(100 * shift[name], places) for name in ("down", "up", "rms"))
    return f"{down if down.startswith('-') else f'-{down}'} +{up} ({rms})"
