"""Tables and sentences about results of the stages, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pipeline.reporting.cutflow import Step, shows_weights
from pipeline.reporting.summary import estimate, rejection, shifts, spread
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
    scaled = f" ({settings.learning_rate:g} x {settings.workers} workers)" if rate != settings.learning_rate else ""
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
    return "not defined" if each is None else f"{each.value:.4f}+-{(each.high - each.low) / 2:.4f}"


def rank_table(summary: dict[str, Any]) -> Grid:
    """Steps, events and time of each rank; how often each mechanism acted; and whether all events were used."""
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
        columns["staleness"] = lambda rank: f"{rank['mean_staleness']:.1f}, max {rank['max_staleness']}"
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
    lost = f"{left_out:,} of {summary['samples'] + left_out:,} left out" if left_out else "none left out"
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
    from training.gridsearch.results import latency, pareto_front

    smallest, fastest = pareto_front(scores), pareto_front(scores, latency)
    table = Grid(
        *("layers", "batch", "rate", "epochs", "weights", "accuracy", "behind", "us"),
        keys=4,
        title=f"the best {min(_ROWS_SHOWN, len(scores))} of {len(scores)} settings; us: time per event",
        caption="behind: the best, fold by fold; *: ahead of all smaller, or quicker, beyond noise",
    )
    for each in scores[:_ROWS_SHOWN]:
        trial, behind = each.trial, scores[0].ahead_of(each)
        table.add_row(
            "-".join(map(str, trial.hidden)),
            str(trial.batch_size),
            f"{trial.learning_rate:g}",
            str(trial.epochs),
            f"{each.num_parameters:,}{'*' if each in smallest else ' '}",
            f"{each.accuracy:.3f}",
            f"{behind.value:.3f} ± {behind.error:.3f}",
            f"{each.latency.value:.1f}{'*' if each in fastest else ' '}",
        )
    return table


def evaluation_tables(metrics: Mapping[str, Any]) -> list[Grid]:
    """Accuracy and areas by model, the working points, and the rates if they are known."""
    classes, signal, runs = metrics["classes"], metrics["signal"], metrics["runs"]
    first = next(iter(runs.values()))
    # Of two classes, one area is both.
    areas = [f"AUC {name}" for name in first["auc"]]
    backgrounds = list(first["working_points"][0]["backgrounds"])
    summary = Grid("model", "accuracy", *areas)
    points = Grid(
        *("model", "kept", "threshold", *backgrounds),
        keys=2,
        title=f"background efficiency [%] at this signal efficiency for {signal}",
        caption="-: not measurable, fewer than 10 signal events are expected to fail",
    )
    rates = Grid(
        "model", "kept", *classes, "purity", keys=2, title=f"rates [1/s] at this signal efficiency for {signal}"
    )
    signals = Grid(
        *("model", "passes", "threshold", f"{signal} kept", "rejection"),
        keys=2,
        title=f"{signal} kept [%] at this efficiency [%] of all backgrounds",
        caption="-: not measurable, fewer than 10 background events are expected to pass",
    )
    trainings = Grid(
        *("model", "trainings", "accuracy", *areas),
        title="mean and spread over trainings with other seeds, on the same events",
    )
    for name, run in runs.items():
        summary.add_row(name, estimate(run["accuracy"]), *(estimate(run["auc"][each]) for each in first["auc"]))
        for point in run["working_points"]:
            kept, cells = f"{100 * point['wanted']:g}%", ["-"] * (1 + len(backgrounds))
            if point["measurable"]:
                cells = [f"{point['threshold']:.4f}", *(_interval(each, 100) for each in point["backgrounds"].values())]
                if metrics["rates_before"] is not None:
                    purity = "not defined" if point["purity"] is None else f"{point['purity']['value']:.3f}"
                    rates.add_row(name, kept, *(_interval(point["rates"][each]) for each in classes), purity)
            points.add_row(name, kept, *cells)
        for point in run.get("background_points", ()):
            cells = ["-"] * 3
            if point["measurable"]:
                kept, rejected = _interval(point["signal"], 100), rejection(point["all_backgrounds"])
                cells = [f"{point['threshold']:.4f}", kept, rejected]
            signals.add_row(name, f"{100 * point['wanted']:g}", *cells)
        if found := run.get("trainings"):
            of_areas = (spread(found["auc"][each]) for each in first["auc"])
            trainings.add_row(name, str(found["count"]), spread(found["accuracy"]), *of_areas)
    varied = [table for kind in ("weights", "systematics") if (table := _variations_table(metrics, kind))]
    return [summary, points, *(each for each in (signals, rates, trainings) if len(each.rows) > 1), *varied]


def _variations_table(metrics: Mapping[str, Any], kind: str) -> Grid | None:
    """Shifts of accuracy, area and efficiencies with other weights or shifted inputs; None if there are none."""
    if not any(run.get(kind) for run in metrics["runs"].values()):
        return None
    words = {"weights": "with other weights of the generator", "systematics": "after a shift of the energy scale"}[kind]
    table = Grid(
        *("model", kind, "kept", "accuracy", "AUC", *metrics["classes"]),
        keys=3,
        title=f"shift [%] of accuracy, area under the ROC curve, and efficiencies at the same threshold, {words}",
        caption=_SPREAD if any(f"{kind}_envelope" in run for run in metrics["runs"].values()) else "",
    )
    for name, run in metrics["runs"].items():
        for variation, wanted, cells in shifts(run, kind):
            table.add_row(name, variation, f"{100 * wanted:g}%", *cells)
    return table


def _interval(found: Mapping[str, float], unit: float = 1.0) -> str:
    """A value with its interval, or an upper limit where nothing passes."""
    low, value, high = (unit * found[name] for name in ("low", "value", "high"))
    if value <= 0:
        return f"< {high:.3g}"
    return f"{value:.3g} +{max(0.0, high - value):.2g} -{max(0.0, value - low):.2g}"


def export_table(found: dict[str, Any]) -> Grid:
    """Sizes, parity and times of the exported networks, in the form for batches."""
    heads = ("network", "size [kB]", "differs by", "median", "99 %", "99.9 %", "events/s")
    table = Grid(*heads, title="model.onnx: size, largest difference from torch, times per event [us]")
    for network, each in found.items():
        times, form = each["latency_us"], each["forms"]["model.onnx"]
        table.add_row(
            network,
            f"{form['bytes'] / 1000:,.1f}",
            f"{form['largest_difference']:.1e}",
            *("-" if times[name] is None else f"{times[name]:,.1f}" for name in ("p50", "p99", "p99_9")),
            f"{each['events_per_second']:,.0f}",
        )
    return table
