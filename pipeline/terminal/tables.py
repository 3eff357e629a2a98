"""Tables and sentences about results of the stages, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

#: Highest number of settings that the table of a search shows, the best first.
_ROWS_SHOWN: Final = 10
#: Explains the last rows of a table of shifts.
_ENVELOPE_CAPTION: Final = "all: largest shifts down and up, and in brackets the root mean square"


def describe(settings: TrainSettings) -> str:
    """Describe a training in a sentence: method, optimiser, workers, learning rate in effect.

    Examples:
        >>> describe(TrainSettings(algorithm="ar-sgd", optimizer="sgd", workers=4))
        'ar-sgd with sgd, 4 worker(s), learning rate 0.012 (0.003 x 4 workers)'
    """
    rate = settings.effective_learning_rate
    scaling = ""
    if rate != settings.learning_rate:
        scaling = f" ({settings.learning_rate:g} x {settings.workers} workers)"
    return (
        f"{settings.algorithm.name} with {settings.optimizer}, {settings.workers} worker(s), "
        f"learning rate {rate:g}{scaling}{_describe_slowmo(settings)}"
    )


def _describe_slowmo(settings: TrainSettings) -> str:
    """Describe SlowMo, a slow momentum over the averages of all workers; empty without it."""
    if settings.slowmo is None:
        return ""
    average = "with" if settings.slowmo_is_exact else "without"
    return (
        f", SlowMo {average} exact average (tau {settings.slowmo.tau}, alpha "
        f"{settings.slowmo.alpha:g}, beta {settings.slowmo.beta:g}; state of {settings.optimizer}: "
        f"{settings.state_policy})"
    )


def cutflow_table(steps: Sequence[Step]) -> Grid:
    """Make a table of events and efficiency after each step, two columns for each sample or class.

    Sums of weights and their efficiency are added if they tell more than the counts.
    """
    has_weights = shows_weights(steps)
    heads = ["events", "efficiency"]
    if has_weights:
        heads += ["weights", "weighted eff."]
    columns = list(steps[0].yields)
    table = Grid("", *[f"{column}\n{head}" for column in columns for head in heads])
    for step in steps:
        cells = [step.name]
        for column, passed in step.yields.items():
            cells += [str(passed.events), _efficiency(step.efficiencies[column])]
            if has_weights:
                cells += [f"{passed.weight:.5g}", _efficiency(step.weighted[column])]
        table.add_row(*cells)
    return table


def _efficiency(interval: Efficiency | None) -> str:
    """Return an efficiency as text with its error, or a limit where nothing or all passes.

    The error is half the width of the interval. An interval without width, that of all events, has
    none.
    """
    if interval is None:
        return NOT_MEASURABLE
    if limit_of(interval._asdict(), 1.0) is not None:
        return with_interval(interval._asdict(), most=1.0)
    if interval.low == interval.high:
        return f"{interval.value:g}"
    return with_error(interval.value, (interval.high - interval.low) / 2, "+-")


def rank_table(summary: dict[str, Any]) -> Grid:
    """Make a table with a row for each rank, a process of a parallel training.

    Columns are steps, events, times, and how often ranks did what a setting asks for now and then.
    The caption says whether all events were used. `summary` is the content of the training's
    `summary.json`, in which `acted` counts these actions over all ranks.
    """
    ranks = summary["per_rank"]
    has_averages = any(rank.get("averages_begun") for rank in ranks)
    # Averages have a column of their own.
    actions = [name for name in summary["acted"] if name != "averages_begun"]
    rows = [_rank_cells(rank, actions, has_averages=has_averages) for rank in ranks]
    table = Grid(*rows[0], caption=f"{about_events(summary)}{_about_cycles(summary)}")
    for cells in rows:
        table.add_row(*cells.values())
    return table


def _rank_cells(
    rank: Mapping[str, Any], actions: Sequence[str], *, has_averages: bool
) -> dict[str, str]:
    """Return the cells of a rank by the head of their column.

    Args:
        rank: The record of the rank in the summary of the training.
        actions: Names of counters that get a column.
        has_averages: Whether ranks average their models in pairs while they compute. Then columns
            hold the averages that a rank began and received, and the staleness of its steps: the
            averages between the computation of a step's gradient and its addition to the model.
    """
    seconds = rank["seconds_by_kind"]
    cells = {
        "rank": str(rank["rank"]),
        "steps": str(rank["steps"]),
        "events": f"{rank['samples']:,}",
        "compute [s]": f"{seconds.get('compute', 0.0):.2f}",
        "communicate [s]": f"{seconds.get('communicate', 0.0):.2f}",
        "wait [s]": f"{rank['wait_seconds']:.2f}",
    }
    if has_averages:
        cells["averages"] = f"{rank['averages_begun']}+{rank['averages_received']}"
        cells["staleness"] = f"{rank['mean_staleness']:.1f}, max {rank['max_staleness']}"
    for action in actions:
        cells[action.replace("_", " ")] = f"{rank.get(action, 0):,}"
    cells["accuracy"] = f"{rank['worker_val_accuracy']:.3f}"
    return cells


def about_events(summary: Mapping[str, Any]) -> str:
    """Return how many events were trained on, and how many left out, in words.

    `summary` is that of `rank_table`; `samples` counts an event once in each epoch.

    Examples:
        >>> about_events({"epochs": 20, "train_rows": 419, "samples": 8380, "samples_left_out": 0})
        '20 epochs of 419 events, none left out'
    """
    num_left_out = summary["samples_left_out"]
    remark = "none left out"
    if num_left_out:
        remark = f"{num_left_out:,} of {summary['samples'] + num_left_out:,} left out"
    return f"{summary['epochs']} epochs of {summary['train_rows']:,} events, {remark}"


def _about_cycles(summary: dict[str, Any]) -> str:
    """Return a sentence about the exchange cycles of a training with agents; empty for others.

    Agents are training processes that Spark starts. A cycle is one sum of their vectors by a Spark
    job, and its broadcast to all agents. `summary` is that of `rank_table`.
    """
    if "mean_cycle_seconds" not in summary:
        return ""
    megabytes_up, megabytes_down = summary["bytes_reduced"] / 1e6, summary["bytes_broadcast"] / 1e6
    return (
        f"; {summary['cycles']} cycles of {summary['mean_cycle_seconds']:.2f} s, "
        f"{megabytes_up:,.1f} MB up, {megabytes_down:,.1f} MB down, agents train "
        f"{summary['utilisation']:.0%} of the time"
    )


def search_table(scores: list[Score]) -> Grid:
    """Make a table of the best settings of a grid search; `scores` are sorted, the best first.

    A score holds the cross-validated accuracy of a setting, one for each fold, and its costs:
    number of weights, and time of one event [us]. A star marks a setting that is more accurate than
    all smaller, or all quicker, ones by more than noise.
    """
    from training.gridsearch.results import latency_cost, pareto_front

    smallest, fastest = pareto_front(scores), pareto_front(scores, latency_cost)
    table = Grid(
        *("layers", "batch", "rate", "epochs", "weights", "accuracy", "behind", "us"),
        keys=4,
        title=(
            f"the best {min(_ROWS_SHOWN, len(scores))} of {len(scores)} settings; us: time per "
            "event"
        ),
        caption="behind: the best, fold by fold; *: ahead of all smaller, or quicker, beyond noise",
    )
    for score in scores[:_ROWS_SHOWN]:
        trial, lead_of_best = score.trial, scores[0].lead_over(score)
        smallest_mark = "*" if score in smallest else " "
        fastest_mark = "*" if score in fastest else " "
        table.add_row(
            "-".join(map(str, trial.hidden)),
            str(trial.batch_size),
            f"{trial.learning_rate:g}",
            str(trial.epochs),
            f"{score.num_parameters:,}{smallest_mark}",
            f"{score.accuracy:.3f}",
            with_error(lead_of_best.value, lead_of_best.error),
            f"{score.latency.value:.1f}{fastest_mark}",
        )
    return table


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


def export_table(networks: dict[str, Any]) -> Grid:
    """Make a table of the networks exported to ONNX: size, deviation from torch, and times.

    `networks` are the counters of the stage `export` by name of the network. Of the exported forms
    the table shows `model.onnx`, which takes batches of events.
    """
    heads = ("network", "size [kB]", "differs by", "median", "99 %", "99.9 %", "events/s")
    table = Grid(
        *heads, title="model.onnx: size, largest difference from torch, times per event [us]"
    )
    for network, measured in networks.items():
        form = measured["forms"]["model.onnx"]
        # Percentiles of the time of an event [us]; None where calls were too few.
        latencies = [measured["latency_us"][name] for name in ("p50", "p99", "p99_9")]
        time_cells = ["-" if latency is None else f"{latency:,.1f}" for latency in latencies]
        table.add_row(
            network,
            f"{form['bytes'] / 1000:,.1f}",
            f"{form['largest_difference']:.1e}",
            *time_cells,
            f"{measured['events_per_second']:,.0f}",
        )
    return table
