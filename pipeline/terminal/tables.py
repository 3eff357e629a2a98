"""Tables and sentences about results of the stages, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from models.evaluation.rounding import (
    NOT_MEASURABLE,
    inverse_with_interval,
    limit_of,
    with_error,
    with_interval,
)
from pipeline.reporting.cutflow import Step, shows_weights
from pipeline.reporting.summary import estimate, shifts, spread
from pipeline.terminal.grid import Grid
from training.settings import TrainSettings

if TYPE_CHECKING:
    from models.evaluation.intervals import Efficiency
    from training.gridsearch.results import Score

#: Number of settings of a search that a table shows, the best first.
_ROWS_SHOWN: Final = 10
#: What the last rows of a table of shifts say.
_SPREAD: Final = "all: largest shifts down and up, and in brackets the root mean square"


def describe(settings: TrainSettings) -> str:
    """The run in a sentence: method, optimiser, workers and the learning rate in effect.

    Examples:
        >>> describe(TrainSettings(algorithm="ar-sgd", optimizer="sgd", workers=4))
        'ar-sgd with sgd, 4 worker(s), learning rate 0.012 (0.003 x 4 workers)'
    """
    rate = settings.effective_learning_rate
    scaled = (
        f" ({settings.learning_rate:g} x {settings.workers} workers)"
        if rate != settings.learning_rate
        else ""
    )
    slow = ""
    if settings.slowmo is not None:
        average = "with" if settings.slowmo_is_exact else "without"
        slow = (
            f", SlowMo {average} exact average (tau {settings.slowmo.tau}, alpha {settings.slowmo.alpha:g}, beta "
            f"{settings.slowmo.beta:g}; state of {settings.optimizer}: {settings.state_policy})"
        )
    return (
        f"{settings.algorithm.name} with {settings.optimizer}, {settings.workers} worker(s), learning rate "
        f"{rate:g}{scaled}{slow}"
    )


def cutflow_table(steps: Sequence[Step]) -> Grid:
    """Events and efficiency with its error after each step, by column; weights too if they tell more."""
    weighted = shows_weights(steps)
    heads = ("events", "efficiency", *(("weights", "weighted eff.") if weighted else ()))
    table = Grid("", *(f"{column}\n{head}" for column in steps[0].yields for head in heads))
    for step in steps:
        cells = [step.name]
        for column, each in step.yields.items():
            cells += [str(each.events), _efficiency(step.efficiencies[column])]
            cells += [f"{each.weight:.5g}", _efficiency(step.weighted[column])] if weighted else []
        table.add_row(*cells)
    return table


def _efficiency(each: Efficiency | None) -> str:
    if each is None:
        return NOT_MEASURABLE
    if limit_of(each._asdict(), 1.0) is not None:
        return with_interval(each._asdict(), most=1.0)
    if each.low == each.high:
        return f"{each.value:g}"
    return with_error(each.value, (each.high - each.low) / 2, "+-")


def rank_table(summary: dict[str, Any]) -> Grid:
    """Steps, events and time of each rank; what they did now and then; and whether all events were used."""
    ranks = summary["per_rank"]
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "rank": lambda rank: str(rank["rank"]),
        "steps": lambda rank: str(rank["steps"]),
        "events": lambda rank: f"{rank['samples']:,}",
        "compute [s]": lambda rank: f"{rank['seconds_by_kind'].get('compute', 0.0):.2f}",
        "communicate [s]": lambda rank: f"{rank['seconds_by_kind'].get('communicate', 0.0):.2f}",
        "wait [s]": lambda rank: f"{rank['wait_seconds']:.2f}",
    }
    if any(rank.get("averages_begun") for rank in ranks):
        columns["averages"] = lambda rank: f"{rank['averages_begun']}+{rank['averages_received']}"
        columns["staleness"] = lambda rank: (
            f"{rank['mean_staleness']:.1f}, max {rank['max_staleness']}"
        )
    for name in summary["acted"]:
        if name != "averages_begun":
            columns[name.replace("_", " ")] = lambda rank, name=name: f"{rank.get(name, 0):,}"  # type: ignore[misc]
    columns["accuracy"] = lambda rank: f"{rank['worker_val_accuracy']:.3f}"
    table = Grid(*columns, caption=f"{about_events(summary)}{_about_cycles(summary)}")
    for rank in ranks:
        table.add_row(*(cell(rank) for cell in columns.values()))
    return table


def about_events(summary: Mapping[str, Any]) -> str:
    """How many events were trained on, and how many left out.

    Examples:
        >>> about_events({"epochs": 20, "train_rows": 419, "samples": 8380, "samples_left_out": 0})
        '20 epochs of 419 events, none left out'
    """
    left_out = summary["samples_left_out"]
    lost = (
        f"{left_out:,} of {summary['samples'] + left_out:,} left out"
        if left_out
        else "none left out"
    )
    return f"{summary['epochs']} epochs of {summary['train_rows']:,} events, {lost}"


def _about_cycles(summary: dict[str, Any]) -> str:
    """The exchange cycles of a training with agents, in a sentence."""
    if "mean_cycle_seconds" not in summary:
        return ""
    sent, received = (summary[name] / 1e6 for name in ("bytes_reduced", "bytes_broadcast"))
    return (
        f"; {summary['cycles']} cycles of {summary['mean_cycle_seconds']:.2f} s, {sent:,.1f} MB up, {received:,.1f} MB "
        f"down, agents train {summary['utilisation']:.0%} of the time"
    )


def search_table(scores: list[Score]) -> Grid:
    """The best settings of a search."""
    from training.gridsearch.results import latency_cost, pareto_front

    smallest, fastest = pareto_front(scores), pareto_front(scores, latency_cost)
    table = Grid(
        *("layers", "batch", "rate", "epochs", "weights", "accuracy", "behind", "us"),
        keys=4,
        title=f"the best {min(_ROWS_SHOWN, len(scores))} of {len(scores)} settings; us: time per event",
        caption="behind: the best, fold by fold; *: ahead of all smaller, or quicker, beyond noise",
    )
    for each in scores[:_ROWS_SHOWN]:
        trial, behind = each.trial, scores[0].lead_over(each)
        table.add_row(
            "-".join(map(str, trial.hidden)),
            str(trial.batch_size),
            f"{trial.learning_rate:g}",
            str(trial.epochs),
            f"{each.num_parameters:,}{'*' if each in smallest else ' '}",
            f"{each.accuracy:.3f}",
            with_error(behind.value, behind.error),
            f"{each.latency.value:.1f}{'*' if each in fastest else ' '}",
        )
    return table


def evaluation_tables(metrics: Mapping[str, Any]) -> list[Grid]:
    """Accuracy and areas by model, the working points, and the rates or events if they are known."""
    optional = [_background_points(metrics), *_expected_tables(metrics), _trainings(metrics)]
    varied = [_variations_table(metrics, kind) for kind in ("weights", "systematics")]
    filled = [table for table in (*optional, *varied) if table is not None and len(table.rows) > 1]
    return [_accuracies(metrics), _working_points(metrics), *filled]


def _areas(metrics: Mapping[str, Any]) -> list[str]:
    """Names of the areas; of two classes, one area is both."""
    first = next(iter(metrics["runs"].values()))
    return list(first["auc"])


def _accuracies(metrics: Mapping[str, Any]) -> Grid:
    areas = _areas(metrics)
    table = Grid("model", "accuracy", *(f"AUC {name}" for name in areas))
    for model, run in metrics["runs"].items():
        table.add_row(
            model, estimate(run["accuracy"]), *(estimate(run["auc"][name]) for name in areas)
        )
    return table


def _working_points(metrics: Mapping[str, Any]) -> Grid:
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
            table.add_row(model, _kept(point), *cells)
    return table


def _background_points(metrics: Mapping[str, Any]) -> Grid:
    signal = metrics["signal"]
    table = Grid(
        *("model", "passes", "threshold", f"{signal} kept", "rejection"),
        keys=2,
        title=f"{signal} kept [%] at this efficiency [%] of all backgrounds",
        caption="-: not measurable, effectively fewer than 10 background events pass, or more than this share",
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
    """Rates of a trigger, or events, purity and significance of an offline analysis, where they are known."""
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
        title=f"events at {luminosity}, and Asimov significance, at this signal efficiency for {signal}",
    )
    for model, run in metrics["runs"].items():
        for point in run["working_points"]:
            if not point["measurable"]:
                continue
            if "rates" in point:
                of_classes = [with_interval(point["rates"][name]) for name in classes]
                rates.add_row(model, _kept(point), *of_classes, _percent(point["purity"]))
            if "events" in point:
                names = ("signal_events", "background_events", "significance")
                numbers = [with_interval(point[name]) for name in names]
                rejection = inverse_with_interval(point["all_backgrounds"])
                events.add_row(model, _kept(point), *numbers, rejection, _percent(point["purity"]))
    return [events, rates]


def _trainings(metrics: Mapping[str, Any]) -> Grid:
    areas = _areas(metrics)
    table = Grid(
        *("model", "trainings", "accuracy", *(f"AUC {name}" for name in areas)),
        title="mean and spread over trainings with other seeds, on the same events",
    )
    for model, run in metrics["runs"].items():
        if trainings := run.get("trainings"):
            of_areas = [spread(trainings["auc"][name]) for name in areas]
            table.add_row(model, str(trainings["count"]), spread(trainings["accuracy"]), *of_areas)
    return table


def _kept(point: Mapping[str, Any]) -> str:
    return f"{100 * point['wanted']:g}%"


def _percent(share: Mapping[str, Any] | None) -> str:
    return with_interval(share, scale=100, most=1.0)


def _variations_table(metrics: Mapping[str, Any], kind: str) -> Grid | None:
    """Shifts of accuracy, area and efficiencies with other weights or shifted inputs; None if there are none."""
    if not any(run.get(kind) for run in metrics["runs"].values()):
        return None
    words = {
        "weights": "with other weights of the generator",
        "systematics": "after a shift of the energy scale",
    }[kind]
    table = Grid(
        *("model", kind, "kept", "accuracy", "AUC", *metrics["classes"]),
        keys=3,
        title=f"shift [%] of accuracy, area under the ROC curve, and efficiencies at the same threshold, {words}",
        caption=_SPREAD
        if any(f"{kind}_envelope" in run for run in metrics["runs"].values())
        else "",
    )
    for name, run in metrics["runs"].items():
        for variation, wanted, cells in shifts(run, kind):
            table.add_row(name, variation, f"{100 * wanted:g}%", *cells)
    return table


def export_table(found: dict[str, Any]) -> Grid:
    """Sizes, parity and times of the exported networks, in the form for batches."""
    heads = ("network", "size [kB]", "differs by", "median", "99 %", "99.9 %", "events/s")
    table = Grid(
        *heads, title="model.onnx: size, largest difference from torch, times per event [us]"
    )
    for network, each in found.items():
        times, form = each["latency_us"], each["forms"]["model.onnx"]
        table.add_row(
            network,
            f"{form['bytes'] / 1000:,.1f}",
            f"{form['largest_difference']:.1e}",
            *(
                "-" if times[name] is None else f"{times[name]:,.1f}"
                for name in ("p50", "p99", "p99_9")
            ),
            f"{each['events_per_second']:,.0f}",
        )
    return table
