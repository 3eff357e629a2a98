"""Tables of the results of an evaluation, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from models.evaluation.rounding import inverse_with_interval, with_interval
from pipeline.reporting.summary import estimate, independence_rows, shifts, spread
from pipeline.terminal.grid import Grid

#: Explains the last rows of a table of shifts.
_ENVELOPE_CAPTION: Final = "all: largest shifts down and up, and in brackets the root mean square"


def evaluation_tables(metrics: Mapping[str, Any]) -> list[Grid]:
    """Make the tables of an evaluation: accuracies, working points, and all others that have rows.

    `metrics` is the content of `metrics.json`, in which `runs` holds the numbers of each model. A
    working point is a cut on the score at which a wanted share of the signal, or of the background,
    passes.
    """
    optional = [
        _background_points(metrics),
        *_expected_tables(metrics),
        _trainings(metrics),
        _independence(metrics),
        _variations_table(metrics, "weights"),
        _variations_table(metrics, "systematics"),
    ]
    # The first row holds the heads of the columns.
    filled = [table for table in optional if len(table.rows) > 1]
    return [_accuracies(metrics), _working_points(metrics), *filled]


def _areas(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the areas under ROC curves, which are the same for all models.

    There is one area for each class, but a single one for two classes.
    """
    first = next(iter(metrics["runs"].values()))
    return list(first["auc"])


def _accuracies(metrics: Mapping[str, Any]) -> Grid:
    """Make a table of accuracy and areas with their errors, one row for each model."""
    areas = _areas(metrics)
    table = Grid("model", "accuracy", *[f"AUC {name}" for name in areas])
    for model, run in metrics["runs"].items():
        area_cells = [estimate(run["auc"][name]) for name in areas]
        table.add_row(model, estimate(run["accuracy"]), *area_cells)
    return table


def _working_points(metrics: Mapping[str, Any]) -> Grid:
    """Make a table of each background share that passes, by model and signal efficiency.

    The threshold is the score above which the wanted share of the signal lies. A point that cannot
    be measured gets dashes.
    """
    first = next(iter(metrics["runs"].values()))
    backgrounds = list(first["working_points"][0]["backgrounds"])
    table = Grid(
        *("model", "kept", "threshold", *backgrounds),
        keys=2,
        title=f"background efficiency [%] at this signal efficiency for {metrics['signal']}",
        caption="-: not measurable, effectively fewer than 10 signal events fail",
    )
    for model, run in metrics["runs"].items():
        for point in run["working_points"]:
            cells = ["-"] * (1 + len(backgrounds))
            if point["measurable"]:
                cells = [f"{point['threshold']:.4f}", *map(_percent, point["backgrounds"].values())]
            table.add_row(model, _wanted(point), *cells)
    return table


def _background_points(metrics: Mapping[str, Any]) -> Grid:
    """Make a table of the signal that is kept, by model and wanted efficiency of all backgrounds.

    The rejection is the inverse of the background efficiency. Rows exist only if the config asks
    for such points.
    """
    signal = metrics["signal"]
    table = Grid(
        *("model", "passes", "threshold", f"{signal} kept", "rejection"),
        keys=2,
        title=f"{signal} kept [%] at this efficiency [%] of all backgrounds",
        caption=(
            "-: not measurable, effectively fewer than 10 background events pass, or more than "
            "this share"
        ),
    )
    for model, run in metrics["runs"].items():
        for point in run.get("background_points", ()):
            cells = ["-"] * 3
            if point["measurable"]:
                rejection = inverse_with_interval(point["all_backgrounds"])
                cells = [f"{point['threshold']:.4f}", _percent(point["signal"]), rejection]
            table.add_row(model, f"{100 * point['wanted']:g}", *cells)
    return table


