"""Tables and sentences about results of the stages, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from models.evaluation.rounding import NOT_MEASURABLE, limit_of, with_error, with_interval
from pipeline.reporting.cutflow import Step, shows_weights
from pipeline.terminal.grid import Grid
from training.settings import TrainSettings

if TYPE_CHECKING:
    from models.evaluation.intervals import Efficiency
    from training.gridsearch.results import Score

#: Highest number of settings that the table of a search shows, the best first.
_ROWS_SHOWN: Final = 10


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


def firmware_table(networks: dict[str, Any]) -> Grid:
    """Make a table of the firmware of the networks: deviation from torch, and estimates.

    `networks` are the counters of the stage `export` by name of the network. Each width has a row.
    """
    heads = ("network", "bits", "differs by", "same class [%]", "latency [ns]", "look-up tables")
    table = Grid(
        *heads, title="firmware: largest difference from torch, estimated latency and size"
    )
    for network, measured in networks.items():
        for firmware in measured["firmware"]:
            table.add_row(
                network,
                f"{firmware['bits']}",
                f"{firmware['largest_difference']:.3g}",
                f"{100 * firmware['same_class']:.1f}",
                f"{firmware['latency_ns']:.0f}",
                f"{firmware['lookup_tables']:,}",
            )
    return table
