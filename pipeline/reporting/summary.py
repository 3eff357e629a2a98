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

#: The signal efficiency that the question asks for; if it cannot be measured, the nearest that can
#: be.
_ASKED_EFFICIENCY: Final = 0.9
#: A space at which no line ends.
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
#: Spaces at which no line should end: before units, after comparisons, within brackets.
_SPACES_TO_KEEP: Final = re.compile(
    r"(?<=\d) (?=(?:%|[GT]eV|[mµn]?s|kB)(?!\w))|(?<=[<>]) (?=\d)|(?<=\d) (?=−\d)"  # noqa: RUF001
)
#: A number such as 4.7e-07.
_NUMBER_WITH_POWER: Final = re.compile(r"\d(?:\.\d+)?e[-+]\d+")
_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def share(interval: Interval | None) -> str:
    """Return an efficiency or purity in per cent, or a limit if nothing or all passes.

    Examples:
        >>> share({"value": 0.0, "low": 0.0, "high": 0.0577})
        '< 5.8 %'
        >>> share({"value": 1.0, "low": 0.0123, "high": 1.0})
        '> 1.2 %'
        >>> share({"value": 0.0, "low": 0.0, "high": 0.0996}), share(None)
        ('< 10 %', 'not measurable')
    """
    return with_interval(interval, scale=100, symbol=" %", most=1.0, form=ON_PAGE)


def rate(interval: Interval) -> str:
    r"""Return a rate with the distances to the ends of its interval, or an upper limit.

    Examples:
        >>> ascii(rate({"value": 120.4, "low": 100.0, "high": 160.0}))
        "'120/s (+40 \\u221220)'"
    """
    return with_interval(interval, symbol="/s", form=ON_PAGE)


def event_count(interval: Interval) -> str:
    """Return a number of events, or a significance, with its interval or a limit."""
    return with_interval(interval, form=ON_PAGE)


def estimate(measurement: Mapping[str, float | None]) -> str:
    """Return a number with its standard error, given as `{value, error}`."""
    return with_error(measurement["value"], measurement["error"])


def spread(over_trainings: Mapping[str, float]) -> str:
    """Return mean and standard deviation of a number over several trainings."""
    return with_error(over_trainings["mean"], over_trainings["spread"])


def tight(text: str) -> str:
    """Return a text with no line break between number and unit, or within an interval."""
    return _SPACES_TO_KEEP.sub(_NO_BREAK, text)


def powers(value: float, digits: int = 3) -> str:
    r"""Return a number rounded to some digits, very large and small ones with a power of ten.

    Numbers from 0.001 to 100,000 are written without a power.

    Examples:
        >>> ascii(powers(2e34))
        "'2\\xa0\\xd7\\xa010\\xb3\\u2074'"
        >>> powers(1234.0)
        '1,230'
    """
    scientific = f"{value:.{digits - 1}e}"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{float(scientific):,.12g}"
    mantissa, _, exponent = scientific.partition("e")
    power = str(int(exponent)).translate(_SUPERSCRIPTS)
    return f"{float(mantissa):g}{_NO_BREAK}×{_NO_BREAK}10{power}"  # noqa: RUF001 - a product


def with_powers(text: str) -> str:
    r"""Return a text in which numbers such as 4.7e-07 are written as `powers` does.

    Examples:
        >>> ascii(with_powers("0.5 ± 4.7e-07"))
        "'0.5 \\xb1 4.7\\xa0\\xd7\\xa010\\u207b\\u2077'"
    """
    return _NUMBER_WITH_POWER.sub(lambda match: powers(float(match[0])), text)


def point_to_show(runs: Mapping[str, Any]) -> int | None:
    """Return the index of the working point nearest to 90 % that some model has measured.

    A working point is a cut on the score at which a wanted share of the signal is kept. `runs` are
    the metrics by model; all models have the same list of points. None if no point is measured.
    """
    # The wanted efficiencies are the same for all models.
    points = next(iter(runs.values()))["working_points"]
    measured = [index for index in range(len(points)) if _measured_points(runs, index)]

    def distance(index: int) -> float:
        """Return how far the wanted efficiency of a point is from 90 %."""
        return abs(float(points[index]["wanted"]) - _ASKED_EFFICIENCY)

    return min(measured, key=distance, default=None)


def _measured_points(runs: Mapping[str, Any], index: int) -> dict[str, Mapping[str, Any]]:
    """Return one working point for each model that could measure it, by the name of the model.

    `index` is its place in the list of wanted efficiencies. A point is measurable if effectively 10
    or more signal events fail its cut.
    """
    points = {model: run["working_points"][index] for model, run in runs.items()}
    return {model: point for model, point in points.items() if point["measurable"]}