def _expected_tables(metrics: Mapping[str, Any]) -> list[Grid]:
    """Make two tables with a row per measurable working point: events, and trigger rates.

    An offline analysis has numbers of events at an integrated luminosity; a trigger has rates
    [1/s]. So at most one of the tables has rows, and none without cross-sections.
    """
    classes, signal = metrics["classes"], metrics["signal"]
    rates = Grid(
        *("model", "kept", *classes, "purity [%]"),
        keys=2,
        title=f"rates [1/s] at this signal efficiency for {signal}",
    )
    luminosity = metrics.get("luminosity", "")
    events = Grid(
        *("model", "kept", "signal", "background", "significance", "rejection", "purity [%]"),
        keys=2,
        title=(
            f"events at {luminosity}, and Asimov significance, at this signal efficiency for "
            f"{signal}"
        ),
    )
    for model, run in metrics["runs"].items():
        for point in run["working_points"]:
            if not point["measurable"]:
                continue
            # Rates of all classes that pass the cut.
            if "rates" in point:
                rate_cells = [with_interval(point["rates"][name]) for name in classes]
                rates.add_row(model, _wanted(point), *rate_cells, _percent(point["purity"]))
            if "events" in point:
                names = ("signal_events", "background_events", "significance")
                event_cells = [with_interval(point[name]) for name in names]
                rejection = inverse_with_interval(point["all_backgrounds"])
                purity = _percent(point["purity"])
                events.add_row(model, _wanted(point), *event_cells, rejection, purity)
    return [events, rates]


def _trainings(metrics: Mapping[str, Any]) -> Grid:
    """Make a table of mean and spread over trainings of a model with different seeds."""
    areas = _areas(metrics)
    table = Grid(
        *("model", "trainings", "accuracy", *[f"AUC {name}" for name in areas]),
        title="mean and spread over trainings with other seeds, on the same events",
    )
    for model, run in metrics["runs"].items():
        if trainings := run.get("trainings"):
            area_cells = [spread(trainings["auc"][name]) for name in areas]
            count, accuracy = str(trainings["count"]), spread(trainings["accuracy"])
            table.add_row(model, count, accuracy, *area_cells)
    return table


def _independence(metrics: Mapping[str, Any]) -> Grid:
    """Make a table of how the scores depend on the columns of `train.decorrelate`."""
    first = next(iter(metrics["runs"].values()))
    points = [f"p at {_wanted(point)}" for point in first["working_points"]]
    table = Grid(
        *("model", "column", "class", "dCorr²", "if independent", *points),
        keys=3,
        title="distance correlation of score and column within a class, and p of a flat efficiency",
        caption="-: not measurable",
    )
    for model, run in metrics["runs"].items():
        for row in independence_rows(run):
            table.add_row(model, *row)
    return table


def _wanted(point: Mapping[str, Any]) -> str:
    """Return the wanted signal efficiency of a working point in per cent."""
    return f"{100 * point['wanted']:g}%"


def _percent(share: Mapping[str, Any] | None) -> str:
    """Return a share with its interval in per cent; None is not measurable."""
    return with_interval(share, scale=100, most=1.0)


def _variations_table(metrics: Mapping[str, Any], variation_type: str) -> Grid:
    """Make a table of shifts of accuracy, area and efficiencies if weights or inputs change.

    The thresholds stay those of the nominal evaluation. `variation_type` is `weights`, other
    weights of the generator, or `systematics`, shifts of energy scales.
    """
    changes = {
        "weights": "with other weights of the generator",
        "systematics": "after a shift of the energy scale",
    }
    # The envelope is a row with the largest shifts of all variations together.
    has_envelope = any(f"{variation_type}_envelope" in run for run in metrics["runs"].values())
    table = Grid(
        *("model", variation_type, "kept", "accuracy", "AUC", *metrics["classes"]),
        keys=3,
        title=(
            "shift [%] of accuracy, area under the ROC curve, and efficiencies at the same "
            f"threshold, {changes[variation_type]}"
        ),
        caption=_ENVELOPE_CAPTION if has_envelope else "",
    )
    for model, run in metrics["runs"].items():
        for variation, efficiency, cells in shifts(run, variation_type):
            table.add_row(model, variation, f"{100 * efficiency:g}%", *cells)
    return table