def answer(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how much background is left at 90 % of the signal, in texts for the page.

    It takes the measured working point nearest to 90 %, and the model that leaves the least
    background there; the upper end of the interval decides between equals. `metrics` is the content
    of `metrics.json`, with the numbers of each model in `runs`. None if no point is measurable.
    """
    index = point_to_show(metrics["runs"])
    if index is None:
        return None
    points = _measured_points(metrics["runs"], index)

    def background_left(model: str) -> tuple[float, float]:
        """Return the share of all backgrounds that passes, and the end of its interval."""
        share = points[model]["all_backgrounds"]
        return share["value"], share["high"]

    best_model = min(points, key=background_left)
    # Rates exist for a trigger, events for an offline analysis; without cross-sections neither.
    point = points[best_model]
    rates = point.get("rates", {})
    return {
        "model": best_model,
        "kept": f"{100 * point['wanted']:g} %",
        "left": {name: share(efficiency) for name, efficiency in point["backgrounds"].items()},
        "rejection": inverse_with_interval(point["all_backgrounds"]),
        "rates": {name: rate(interval) for name, interval in rates.items()},
        "total": rate(point["total_rate"]) if "rates" in point else None,
        "events": _expected_events(point),
        "purity": share(point.get("purity")),
        "best_cut": _best_cut(metrics["runs"][best_model]) if "events" in point else "",
    }


def _expected_events(point: Mapping[str, Any]) -> dict[str, str]:
    """Return signal, background and significance behind the cut of a working point, as texts.

    They are numbers of events at a luminosity, which only an offline analysis has; a trigger has
    rates, and the result is empty.
    """
    if "events" not in point:
        return {}
    names = ("signal_events", "background_events", "significance")
    return {name: _with_relation(event_count(point[name])) for name in names}


def _with_relation(text: str) -> str:
    """Return a number behind an equals sign, unless it is a limit.

    Examples:
        >>> _with_relation("120"), _with_relation("< 3.7")
        ('= 120', '< 3.7')
    """
    return text if text.startswith(("<", ">")) else f"= {text}"


def _best_cut(run: Mapping[str, Any]) -> str:
    """Return a sentence about the cut on the score that has the highest significance.

    `run` are the metrics of a model, whose `significance` holds lists with an entry per cut, and
    the index `best`. Empty if too few background events are left behind every cut.
    """
    scan = run["significance"]
    best = scan["best"]
    if best is None:
        return ""
    significance = event_count(
        {"value": scan["asimov"][best], "low": scan["low"][best], "high": scan["high"][best]}
    )
    # The tightest measurable cut may be as good within its error; then a tighter one may be better.
    remark = " (perhaps more at tighter cuts)" if scan["best_is_at_end"] else ""
    return (
        "Of the cuts that leave effectively 10 or more background events of the test split, the "
        f"one at {scan['threshold'][best]:.4f} has the highest significance, "
        f"{significance}{remark}, with {powers(scan['signal'][best])} signal and "
        f"{powers(scan['background'][best])} background events."
    )


def about_data(metrics: Mapping[str, Any]) -> str:
    """Return a sentence about the data beside the simulation: numbers, blinding and scale.

    Blinded events, those with a high score, are not shown before the analysis is final. The scale
    makes the simulation agree with the number of shown data; it is None where cross-sections give
    the expected number. Empty without data.
    """
    data = next(iter(metrics["runs"].values())).get("data", {})
    # Evaluations of earlier releases do not say how many there were.
    if "num_entries" not in data:
        return ""
    num_files, blind_above = data["num_files"], data["blind_above"]
    files = "file" if num_files == 1 else "files"
    entries = f"Data: {data['num_entries']:,} entries in {num_files:,} {files}"
    events = f"{data['num_events']:,} events pass the selection"
    if blind_above is not None:
        # Their number would tell what blinding hides.
        events += f" and are shown; those that a model scores above {blind_above:g} are blinded"
    if data["scale"] is None:
        num_expected = powers(data["num_expected"], 4)
        simulation = (
            f"the simulation expects {num_expected} of those shown at {metrics['luminosity']}"
        )
    else:
        simulation = f"the simulation is scaled by {powers(data['scale'])} to those shown"
    return f"{entries}; {events}; {simulation}."


def unmeasurable(metrics: Mapping[str, Any]) -> str:
    """Return a sentence about the working points that cannot be measured; empty if all can.

    For each model it lists the wanted efficiencies and how many signal events fail the cut. Models
    with the same list are named together.
    """
    models_by_text: dict[str, list[str]] = {}
    for model, run in metrics["runs"].items():
        points = [point for point in run["working_points"] if not point["measurable"]]
        if points:
            efficiencies = ", ".join(f"{100 * point['wanted']:g} %" for point in points)
            # Effective numbers of signal events below the cut.
            num_failing = ", ".join(f"{point['num_failing']:.1f}" for point in points)
            text = f"{efficiencies} (below such a cut {num_failing})"
            models_by_text.setdefault(text, []).append(model)
    if not models_by_text:
        return ""
    texts = []
    for text, models in models_by_text.items():
        concerns_all = len(models) == len(metrics["runs"])
        texts.append(text if concerns_all else f"{', '.join(models)} {text}")
    return (
        f"Not measurable on these events: efficiencies of {'; '.join(texts)}; effectively 10 "
        f"events of {metrics['signal']} below the cut are needed."
    )


def shifts(run: Mapping[str, Any], variation_type: str) -> list[tuple[str, float, list[str]]]:
    """List shifts of a model's numbers by other weights or inputs, at measurable points.

    Other weights are those of the generator, for example of another scale. The envelope, the
    largest shifts of all variations together, follows last under the name `all <number>`.

    Args:
        run: The metrics of the model.
        variation_type: `weights` or `systematics`.

    Returns:
        Tuples of the name of the variation, the wanted signal efficiency, and texts: shifts of
        accuracy, area and efficiency of each class. Evaluations of release 0.2.0 have no area.
    """
    variations = dict(run.get(variation_type, {}))
    envelope = run.get(f"{variation_type}_envelope")
    if envelope is not None:
        variations[f"all {len(variations)}"] = envelope
    nominal_points = run["working_points"]
    rows = []
    for name, variation in variations.items():
        accuracy = _shift(variation["accuracy"])
        auc = _shift(variation.get("auc"))
        for point, nominal_point in zip(variation["working_points"], nominal_points, strict=True):
            if not nominal_point["measurable"]:
                continue
            efficiencies = [_shift(shift) for shift in point["efficiencies"].values()]
            texts = [accuracy, auc, *efficiencies]
            rows.append((name, point["wanted"], texts))
    return rows


def independence_rows(run: Mapping[str, Any]) -> list[list[str]]:
    """List, as texts, how the score of a model depends on the columns of `train.decorrelate`.

    Returns:
        For each column and class: their names, dCorr² with its error, its mean for an independent
        score, and the p-value of a flat efficiency at each working point, `-` without.
    """
    rows = []
    for column, by_class in run.get("independence", {}).items():
        for class_name, numbers in by_class.items():
            correlation = numbers["distance_correlation"]
            independent = _significant(correlation["independent"])
            p_values = {point["wanted"]: point["p_value"] for point in numbers["points"]}
            points = [
                _significant(p_values.get(point["wanted"])) for point in run["working_points"]
            ]
            rows.append([column, class_name, estimate(correlation), independent, *points])
    return rows


def _significant(number: float | None) -> str:
    """Return a number with two digits; `-` for None."""
    return "-" if number is None else f"{number:.2g}"


def _shift(shift: Mapping[str, float] | None) -> str:
    r"""Return a shift in percentage points with its error, as text; `-` if there is none.

    An envelope gives the largest shifts down and up instead, with the root mean square in brackets.

    Examples:
        >>> ascii(_shift({"shift": -1e-9, "error": 0.0123}))
        "'+0.0 \\xb1 1.2'"
        >>> ascii(_shift({"shift": 0.0, "error": 0.0}))
        "'+0 \\xb1 0'"
        >>> _shift({"down": -0.012, "up": 0.0, "rms": 0.0085})
        '-1.2 +0.0 (0.9)'
    """
    if shift is None:
        return "-"
    if "rms" not in shift:
        # A positive shift gets its sign.
        text = with_error(100 * shift["shift"], 100 * shift["error"])
        return text if text.startswith("-") else f"+{text}"
    if shift["rms"] <= 0:
        return "-0 +0 (0)"
    # All three numbers get the decimal places of the root mean square.
    decimals = decimal_places(100 * shift["rms"])
    down = rounded(100 * shift["down"], decimals).removeprefix("-")
    up = rounded(100 * shift["up"], decimals)
    rms = rounded(100 * shift["rms"], decimals)
    return f"-{down} +{up} ({rms})"
